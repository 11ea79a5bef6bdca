"""Runs with engine server. A server of another project (transformers' own) answers here, vLLM's in tests_vllm."""

import os
import socket
import sys
from subprocess import DEVNULL, STDOUT

import httpx
import pytest

import mgap
from mgap.errors import MgapError, ModelError, PromptError
from mgap.registry import locate
from mgap.run.config import Config
from mgap.run.engine import execute
from mgap.run.folder import Shard
from mgap.run.job import Job
from mgap.run.records import Run
from mgap.serving.remote import fleet
from mgap.serving.remote.remote_options import RemoteOptions
from mgap.serving.remote.remote_run import RemoteEngine
from tests import processes
from tests.faulty_proxy import DROP, FaultyProxy

URL = "http://127.0.0.1:8000/v1"
GOOD = {
    "benchmark": "pope",
    "model": "pocket/llava",
    "methods": ["vanilla", {"method": "bias", "shift": -4}],
    "engine": "server",
    "engine_options": {"url": URL},
}
MODEL = str(locate("pocket/llava"))
ASKED = {"splits": ["adversarial"], "scenes": 2, "decoding": {"max_new_tokens": 20}, "batch_size": 9}
TOLD = ("text", "stop", "tokens", "image")


def config(**change):
    return Config.of({**GOOD, **change})


# --- without a server ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"engine_options": {}}, "give --url http://HOST:8000/v1"),
        ({"engine_options": {"url": "localhost:8000"}}, "is no server's address"),
        ({"engine_options": {"url": "http://h:port/v1"}}, "is no server's address"),
        ({"engine_options": {"url": [URL, 3]}}, "url 3 is no server's address"),
        ({"engine_options": {"url": [URL, URL + "/"]}}, "names a server twice"),
        ({"engine_options": {"url": URL, "paralel": 3}}, "no option 'paralel'.*did you mean 'parallel'"),
        ({"engine_options": {"url": URL, "parallel": 0}}, "parallel=0 must be a whole number of at least 1"),
        ({"engine_options": {"url": URL, "timeout": 0}}, "timeout=0 would lose every request"),
        ({"methods": ["vcd"]}, "engine server cannot do vcd"),
        ({"methods": [{"method": "mgap", "prior": {"rank": 3}}]}, "fits none: leave prior out"),
        ({"benchmark": "departure"}, "departures are measured with engine transformers"),
        ({"workers": 2}, "workers=2: that is the server's business"),
        ({"device": "cpu"}, "device=cpu: that is the server's business"),
        ({"dtype": "float32"}, "dtype=float32: that is the server's business"),
        ({"prefill": "shared"}, "prefill=shared: that is the server's business"),
        ({"profile": True}, "profile=True: that is the server's business"),
        ({"template": "{image} {question}"}, "chat template"),
        ({"decoding": {"num_beams": 2}}, "engine server does not take num_beams=2"),
        ({"decoding": {"compile": True}}, "engine server does not take"),
        ({"engine": "transformers"}, "engine transformers has no engine_options"),
    ],
)
def test_what_no_server_can_do_is_told_before_one_is_asked(change, why):
    with pytest.raises(MgapError, match=why):
        config(**change)


def test_addresses_are_completed():
    given = ["http://one:8000", "https://two/v1/", "http://[::1]:8000/api/v1"]
    assert RemoteOptions.of({"url": given}).url == ("http://one:8000/v1", "https://two/v1", "http://[::1]:8000/api/v1")


def test_mgap_takes_the_servers_prior_unless_one_is_named():
    plans = config(methods=["vanilla", "mgap"]).methods
    assert [plan.prior and plan.prior.folder for plan in plans] == [None, "served"]


def test_a_port_that_nobody_listens_to_is_named(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ModelError, match=f"{url}: no server answers there"):
        begin(tmp_path, url)
    assert not (tmp_path / "run.json").exists()


# --- with one --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    """`transformers serve` with pocket/llava: an OpenAI server that is neither vLLM nor ours."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "hub").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", MODEL, "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", *words]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(folder / "hub"), "CUDA_VISIBLE_DEVICES": ""}
    with (
        (folder / "log").open("wb") as log,
        processes.started(command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=env) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        while not _answers(url):
            assert process.poll() is None, (folder / "log").read_text()
        yield url


def _answers(url):
    try:
        return httpx.get(f"{url}/health", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def proxy(upstream):
    """`proxy()`: another address of the server, which can break."""
    made = []

    def begin():
        made.append(FaultyProxy(upstream))
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(fleet, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(fleet, "LONGEST_PAUSE", 0.02)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """What engine transformers answers."""
    given = {key: value for key, value in GOOD.items() if not key.startswith("engine")}
    job = Job.prepare(Config.of({**given, **ASKED}), tmp_path_factory.mktemp("reference"), Shard())
    run, worker = job.begin(mgap.load("pocket/llava"))
    execute(run, worker)
    return told(run)


def told(run):
    return {
        method.label: {name: [getattr(record, key) for key in TOLD] for name, record in run.records(method).items()}
        for method in run.methods
    }


def begin(out, *urls, **options):
    """The run and its worker."""
    engine_options = {"url": list(urls), "served_model": MODEL, "retries": 3, **options}
    job = Job.prepare(config(**ASKED, engine_options=engine_options), out, Shard())
    return RemoteEngine.begin(job, progress=None, note=print, status=print)


def answered(out, *urls, **options):
    run, worker = begin(out, *urls, **options)
    try:
        execute(run, worker)
    finally:
        worker.close()
    return run


def test_answers_are_those_of_engine_transformers(tmp_path, proxy, reference):
    server = proxy()
    run = answered(tmp_path, server.url, parallel=3)
    assert told(run) == reference
    assert 1 < server.most_at_once <= 3
    assert {record.prompt for record in run.records(run.methods[0]).values()} == {""}, "it does not tell its prompts"


@pytest.mark.parametrize("fault", [DROP, 503, 429])
def test_a_request_that_fails_is_asked_again(tmp_path, proxy, reference, fault):
    server = proxy()
    server.fault = lambda number: fault if number % 4 == 1 else None
    assert told(answered(tmp_path, server.url)) == reference
    assert server.questions > sum(map(len, reference.values()))


def test_the_others_take_over_for_a_server_that_is_gone(tmp_path, proxy, reference):
    dying, living = proxy(), proxy()

    def fault(number):
        if number == 2:
            dying.shut()  # from now on nobody listens there
        return DROP if number >= 2 else None

    dying.fault = fault
    assert told(answered(tmp_path, dying.url, living.url, parallel=2, retries=8)) == reference
    assert living.questions > dying.questions


def test_a_run_whose_servers_are_gone_ends_in_a_sentence_and_goes_on_later(tmp_path, proxy, reference):
    server = proxy()
    server.fault = lambda number: None if number < 10 else 503
    with pytest.raises(ModelError, match=r"no server answers, after 4 tries, at last .*broken on purpose; see to the servers"):
        answered(tmp_path, server.url, parallel=1)
    half = Run.load(tmp_path)
    kept = sum(len(half.records(method)) for method in half.methods)
    assert 0 < kept < sum(map(len, reference.values()))
    elsewhere = proxy()
    assert told(answered(tmp_path, elsewhere.url)) == reference
    assert elsewhere.questions < sum(map(len, reference.values()))


def test_a_question_that_is_refused_is_not_asked_again(tmp_path, proxy):
    server = proxy()
    server.fault = lambda number: 400
    run, worker = begin(tmp_path, server.url)
    try:
        with worker.using(run.methods[0]) as work, pytest.raises(PromptError, match="refuses it: broken on purpose"):
            work(run.samples[:1])
    finally:
        worker.close()
    assert server.questions == 1


def test_another_server_at_the_same_address_is_noticed(tmp_path, proxy):
    server = proxy()
    run, worker = begin(tmp_path, server.url)
    try:
        (found,) = worker.fleet.servers
        found.told, found.must_check = worker.told.__class__("another", True, False, None), True
        with worker.using(run.methods[0]) as work, pytest.raises(ModelError, match="has changed since the run began: model is"):
            work(run.samples[:1])
    finally:
        worker.close()
    assert server.questions == 0


def test_what_a_server_without_our_plugin_cannot_do_is_told_before_the_first_question(tmp_path, proxy):
    server = proxy()
    options = {"url": server.url, "served_model": MODEL}
    for change, why in (
        ({"methods": ["vanilla", "mgap"]}, "mgap: .* runs without MGAP, and can do vanilla and bias only"),
        ({"decoding": {"repetition_penalty": 1.2}}, "is not vLLM, and servers in general take no repetition_penalty"),
        ({"decoding": {"sample": True, "num_return_sequences": 2}}, "take no num_return_sequences"),
    ):
        job = Job.prepare(config(**{**ASKED, **change}, engine_options=options), tmp_path / "run", Shard())
        with pytest.raises(MgapError, match=why):
            RemoteEngine.begin(job, progress=None, note=print, status=print)
    assert server.questions == 0
    with pytest.raises(ModelError, match=r"lists \d+ models|lists no models"):
        RemoteEngine.begin(
            Job.prepare(config(**ASKED, engine_options={"url": server.url}), tmp_path / "run", Shard()),
            progress=None,
            note=print,
            status=print,
        )
