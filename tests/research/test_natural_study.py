"""Conditions and ablations measure what evaluation does, save what they measure, and draw it."""

from dataclasses import replace

import pytest
from PIL import Image

import mgap
from mgap.benchmarks.statistics import Rate
from mgap.errors import CorruptFile, SettingError
from mgap.pocket.benchmark import REPORT, calibration_prompts
from mgap.pocket.difficulty import Difficulty
from mgap.pocket.evaluation import evaluate_captions, evaluate_odd_colours, evaluate_pope
from mgap.pocket.figures import fit_prior, mgap_at
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS
from research.frontier.choosing import Choices, Tried
from research.frontier.contenders import CAPTIONS, PUBLISHED, QUESTIONS
from research.natural.ablation import BIAS, PLAIN, ablate, table
from research.natural.conditions import (
    AS_USUAL,
    FILE,
    SERIES,
    Conditions,
    Measured,
    measure_condition,
    parse_condition,
)
from research.natural.conditions_figure import draw_conditions, points_of
from research.natural.null_images import least_sure, measure_doubt
from research.natural.null_images import table as table_of_nulls

pytestmark = pytest.mark.long

SIZES = {"scenes": 2, "captions": 2, "colours": 60, "fit": 2}
CHOSEN = {
    "vanilla": {QUESTIONS: "plain", CAPTIONS: "plain"},
    "bias": {QUESTIONS: "shift -1.5"},
    "mgap": {
        PUBLISHED: "alpha 0.75, black336, rank 5",
        QUESTIONS: "alpha 3, mean_colour, rank 1",
        CAPTIONS: "alpha 4, noise, rank 5",
    },
    "vcd": {QUESTIONS: "alpha 0.25", CAPTIONS: "alpha 0.5"},
    "blind": {QUESTIONS: "rho 2, black_same_size"},  # nothing passes for captions
    "prompt-prior": {QUESTIONS: "uncentred, rho 2, black_same_size, rank 1", CAPTIONS: "centred, rho 0.5, noise, rank 1"},
}
CHOICES = Choices({}, {family: Tried([], [], chosen) for family, chosen in CHOSEN.items()})
HARD = Difficulty(noise=0.2)


@pytest.fixture(scope="module")
def loaded():
    return mgap.load("pocket/llava", device="cpu", dtype="float32")


def test_a_condition_is_what_evaluation_says_of_such_pictures(loaded):
    found = measure_condition(loaded, CHOICES, HARD, SIZES)
    assert list(found) == list(SERIES)
    black, mean, noise = (fit_prior(loaded, null) for null in ("black336", "mean_colour", "noise"))
    asking = {"MGAP, published": mgap.MGAP(black), "MGAP": mgap_at(mean.truncate(1), 3.0), "bias": mgap.Bias(shift=-1.5)}
    pope = evaluate_pope(loaded, {"plain": None, **asking}, REPORT, 2, difficulty=HARD)
    for name in pope["adversarial"]:
        assert (found[name].f1, found[name].random_f1) == (pope["adversarial"][name].f1, pope["random"][name].f1)
    telling = {"plain": None, "MGAP": mgap_at(noise, 4.0)}
    chair = evaluate_captions(loaded, telling, REPORT, 2, difficulty=HARD, max_new_tokens=MAX_ANSWER_TOKENS)
    colours = evaluate_odd_colours(loaded, telling, REPORT, 60, difficulty=HARD)
    for name in telling:
        assert (found[name].chair_i, found[name].recall) == (chair[name].score.chair_i, chair[name].score.recall)
        assert (found[name].usual_colour, found[name].true_colour) == (colours[name].usual, colours[name].true)
    for name in ("bias", "blind"):  # leaves captions alone; nothing was chosen for them
        assert (found[name].f1 is None, found[name].chair_i, found[name].usual_colour) == (False, None, None)


def test_conditions_are_kept_beside_those_of_other_processes(tmp_path):
    rate = Rate(0.5, 0.4, 0.6, 10)
    measured = dict.fromkeys(SERIES, Measured(rate, rate, rate, rate, rate, rate))
    empty = Conditions({}, {})
    empty.add(tmp_path, AS_USUAL, measured)
    assert list(empty.add(tmp_path, "noise 0.3", measured).found) == [AS_USUAL, "noise 0.3"]
    assert list(Conditions.load(tmp_path).found) == [AS_USUAL, "noise 0.3"]
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(CorruptFile, match="no conditions"):
        Conditions.load(tmp_path)


def test_both_figures_hold_all_that_was_measured(tmp_path):
    def measured(value):
        rate = Rate(value, value / 2, min(1.0, 2 * value), 10)
        one = Measured(rate, rate, rate, rate, rate, rate)
        return {name: replace(one, chair_i=None, usual_colour=None) if name == "bias" else one for name in SERIES}

    names = {
        "noise 0.3": 0.3,
        AS_USUAL: 0.1,
        "noise 0.05": 0.2,
        "size 0.5": 0.4,
        "step 500": 0.2,
        "step 100": 0.4,
        "step 250": 0.3,
    }
    conditions = Conditions({}, {name: measured(value) for name, value in names.items()})
    assert list(points_of(conditions, "noise")) == [0.0, 0.05, 0.3]
    assert list(points_of(conditions, "size")) == [0.5, 1.0]
    assert list(points_of(conditions, "step")) == [100.0, 250.0, 500.0]  # the usual pictures are of the finished model
    difficulty, training = draw_conditions(conditions)
    assert (difficulty.name, training.name) == ("difficulty", "training")
    series = 3 * len(SERIES) - 2  # of three figures, of which a bias has one
    assert len(training.rows) == len(difficulty.rows) == 3 * series  # noise alone: two points are no line
    assert ("noise 0.3", "plain", "f1", 30.0, 15.0, 60.0) in difficulty.rows
    assert {path.suffix for path in difficulty.save(tmp_path)} == {".csv", ".pdf", ".png", ".svg"}
    del conditions.found["step 250"]
    assert [figure.name for figure in draw_conditions(conditions)] == ["difficulty"]


def test_how_sure_a_model_is_of_what_it_cannot_see(loaded):
    black, grey = measure_doubt(loaded, "black336"), measure_doubt(loaded, "mean_colour")
    answers = loaded.answers([Image.new("RGB", (336, 336))] * 10, calibration_prompts(10), max_new_tokens=1)
    assert 0 < sum(str(answer).lower().startswith("yes") for answer in answers) < 10
    assert black.entropy_nats > 0.5 > grey.entropy_nats > 0  # it was taught to guess from black pictures
    assert least_sure({"grey": grey, "black": black}) == "black"
    assert "| pocket/llava | `black336` | " in table_of_nulls(["pocket/llava"], "cpu")


def test_a_condition_is_a_knob_with_a_value():
    assert parse_condition("noise=0.10") == ("noise 0.1", Difficulty(noise=0.1))
    for words in ("noise", "fog=1", "noise=much", "noise=2"):
        with pytest.raises(SettingError):
            parse_condition(words)


@pytest.mark.filterwarnings("ignore:alpha=8:UserWarning")
def test_variants_differ_from_their_setting_in_one_thing(loaded):
    settings = {"published": (0.75, "black336"), "strong": (8.0, "mean_colour")}
    rows = ablate(loaded, settings, -1.5, scenes=3, captions=1, first=700_000)
    parts = ["", ", w/o protection", ", w/o gate", ", w/o both", *(f", K = {k}" for k in (1, 3, 10))]
    parts += [f", N = {n}" for n in (10, 100, 200)]
    assert list(rows) == [PLAIN, BIAS, *(f"{setting}{part}" for setting in ("published", "strong") for part in parts)]
    strong = fit_prior(loaded, "mean_colour")
    methods = {
        PLAIN: None,
        BIAS: mgap.Bias(shift=-1.5),
        "published": mgap.MGAP(fit_prior(loaded)),
        "strong, K = 1": mgap_at(strong.truncate(1), 8.0),
        "strong, w/o gate": replace(mgap_at(strong, 8.0), gate=False),
    }
    scores = evaluate_pope(loaded, methods, 700_000, 3)
    for name in methods:
        assert rows[name].figures["adversarial"]["f1"] == scores["adversarial"][name].f1
    since = rows["strong, w/o gate"]
    assert since.varies == "strong"
    expected = scores["adversarial"]["strong, w/o gate"].f1.value - scores["adversarial"][PLAIN].f1.value
    assert since.from_plain["adversarial"]["f1"].value == pytest.approx(expected)
    assert rows["strong"].from_setting["adversarial"]["f1"].value == 0
    assert "captions" not in rows[BIAS].figures
    lines = table(rows).splitlines()[2:]
    assert len(lines) == len(rows) + 2
    assert len({line.count("|") for line in lines}) == 1
