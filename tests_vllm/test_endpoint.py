"""What a server with MGAP says of itself, to a client, a probe and Prometheus; and another prior while it runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from engines import CARDS
from strengths import SERVER
from test_server import ask, said
from worlds import TOKENS

import mgap


@pytest.fixture
def get(running):
    return lambda path: httpx.get(f"{running.url}{path}")


@pytest.fixture
def change(running, llava):
    """`change(prior=...)` gives the server something else; it gets its own back in the end."""

    def post(**given):
        return httpx.post(f"{running.url}/v1/mgap/prior", json=given)

    yield post
    assert post(prior=str(llava.prior), alpha=SERVER, lam=0.5).status_code == 200


def metrics(get):
    lines = re.findall(r"^(mgap_.+) ([-+.e\d]+)$", get("/metrics").text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_it_tells_its_prior_its_settings_and_its_model(running, llava, get):
    ask(running.client(), llava, 0)
    status = get("/v1/mgap").json()
    assert (status["is_on"], status["prior"], status["drafts"]) == (True, str(llava.prior), False)
    assert status["sha256"] == llava.subspace.digest
    assert status["settings"]["alpha"] == SERVER
    assert status["settings"]["rank"] == llava.subspace.rank
    assert status["model"]["tensors"]["lm_head.weight"] == llava.model.backbone.identity.tensors["lm_head.weight"]
    assert (status["family"], status["dtype"]) == ("llava", "float32")
    assert status["device"].startswith("cuda" if CARDS else "cpu")
    assert status["versions"]["mgap"] == mgap.__version__


def test_a_probe_hears_that_mgap_is_on(llava, get):
    ready = get("/mgap/ready")
    assert (ready.status_code, ready.json()) == (200, {"is_on": True, "prior": str(llava.prior)})


def test_requests_are_counted_by_their_strength(running, llava, get):
    names = ('mgap_requests_total{strength="server"}', 'mgap_requests_total{strength="0"}',
             'mgap_requests_total{strength="up to 1"}', 'mgap_requests_total{strength="above 1"}')  # fmt: skip
    before, client = metrics(get), running.client()
    for alpha in (None, 0, 0, 0.5, 1, 1, 3):
        ask(client, llava, 0, alpha)
    after = metrics(get)
    assert [after[name] - before.get(name, 0) for name in names] == [1, 2, 3, 1]
    assert after[f'mgap_on{{prior="{llava.prior}"}}'] == 1
    assert {"mgap_rows", "mgap_beta_sum", "mgap_changed_rows", "mgap_entropy_nats_sum", "mgap_cosine_sum"} <= set(after)


def test_the_dashboard_asks_for_what_there_is(get):
    board = json.loads((Path(__file__).parents[1] / "examples" / "serving" / "grafana.json").read_text())
    asked = {
        name for panel in board["panels"] for target in panel["targets"] for name in re.findall(r"mgap_\w+", target["expr"])
    }
    assert len(board["panels"]) == 6
    assert asked <= {name.partition("{")[0] for name in metrics(get)}


def test_another_prior_decodes_from_the_next_request_on(running, llava, get, change, tmp_path):
    fewer = llava.subspace.truncate(2)
    fewer.save(tmp_path / "fewer")
    answer = change(prior=str(tmp_path / "fewer"), alpha=5.0, lam=1.0)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["prior"], answer.json()["settings"]["rank"]) == (str(tmp_path / "fewer"), 2)
    told = get("/v1/mgap").json()
    assert (told["sha256"], told["settings"]["alpha"]) == (fewer.digest, 5.0)
    assert get("/mgap/ready").json()["prior"] == str(tmp_path / "fewer")
    client = running.client()
    asked = [llava.asked[number] for number in (0, 12, 17)]
    with llava.model.using(mgap.MGAP(fewer, alpha=5.0, lam=1.0)):
        expected = [llava.model.answer(llava.draw(name), prompt, max_new_tokens=TOKENS).text for name, prompt in asked]
    assert [said(ask(client, llava, number)) for number in (0, 12, 17)] == expected
    plain = llava.model.backbone.tokenizer.decode(llava.answers(0.0)[12], skip_special_tokens=True).strip()
    assert said(ask(client, llava, 12, 0)) == plain
    assert "MGAP now: K=2" in running.log


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"prior": "/nowhere"}, "no subspace '/nowhere'"),
        ({"alpha": -1}, "alpha=-1 must be a finite number"),
        ({"rank": 99}, "rank=99 is not between 1 and 5"),
        ({"strength": 1}, "unknown key 'strength'"),
        ({"log_every": 3}, "log_every and reload are set when a server starts"),
        ({"reload": False}, "log_every and reload are set when a server starts"),
        ({"exact": False}, "exact is decided when a server starts"),
        ({}, "give keys and values as JSON"),
    ],
)
def test_what_cannot_be_taken_is_refused_and_changes_nothing(running, llava, get, given, why):
    before = get("/v1/mgap").json()
    answer = httpx.post(f"{running.url}/v1/mgap/prior", json=given)
    assert answer.status_code == 400
    assert why in answer.json()["error"]["message"]
    after = get("/v1/mgap").json()
    assert {**after, "counts": None} == {**before, "counts": None}


def test_another_models_prior_is_refused_and_changes_nothing(running, llava, get, change, tmp_path):
    identity = llava.subspace.identity
    other = replace(llava.subspace, identity=replace(identity, sample=tuple(1 + value for value in identity.sample)))
    other.save(tmp_path / "other")
    answer = change(prior=str(tmp_path / "other"))
    assert (answer.status_code, "the weights differ" in answer.text) == (400, True)
    assert get("/v1/mgap").json()["prior"] == str(llava.prior)
