"""`mgap run --engine server` with vLLM's server and MGAP: the records of engine transformers, and what the server tells."""

from dataclasses import replace

import pytest
from engines import generate
from worlds import FIRST

from mgap.errors import ModelError
from mgap.pocket.samples import SceneRenderer, pope_samples
from mgap.priors.subspace import Subspace
from mgap.run.config import Config
from mgap.run.engine import execute
from mgap.run.folder import Shard
from mgap.run.job import Job
from mgap.serving.remote.remote_run import RemoteEngine
from mgap.types import Sample

SAME = ("text", "prompt", "image", "tokens", "stop", "rows", "failed")
ASKED = {"benchmark": "pope", "model": "pocket/llava", "splits": ["adversarial"], "scenes": 8, "batch_size": 20}
METHODS = ["vanilla", {"method": "mgap", "label": "weak", "alpha": 3}, {"method": "bias", "shift": -4}]

pytestmark = pytest.mark.filterwarnings("ignore:alpha=.* > 1")  # so that they show


def begin(running, out, **change):
    """A run against the server, and its worker."""
    given = {**ASKED, "engine": "server", "engine_options": {"url": f"{running.url}/v1", "retries": 0}, **change}
    return RemoteEngine.begin(Job.prepare(Config.of(given), out, Shard()), progress=None, note=print, status=print)


def told(run):
    return {
        method.label: {name: [getattr(r, key) for key in SAME] for name, r in run.records(method).items()}
        for method in run.methods
    }


def test_answers_are_those_of_engine_transformers(running, llava, tmp_path):
    strong = {"method": "mgap", "label": "strong", "alpha": 10}
    run, worker = begin(running, tmp_path / "server", methods=[*METHODS, {**strong, "prior": str(llava.prior)}])
    try:
        execute(run, worker)
    finally:
        worker.close()
    named = [{**each, "prior": str(llava.prior)} if "alpha" in each else each for each in [*METHODS, strong]]
    job = Job.prepare(Config.of({**ASKED, "dtype": "float32", "methods": named}), tmp_path / "transformers", Shard())
    reference, worker = job.begin(llava.model)
    execute(reference, worker)
    assert told(run) == told(reference)
    vanilla, *others = told(run).values()
    assert all(each != vanilla for each in others)  # every method says something of its own
    model, tensors = reference.plan["model"], reference.plan["model"]["tensors"]
    assert tensors.items() <= run.plan["model"]["tensors"].items()
    assert {**run.plan["model"], "tensors": tensors, "is_partial": False} == model
    assert run.plan["learnt"] == reference.plan["learnt"]
    assert Subspace.load(tmp_path / "server" / "priors" / "served").basis.equal(llava.subspace.basis)


def test_drawn_answers_are_those_of_the_offline_engine(running, llava, served, engines, tmp_path):
    drawn = {"max_new_tokens": 10, "sample": True, "temperature": 1.5, "top_p": 0.95, "num_return_sequences": 2}
    run, worker = begin(running, tmp_path, methods=["vanilla"], decoding=drawn)
    samples = [Sample(f"drawn/{number}", name, prompt, "", "") for number, (name, prompt) in enumerate(llava.asked)]
    try:
        answers = worker.answers([llava.draw(sample.image) for sample in samples], samples, run.methods[0])
    finally:
        worker.close()
    fields = [decoding_of(worker, sample) for sample in samples]
    requests = [{**asked, "sampling": each} for asked, each in zip(llava.requests(), fields, strict=True)]
    (made,) = engines.run(served["llava"], generate(requests))
    assert [list(answer.token_ids) for answer in answers] == [each["tokens"] for each in made]
    assert any(answer.alternatives[0].token_ids != answer.token_ids for answer in answers), "two draws"


def decoding_of(worker, sample):
    from mgap.serving.sampling import sampling_fields

    return sampling_fields(worker.decoding, worker.end, sample.id)


def test_a_question_without_a_picture_is_asked_as_text_alone(running, llava, tmp_path):
    run, worker = begin(running, tmp_path, methods=["vanilla"])
    sample = Sample("alone", "", llava.asked[0][1], "", "")
    try:
        (answer,) = worker.answers([None], [sample], run.methods[0])
    finally:
        worker.close()
    expected = llava.model.answer(None, sample.prompt, max_new_tokens=worker.decoding.max_new_tokens)
    assert (answer.token_ids, answer.prompt) == (expected.token_ids, expected.prompt)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"methods": [{"method": "mgap", "lam": 2}]}, "lam is 2 here and 0.5 at .*; give --set mgap.lam=0.5"),
        ({"methods": [{"method": "mgap", "rank": 2}]}, "rank is 2 here and 5 at"),
        ({"methods": [{"method": "mgap", "gate": False}]}, "gate is False here and True at"),
        ({"model": "pocket/qwen3-vl", "methods": ["vanilla"]}, "asks in other words than pocket/qwen3-vl here"),
    ],
)
def test_what_the_server_does_otherwise_is_told_before_the_first_question(running, tmp_path, change, why):
    with pytest.raises(ModelError, match=why):
        begin(running, tmp_path, **change)
    assert not (tmp_path / "run.json").exists()


def test_another_prior_than_the_servers_is_refused(running, llava, tmp_path):
    other = replace(llava.subspace, basis=llava.subspace.basis.flip(1))
    other.save(tmp_path / "other")
    with pytest.raises(ModelError, match=r"has another prior than .*other; leave prior out to use it"):
        begin(running, tmp_path / "run", methods=[{"method": "mgap", "prior": str(tmp_path / "other")}])


def test_a_server_that_came_up_with_other_settings_ends_the_run(running, tmp_path):
    run, worker = begin(running, tmp_path, methods=["vanilla", "mgap"])
    (server,) = worker.fleet.servers
    settings = {**server.told.status.settings, "lam": 1.0}
    try:
        server.must_check = True  # as after a broken connection
        with worker.using(run.methods[1]) as work:
            assert len(work(run.samples[:2])) == 2
            server.told = replace(server.told, status=replace(server.told.status, settings=settings))
            server.must_check = True
            with pytest.raises(ModelError, match="has changed since the run began: MGAP's settings is"):
                work(run.samples[2:4])
    finally:
        worker.close()


def test_a_server_that_does_not_tell_is_asked_plainly_and_with_a_bias_only(llava, served, server, tmp_path):
    """Plain vLLM with the plugin on, but without its endpoint: its own strength must not reach the plain rows."""
    from strengths import with_mgap

    silent = server(served["llava"], **with_mgap(llava, 5.0))
    with pytest.raises(ModelError, match="does not tell which prior and settings it has: start it with `mgap serve`"):
        begin(silent, tmp_path / "refused", methods=["vanilla", "mgap"])
    run, worker = begin(silent, tmp_path / "plain", methods=["vanilla"])
    try:
        samples = pope_samples(["adversarial"], 4, first=FIRST).samples
        pictures = [SceneRenderer()(sample.image) for sample in samples]
        answers = worker.answers(pictures, samples, run.methods[0])
    finally:
        worker.close()
    silent.stop()
    expected = llava.model.answers(
        pictures, [sample.prompt for sample in samples], max_new_tokens=worker.decoding.max_new_tokens
    )
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
