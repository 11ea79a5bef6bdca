"""Every registered method is measured, what was measured is kept, and the table in the docs is what was measured."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import mgap
from mgap.benchmarks.pope.questions import SPLITS
from mgap.errors import CorruptFile
from mgap.pocket.benchmark import TEST
from mgap.pocket.evaluation import evaluate_captions, evaluate_pope
from mgap.pocket.figures import CardFigures
from mgap.pocket.fit_map import fit_pocket_map
from mgap.pocket.fit_steering import fit_steering, label_caption
from mgap.pocket.scenes import make_scene, render
from mgap.registry import EMBEDDED, METHODS
from research.comparison import (
    CHOSEN_IN_FRONTIER,
    FILE,
    GIVEN,
    contenders,
    counting,
    load_results,
    main,
    measure_method,
    save_results,
    table,
)
from research.frontier.contenders import FAMILIES
from tests.packages import installed

pytestmark = pytest.mark.long

DOCS = Path(__file__).parents[2] / "docs" / "comparison"
LEARNING = '''
    """A bias whose shift is learnt from the model, and one that holds a prior."""
    import json
    from dataclasses import dataclass
    from pathlib import Path
    from typing import ClassVar

    from mgap.methods.base import Need
    from mgap.methods.bias import Bias
    from mgap.priors.subspace import Subspace


    @dataclass(frozen=True)
    class Depth:
        layers: int

        def save(self, folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / "depth.json").write_text(json.dumps(self.layers))

        @classmethod
        def load(cls, folder):
            return cls(json.loads((Path(folder) / "depth.json").read_text()))


    def learn_depth(model, *, progress=None, batch_size=1):
        return Depth(len(model.backbone.layers))


    @dataclass(frozen=True)
    class Deep(Bias):
        name: ClassVar[str] = "deep"
        needs: ClassVar[dict] = {"depth": Need("depth")}
        shift: float = -1.0
        depth: Depth = None


    @dataclass(frozen=True)
    class Held(Bias):
        name: ClassVar[str] = "held"
        shift: float = -1.0
        prior: Subspace = None
'''


@pytest.fixture(scope="module")
def choice():
    return CardFigures.load(EMBEDDED["pocket/llava"]).choice


@pytest.fixture(scope="module")
def results(model, choice):
    named = contenders(choice, few=False)
    return {name: measure_method(model, named[name], scenes=1, captions=2) for name in ("vanilla", "vcd")}


def test_every_registered_method_takes_part_here_or_where_settings_are_chosen(choice):
    here = set(contenders(choice, few=False))
    assert set(METHODS.names()) - here == {"given", *CHOSEN_IN_FRONTIER} <= {contender.family for contender in FAMILIES}
    assert set(mgap.Given.presets) == set(GIVEN) <= here
    assert contenders(choice, few=True)["haltrapper"].make(None, None).n == 5
    assert contenders(choice, few=False)["bias"].make(None, None) == mgap.Bias(shift=choice.shift)


@pytest.fixture
def learning_methods(tmp_path):
    """A package whose methods need something learnt."""
    points = {
        "mgap.methods": {"deep": "learning_methods:Deep", "held": "learning_methods:Held"},
        "mgap.learnt": {"depth": "learning_methods:Depth"},
        "mgap.pocket_learners": {"depth": "learning_methods:learn_depth"},
    }
    with installed(tmp_path / "site", {"learning_methods": LEARNING}, points):
        yield


def test_a_new_method_that_needs_something_learnt_is_measured_like_the_others(learning_methods, model, choice):
    named = contenders(choice, few=False)
    assert named["deep"].make(model, None).depth.layers == len(model.backbone.layers)
    prior = named["held"].make(model, None).prior
    assert isinstance(prior, mgap.Subspace)
    assert prior.rank == 5
    result = measure_method(model, named["deep"], scenes=1, captions=1)
    assert (result.label, result.captions.captions) == ("deep", 1)


@pytest.mark.parametrize("preset", GIVEN)
def test_a_preset_of_given_is_measured_with_stand_ins(preset, model, choice, results):
    result = measure_method(model, contenders(choice, few=False, scenes=2)[preset], scenes=1, captions=2)
    assert (result.label, result.forwards) == (preset, GIVEN[preset])
    assert result.pope["random"].questions == 6
    assert result.passed > results["vanilla"].passed


def test_a_result_is_what_evaluation_gives(model, results):
    methods = {"plain": None, "vcd": mgap.VCD()}
    pope = evaluate_pope(model, methods, TEST, 1)
    captions = evaluate_captions(model, methods, TEST, 2)
    for name, key in (("vanilla", "plain"), ("vcd", "vcd")):
        assert results[name].pope == {split: pope[split][key] for split in SPLITS}
        assert results[name].captions == captions[key].score
    assert (results["vanilla"].forwards, results["vcd"].forwards) == (1.0, 2.0)
    assert results["vcd"].passed > 1.5 * results["vanilla"].passed


def test_tokens_that_pass_the_decoder_are_counted(model, picture):
    prompt = model.backbone.encode([picture], ["What?"])["input_ids"].shape[1]
    with counting(model) as plain:
        length = len(model.answer(picture, "What?", max_new_tokens=4).token_ids)
    assert plain == [prompt + length - 1]
    with counting(model) as twice, model.using(mgap.VCD(alpha=0.0, beta=0.0)):
        model.answer(picture, "What?", max_new_tokens=4)
    assert twice == [2 * plain[0]]
    model.answer(picture, "What?", max_new_tokens=4)
    assert twice == [2 * plain[0]]


def test_results_survive_their_file(results, tmp_path):
    assert load_results(tmp_path) == {}
    save_results(tmp_path, results)
    assert load_results(tmp_path) == results
    (tmp_path / FILE).write_text('{"vcd": 3}')
    with pytest.raises(CorruptFile, match="name another folder"):
        load_results(tmp_path)


def test_the_table_has_a_row_a_method(results):
    head, _, plain, vcd = table(results).splitlines()
    assert head.startswith("| method | random: F1")
    assert plain.startswith("| vanilla | ")
    assert plain.endswith(" | 1 | 1.0 |")
    assert str(results["vcd"].captions.chair_i) in vcd
    changed = replace(results["vcd"], label="worse", passed=3 * results["vanilla"].passed)
    assert table({"vanilla": results["vanilla"], "worse": changed}).endswith(" | 2 | 3.0 |")


def test_the_command_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    def measure(name):
        sizes = ["--scenes", "1", "--captions", "1", "--device", "cpu", "--method", "vanilla", "--method", name]
        monkeypatch.setattr(sys, "argv", ["comparison", "pocket/llava", "--out", str(tmp_path), *sizes])
        main()
        return capsys.readouterr().out

    assert "bias: measured\n" in measure("bias")
    assert measure("dola").startswith("vanilla: measured before\ndola: measured\n")
    assert list(load_results(tmp_path)) == ["vanilla", "bias", "dola"]
    with pytest.raises(SystemExit, match="2"):
        measure("nothing")
    assert capsys.readouterr().err.splitlines()[-1].startswith("unknown method 'nothing': choose from vanilla, ")


def test_captions_are_labelled_word_by_word():
    scene = next(s for s in map(make_scene, range(100)) if {"dog"} < set(s.names) and "cat" not in s.names)
    text = "A farm. There is a brown dog and a cat, two dogs and a hot dog."
    hot = "hot dog" in scene.names
    labelled = [piece for piece in label_caption(text, scene) if piece[1] is not None]
    assert labelled == [("dog", True), ("cat", False), ("dogs", True), ("hot dog", hot)]
    assert "".join(piece for piece, _ in label_caption(text, scene)) == text
    assert label_caption("", scene) == []


def test_steering_is_fitted_on_the_models_own_captions():
    model = mgap.load("pocket/llava", device="cpu")
    seen = []
    steering = fit_steering(model, count=12, progress=lambda *step: seen.append(step))
    assert steering.vectors.shape == (6, 256)
    assert min(steering.counts) > 0
    assert {(label, total) for label, _, total in seen} == {("captions for steering", 12), ("steering", 12)}
    picture = render(make_scene(TEST))
    with model.using(mgap.ASD(steering=steering)):
        assert model.answer(picture, "Describe this image.", max_new_tokens=4).token_ids


def test_the_map_of_the_predicted_prior_is_fitted_on_answers_about_development_scenes():
    model, seen = mgap.load("pocket/llava", device="cpu"), []
    found = fit_pocket_map(model, count=6, progress=lambda *step: seen.append(step))
    assert (found.origin["pictures"], found.origin["prompts"]) == (6, 42)
    assert found.count > 42
    assert {(label, total) for label, _, total in seen} == {("prompts, black336", 50), ("pairs for the map", 42)}
    with model.using(mgap.PredictedPrior(found)):
        assert model.answer(render(make_scene(TEST)), "Describe this image.", max_new_tokens=4).token_ids


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_table_in_the_docs_is_what_was_measured(name):
    results = load_results(DOCS / name.removeprefix("pocket/"))
    assert set(results) == set(contenders(CardFigures.load(EMBEDDED[name]).choice, few=False))
    assert all(score.questions == 3000 for result in results.values() for score in result.pope.values())
    assert all(result.captions.captions == 200 for result in results.values())
    assert table(results) in (DOCS / "README.md").read_text()
