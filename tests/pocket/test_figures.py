"""The rule picks as it says, the figures survive their file, and the card shows them as they are."""

import sys
from dataclasses import replace

import pytest
import yaml

import mgap
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.statistics import Rate
from mgap.errors import CorruptFile, SettingError
from mgap.pocket.benchmark import DEVELOPMENT, TEST
from mgap.pocket.corpus import CORPUS
from mgap.pocket.evaluation import evaluate_pope
from mgap.pocket.figures import ALPHAS, NULLS, SHIFTS, CardFigures, Trial, fit_prior, measure, mgap_at, pick
from mgap.registry import EMBEDDED
from research.card import card_text, write_card
from tests import processes


@pytest.fixture(scope="module")
def seen():
    return []


@pytest.fixture(scope="module")
def figures(model, seen):
    return measure(model, scenes=4, development=3, odd_scenes=30, progress=lambda *step: seen.append(step))


def test_the_rule_takes_the_highest_mean_and_of_equal_ones_the_smallest(model):
    choice = pick(model, count=3)
    assert {(t.null_image, t.alpha) for t in choice.trials} == {(null, alpha) for null in NULLS for alpha in ALPHAS}
    best = [t for t in choice.trials if t.mean == max(trial.mean for trial in choice.trials)]
    assert choice.alpha == min(t.alpha for t in best)
    assert choice.null_image == min((t.null_image for t in best if t.alpha == choice.alpha), key=NULLS.index)
    strong = evaluate_pope(model, {"it": mgap_at(fit_prior(model, "no_image"), 8.0)}, DEVELOPMENT, 3)
    (same,) = (t for t in choice.trials if (t.null_image, t.alpha) == ("no_image", 8.0))
    assert same.f1 == {split: strong[split]["it"].f1.value for split in SPLITS}
    assert {t.shift for t in choice.shifts} == set(SHIFTS)
    best = [t for t in choice.shifts if t.mean == max(trial.mean for trial in choice.shifts)]
    assert abs(choice.shift) == min(abs(t.shift) for t in best)
    assert Trial({"random": 0.9, "popular": 0.6, "adversarial": 0.3}, "no_image", 1.0).mean == pytest.approx(0.6)


@pytest.mark.parametrize("nothing", [{"alphas": ()}, {"nulls": ()}, {"shifts": ()}])
def test_nothing_to_pick_from_is_refused(model, nothing):
    with pytest.raises(SettingError, match="to pick from"):
        pick(model, **nothing)


def test_a_strength_above_one_is_meant_and_warns_of_nothing(prior):
    assert mgap_at(prior, 8.0).alpha == 8.0
    assert mgap_at(prior, 0.75) == mgap.MGAP(prior)


def test_everything_is_measured_on_test_scenes(figures, model):
    assert list(figures.captions) == list(figures.odd_colours) == ["vanilla", "paper", "picked"]
    asked = ["vanilla", "bias", "paper", "picked"]
    assert list(figures.amber["colour"]) == asked
    assert all(list(figures.pope[split]) == list(figures.pope_held_out[split]) == asked for split in SPLITS)
    vanilla = evaluate_pope(model, {"vanilla": None}, TEST, 4)
    assert {split: figures.pope[split]["vanilla"] for split in SPLITS} == {s: vanilla[s]["vanilla"] for s in SPLITS}
    assert [(prior.rank, prior.prompts) for prior in figures.priors.values()] == [(5, 50)] * 2
    assert figures.priors["paper"].null_image == "black336"
    assert figures.priors["picked"].null_image == figures.choice.null_image
    assert figures.versions["mgap"] == mgap.__version__


def test_progress_reaches_the_end_of_every_stage(seen, figures):
    last = {label: (done, total) for label, done, total in seen}
    assert len(last) == 13
    assert all(done == total for done, total in last.values())


def test_figures_survive_their_file(figures, tmp_path):
    figures.save(tmp_path)
    assert CardFigures.load(tmp_path) == figures


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 1}'])
def test_a_broken_file_is_refused(tmp_path, text):
    (tmp_path / "figures.json").write_text(text)
    with pytest.raises(CorruptFile, match="measure it again"):
        CardFigures.load(tmp_path)


def test_a_card_shows_every_figure_as_it_is(figures, family, tmp_path):
    write_card(tmp_path / "new", family, figures)
    card = (tmp_path / "new" / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == "apache-2.0"
    assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "image-text-to-text")
    assert family.replace("-", "_") in front["tags"]
    rates = [rate for scores in (figures.pope, figures.pope_held_out) for of in scores.values() for score in of.values()
             for rate in (score.accuracy, score.precision, score.recall, score.f1, score.yes_ratio)]  # fmt: skip
    rates += [rate for score in figures.captions.values() for rate in (score.chair_s, score.chair_i, score.recall)]
    rates += [rate for found in figures.odd_colours.values() for rate in (found.usual, found.true, found.other)]
    rates += [score.accuracy for of in figures.amber.values() for score in of.values()]
    assert all(f"| {rate} |" in card for rate in rates)
    assert f"{100 * CORPUS.invent:.0f}% of the questions" in card
    assert f'mgap.load("pocket/{family}")' in card
    assert f"research.training {family} --out FOLDER" in card
    assert "900,000 to 999,999" in card
    assert figures.model not in card  # it was measured in a folder of this machine
    assert CardFigures.load(tmp_path / "new").model == f"pocket/{family}"


def test_a_card_shows_harm_too(figures):
    worse = replace(figures.pope["random"]["picked"], f1=Rate(0.123, 0.1, 0.15, 24))
    changed = replace(figures, pope={**figures.pope, "random": {**figures.pope["random"], "picked": worse}})
    assert "12.3 [10.0, 15.0]" in card_text(changed)


@pytest.mark.long
def test_the_command_measures_a_folder(checkpoints, tmp_path):
    sizes = ["--scenes", "1", "--development", "1", "--odd-scenes", "8", "--device", "cpu"]
    command = [sys.executable, "-m", "research.card", str(checkpoints["llava"]), "--out", str(tmp_path), *sizes]
    done = processes.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "POPE, held-out style" in done.stderr
    assert CardFigures.load(tmp_path).scenes == 1


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_trained_models_are_what_their_cards_say(name):
    folder = EMBEDDED[name]
    if not folder.exists():
        pytest.skip(f"{name} has no trained weights in this checkout")
    figures = CardFigures.load(folder)
    assert figures.model == name
    assert figures.scenes >= 500
    assert (folder / "README.md").read_text() == card_text(figures)
    assert (folder / "model.safetensors").stat().st_size <= 16 * 2**20
    vanilla = {split: figures.pope[split]["vanilla"] for split in SPLITS}
    assert vanilla["random"].accuracy.value >= 0.93
    assert vanilla["adversarial"].precision.value <= 0.80
    assert vanilla["popular"].precision.high < vanilla["random"].precision.low
    assert 0.05 <= figures.captions["vanilla"].chair_i.value <= 0.30
    assert figures.odd_colours["vanilla"].usual.low > 2 / 11


@pytest.mark.long
@pytest.mark.parametrize("name", EMBEDDED)
def test_the_trained_models_answer_as_measured(name):
    folder = EMBEDDED[name]
    if not folder.exists():
        pytest.skip(f"{name} has no trained weights in this checkout")
    figures = CardFigures.load(folder)
    scores = evaluate_pope(mgap.load(name, device="cpu"), {"vanilla": None}, TEST, 20)
    measured = figures.pope["random"]["vanilla"].accuracy.value
    found = scores["random"]["vanilla"]
    assert found.unparsed == 0
    assert found.accuracy.low - 0.05 <= measured <= found.accuracy.high + 0.05
