"""What methods need: learnt by a run or by `ask`, taken from a folder, or refused before a model is loaded.

Methods here are as an installed package would bring them: known by a name in the registry, and by nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
import torch

import mgap
from mgap.errors import MgapError, SettingError
from mgap.methods.base import Need
from mgap.methods.bias import Bias
from mgap.priors.prior_plan import Prior, Priors
from mgap.registry import METHODS, POCKET_LEARNERS
from mgap.run.config import Config
from mgap.run.learning import kinds_in, learn
from mgap.run.method_plans import MethodPlan, build_method
from tests.methods import builders


@dataclass(frozen=True)
class Needy(Bias):
    """Plain decoding that wants something learnt."""

    summary: ClassVar[str] = "plain decoding"
    shift: float = 0.0
    up: tuple[str, ...] = ("Yes", "yes")
    down: tuple[str, ...] = ("No", "no")


@dataclass(frozen=True)
class NeedsSubspace(Needy):
    name: ClassVar[str] = "needs-subspace"
    needs: ClassVar[Any] = MappingProxyType({"space": Need("subspace")})
    space: Any = None


@dataclass(frozen=True)
class NeedsMap(Needy):
    name: ClassVar[str] = "needs-map"
    needs: ClassVar[Any] = MappingProxyType({"guess": Need("prior_map")})
    guess: Any = None


@dataclass(frozen=True)
class NeedsSteering(Needy):
    name: ClassVar[str] = "needs-steering"
    needs: ClassVar[Any] = MappingProxyType({"way": Need("steering")})
    way: Any = None


@dataclass(frozen=True)
class NeedsBank(Needy):
    name: ClassVar[str] = "needs-bank"
    needs: ClassVar[Any] = MappingProxyType({"home": Need("bank")})
    home: Any = None


@dataclass(frozen=True)
class NeedsNullSpace(Needy):
    name: ClassVar[str] = "needs-null-space"
    needs: ClassVar[Any] = MappingProxyType({"void": Need("null_space")})
    void: Any = None


NEEDY = {
    "subspace": NeedsSubspace, "prior_map": NeedsMap, "steering": NeedsSteering, "bank": NeedsBank, "null_space": NeedsNullSpace
}  # fmt: skip
TOOK = {"subspace": "space", "prior_map": "guess", "steering": "way", "bank": "home", "null_space": "void"}


def fewer(kind, **counts):
    """A learner of the pocket world, from a few scenes."""
    whole = POCKET_LEARNERS.get(kind)
    return lambda model, **how: whole(model, **counts, **how)


few_prior_map, few_steering = fewer("prior_map", count=6), fewer("steering", count=12)
few_null_space = fewer("null_space", count=12)
few_bank = fewer("bank", kinds=("captions",), count=2)


@pytest.fixture
def installed(monkeypatch):
    """The needy methods are in the registry, and learning in the pocket world is quick."""
    for method in NEEDY.values():
        monkeypatch.setitem(METHODS._entries, method.name, f"{__name__}:{method.__name__}")
    for kind in ("prior_map", "steering", "bank", "null_space"):
        monkeypatch.setitem(POCKET_LEARNERS._entries, kind, f"{__name__}:few_{kind}")


@pytest.fixture(scope="module")
def tiny_prior(tiny_model):
    return Prior().fit(tiny_model)


@pytest.fixture
def folder(tiny_prior, tmp_path):
    """One of each kind, of the tiny model, in a folder each."""
    for kind, make in builders.LEARNT.items():
        replace(make(tiny_prior), identity=tiny_prior.identity).save(tmp_path / kind)
    return tmp_path


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", NEEDY)
def test_a_saved_one_is_named_by_prior_in_ask_and_run(run, tiny, folder, picture_file, kind):
    method, made = NEEDY[kind].name, folder / "run"
    status, _, err = run(
        "ask", picture_file, "What?", "-m", tiny, "--method", method, "--prior", folder / kind, "--max-new-tokens", 2
    )
    assert status == 0, err
    assert f"\n{TOOK[kind]}: " in err
    words = ["--dataset", "pocket", "--scenes", 1, "--split", "random", "--decoding", "max_new_tokens=1", "--out", made]
    status, _, err = run("run", "pope", "-m", tiny, "--method", "vanilla", "--method", method, "--prior", folder / kind, *words)
    assert status == 0, err
    assert list(json.loads((made / "run.json").read_text())["learnt"][method]) == [TOOK[kind]]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["bank", "prior_map", "steering", "null_space"])
def test_a_missing_one_is_refused_before_the_model_is_loaded(run, picture_file, kind):
    method = NEEDY[kind].name
    for words in (["ask", picture_file, "What?"], ["run", "pope", "--images", "a"], ["run", "pope", "--dataset", "pocket"]):
        status, _, err = run(*words, "-m", "someone/nothing", "--method", method)
        assert status == 2
        assert f"{method} needs {TOOK[kind]}" in err
        assert "loading" not in err
        assert ("Steering.fit" if kind == "steering" else f"mgap fit --for {method} --model someone/nothing") in err


@pytest.mark.long
@pytest.mark.usefixtures("installed")
def test_an_embedded_model_learns_each_by_itself_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "cache"))
    model, told = mgap.load("pocket/llava", device="cpu"), []
    for kind, method in NEEDY.items():
        plan = MethodPlan.of(method.name)
        plan.refuse_unlearnt("pocket/llava")
        built = build_method(plan, model, Priors(tmp_path / "run"), lambda *step: told.append(step))
        assert getattr(built, TOOK[kind]) is not None
        assert told
        told.clear()
        for priors in (Priors(tmp_path / "run"), Priors()):  # from the run's folder, and from the cache
            assert getattr(build_method(plan, model, priors, lambda *step: told.append(step)), TOOK[kind]) is not None
        assert not told
    assert kinds_in(str(tmp_path / "run" / "bank")) == ["bank"]


def test_prior_goes_to_every_method_that_needs_its_kind(tiny, folder):
    keys = {"benchmark": "pope", "model": str(tiny), "dataset": "pocket"}
    config = Config.of({**keys, "methods": ["vanilla", "mgap", "prompt-prior", "vcd"]}, prior=str(folder / "subspace"))
    assert [plan.prior and plan.prior.folder for plan in config.methods] == [None, *[str(folder / "subspace")] * 2, None]
    config = Config.of({**keys, "methods": ["mgap", "tether"]}, prior=str(folder / "bank"))
    assert [dict(plan.settings) for plan in config.methods] == [{}, {"bank": str(folder / "bank")}]
    config = Config.of(
        {**keys, "methods": ["mgap", {"method": "tether", "bank": str(folder / "bank")}]}, prior=str(folder / "subspace")
    )
    assert config.methods[1].prior is None  # which its alpha of 0 leaves alone
    with pytest.raises(SettingError, match="no method of this run needs a bank of plain states: mgap, vcd"):
        Config.of({**keys, "methods": ["mgap", "vcd"]}, prior=str(folder / "bank"))
    with pytest.raises(SettingError, match="bank holds a bank of plain states, and mgap needs a prior"):
        MethodPlan.of({"method": "mgap", "prior": str(folder / "bank")})


def test_a_tether_needs_a_bank_and_a_prior_only_with_alpha(tiny, folder):
    with pytest.raises(SettingError, match=f"tether needs bank, a bank of plain states of {tiny}"):
        Config.of({"benchmark": "pope", "model": str(tiny), "dataset": "pocket", "methods": ["tether"]})
    plain = MethodPlan.of({"method": "tether", "prior": str(folder / "bank")})
    assert plain.prior is None
    stepped = MethodPlan.of({"method": "tether", "prior": str(folder / "bank"), "alpha": 0.5})
    assert stepped.prior == Prior()


def test_the_default_prior_belongs_to_the_model(tiny_model):
    assert Prior().of_model("pocket/llava").prompts == "pocket"
    assert Prior().of_model("someone/model").prompts == "default"
    assert Prior(prompts="questions").of_model("pocket/qwen3-vl").prompts == "pocket"
    fitted = Prior().fit(tiny_model)
    again = mgap.Subspace.fit(tiny_model, mgap.default_prompts()[:50])
    assert torch.equal(fitted.basis, again.basis)
    assert fitted.origin["prompts"] == "default"


def test_other_weights_of_the_same_name_are_not_served_from_the_cache(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path))
    model = mgap.load(str(tiny))
    first = Prior().fitted(model)
    assert torch.equal(Prior().fitted(model).basis, first.basis)
    (kept,) = (tmp_path / "learnt").iterdir()
    (kept / "subspace.json").write_text("{")
    assert torch.equal(Prior().fitted(model).basis, first.basis)  # a damaged one is learnt again
    assert torch.equal(mgap.Subspace.load(kept).basis, first.basis)
    with torch.no_grad():
        model.backbone.layers[0].mlp.down_proj.weight.mul_(-1)
    assert not torch.allclose(Prior().fitted(model).projector, first.projector)


@pytest.fixture
def questions(picture, tmp_path):
    for number in range(6):
        picture.rotate(60 * number).save(tmp_path / f"{number}.png")
    rows = [{"image": f"{n}.png", "question": f"Is there a {thing}?"} for n in range(6) for thing in ("dog", "cat")]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "asked.jsonl"


@pytest.mark.parametrize("method", ["tether", "predicted-prior"])
def test_fit_learns_from_own_pictures_what_ask_then_takes(run, tiny, questions, picture_file, tmp_path, method):
    status, out, err = run("fit", "--for", method, "-m", tiny, "-o", tmp_path / "made", "--questions", questions)
    assert status == 0, err
    assert f"{tmp_path / 'made'}: " in out
    words = ["ask", picture_file, "What?", "-m", tiny, "--method", method, "--max-new-tokens", 2]
    status, _, err = run(*words, "--prior", tmp_path / "made")
    assert status == 0, err


def test_fit_learns_a_null_space_from_own_pairs_of_captions(run, tiny, pairs, picture_file, tmp_path):
    words = ["fit", "--for", "nullu", "-m", tiny, "-o", tmp_path / "made", "--pairs", pairs, "--rank", 2]
    status, out, err = run(*words)
    assert status == 0, err
    assert "made: rank 2 in blocks 1 to 2 of 3, of 6 pairs of captions" in out
    assert "not used: note" in err
    status, _, err = run(
        "ask", picture_file, "What?", "-m", tiny, "--method", "nullu", "--max-new-tokens", 2, "--prior", tmp_path / "made"
    )
    assert status == 0, err
    assert "space: rank 2 in blocks 1 to 2 of 3" in err


@pytest.fixture
def pairs(questions):
    rows = [
        {"image": f"{n}.png", "prompt": "What?", "true": f"a {thing}", "false": f"a {thing} and a dog", "note": "mine"}
        for n, thing in enumerate(("cat", "car", "person", "picture", "dog", "chair"))
    ]
    path = questions.with_name("pairs.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--for", "nullu"], "mgap fit --for nullu --model M --images FOLDER --pairs FILE --out DIR"),
        (["--for", "nullu", "--pairs", "p.jsonl"], "p.jsonl: no such file"),
        (["--for", "nullu", "--questions", "q.jsonl", "--pairs", "p.jsonl"], "--questions are not needed for what nullu needs"),
        (["--for", "nullu", "--rank", "auto", "--pairs", "p.jsonl"], "rank=auto is for a prior"),
        (["--for", "nullu", "--batch-size", "4", "--pairs", "p.jsonl"], "--batch-size has nothing to do"),
        (["--for", "nullu", "--svd", "exact", "--pairs", "p.jsonl"], "--svd are of a prior, and nullu needs none"),
        (["--for", "tether", "--questions", "q.jsonl", "--pairs", "p.jsonl"], "--pairs are not needed for what tether needs"),
        (["--for", "vcd"], "needs nothing that is learnt"),
        (["--for", "vanilla"], "needs nothing that is learnt"),
        (["--for", "tether"], "mgap fit --for tether --model M --images FOLDER --questions FILE --out DIR"),
        (["--for", "tether", "--rank", "3", "--push", "a/b"], "--rank, --push are of a prior, and tether needs none"),
        (["--for", "asd", "--questions", "q.jsonl"], "mgap.Steering.fit"),
        (["--questions", "q.jsonl"], "--questions are not needed for what mgap needs"),
        (["--count", "0"], "count=0"),
        (["--count", "61"], "default has 60 prompts, not 61"),
    ],
)
def test_fit_refuses_before_the_model_is_loaded(run, tmp_path, words, said):
    status, _, err = run("fit", "-m", "M", "-o", tmp_path, *words)
    assert status == 2
    assert said in err
    assert "loading" not in err


def test_learning_what_nothing_learns_is_refused(tiny_model):
    with pytest.raises(MgapError, match="unknown thing to learn"):
        learn("weather", tiny_model)
