"""Tallies of yes/no answers by split, and the figures of the published scorers where they are not ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.pope.conventions import CONVENTIONS, score_as
from mgap.benchmarks.pope.scorer import PopeScorer, unequal_recall
from mgap.benchmarks.tally import compare
from mgap.benchmarks.yesno_parsers import PARSERS
from mgap.errors import BenchmarkError, SettingError
from mgap.registry import SCORERS
from mgap.types import Sample
from tests.benchmarks.labelled import score_labels

ASKED = [("a", "yes"), ("a", "no"), ("b", "yes"), ("b", "no"), ("c", "yes"), ("c", "no")]


def samples_of(group, asked=ASKED):
    return [Sample(f"{group}/{place}", image, "?", group, label) for place, (image, label) in enumerate(asked, start=1)]


def answers_to(samples, texts):
    return {sample.id: text for sample, text in zip(samples, texts, strict=True)}


def test_figures_by_split_by_hand():
    samples = samples_of("random") + samples_of("popular")
    said = ["Yes, it is", "No", "No", "Yes", "yes", "perhaps"] + ["No"] * 6
    tallies = PopeScorer().tally(samples, answers_to(samples, said))
    assert list(tallies) == ["random", "popular"]
    rates = tallies["random"].rates()
    assert {name: rate.value for name, rate in rates.items()} == pytest.approx(
        {"accuracy": 3 / 6, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "yes_ratio": 3 / 6, "words": 8 / 6}
    )
    assert (rates["precision"].of, rates["recall"].of, rates["accuracy"].of) == (3, 3, 6)
    assert (tallies["random"].unparsed, tallies["random"].pictures) == (1, ("a", "b", "c"))
    assert tallies["random"].right["random/6"] is False
    silent = tallies["popular"].rates()
    assert (silent["accuracy"].value, silent["precision"].of, silent["f1"].value) == (0.5, 0, 0.0)
    assert (tallies["random"].figures["yes_ratio"].better, tallies["random"].figures["words"].percent) == ("", False)


def test_two_methods_are_compared_on_the_same_questions():
    samples = samples_of("random")
    ours = PopeScorer().tally(samples, answers_to(samples, ["Yes", "No"] * 3))["random"]
    plain = PopeScorer().tally(samples, answers_to(samples, ["Yes", "Yes"] * 3))["random"]
    found = compare(ours, plain)
    assert (found.gained, found.lost) == (3, 0)
    assert found.differences["accuracy"].value == pytest.approx(0.5)


def test_against_one_that_is_always_wrong_the_interval_is_the_figures_own():
    asked = [(str(place), "yes") for place in range(60)]
    samples = samples_of("random", asked)
    said = ["Yes" if place % 3 else "No" for place in range(60)]
    ours, never = (PopeScorer().tally(samples, answers_to(samples, texts))["random"] for texts in (said, ["No"] * 60))
    own, found = ours.rates()["accuracy"], compare(ours, never).differences["accuracy"]
    assert (found.value, found.low, found.high) == (own.value, own.low, own.high)
    assert own.low < own.value < own.high


def test_methods_that_answered_other_questions_about_the_same_pictures_are_not_compared():
    all_asked = samples_of("random")
    ours, fewer = (PopeScorer().tally(asked, answers_to(asked, ["Yes"] * len(asked)))["random"]
                   for asked in (all_asked, all_asked[:5]))  # fmt: skip
    with pytest.raises(SettingError, match="different samples"):
        compare(ours, fewer)


def test_the_parser_decides():
    samples = samples_of("random", [("a", "no")])
    texts = {"random/1": "There isn't a dog."}
    right = {name: PopeScorer(name).tally(samples, texts)["random"].right["random/1"] for name in PARSERS}
    assert {name for name, is_right in right.items() if is_right} == {
        "first-sentence",
        "opera",
        "refusals-unread",
        "yes-anywhere",
    }


def test_the_registry_has_the_scorer_and_its_settings_are_checked():
    scorer = SCORERS.get("yesno").of({}, parser="opera")
    assert scorer == PopeScorer("opera")
    assert scorer.settings() == {"parser": "opera"}
    with pytest.raises(SettingError, match="unknown setting 'language' of yes/no scores: choose from parser"):
        PopeScorer.of({}, language="en")
    with pytest.raises(SettingError, match="choose from first-sentence"):
        PopeScorer.of({}, parser="strict")


def test_missing_answers_and_other_labels_are_refused():
    samples = samples_of("random")
    with pytest.raises(BenchmarkError, match="5 of 6 samples have no answer, first 'random/2'"):
        PopeScorer().tally(samples, {"random/1": "Yes"})
    with pytest.raises(SettingError, match="1 of 1 labels, 'maybe' first"):
        PopeScorer().tally(samples_of("x", [("a", "maybe")]), {"x/1": "Yes"})


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["yes", "no"]), st.sampled_from(["yes", "no", None])), min_size=1
    )
)
def test_bare_verdicts_and_the_scorer_give_the_same_rates(asked):
    samples = samples_of("random", [(image, label) for image, label, _ in asked])
    texts = answers_to(samples, [verdict or "hm" for _, _, verdict in asked])
    rates = PopeScorer().tally(samples, texts)["random"].rates()
    short = score_labels([label for _, label, _ in asked], [verdict for *_, verdict in asked], [image for image, *_ in asked])
    assert all(getattr(short, name) == rate for name, rate in rates.items() if name != "words")


def tallies_of(**said):
    samples = [sample for split in said for sample in samples_of(split)]
    return samples, PopeScorer().tally(samples, answers_to(samples, [text for texts in said.values() for text in texts]))


def test_unequal_recall_of_the_same_questions_is_told():
    same, less = ["Yes", "No"] * 3, ["Yes", "No"] * 2 + ["No", "No"]
    assert unequal_recall(*tallies_of(random=same, popular=["Yes", "Yes"] * 3, adversarial=same)) is None
    told = unequal_recall(*tallies_of(random=same, popular=same, adversarial=less))
    assert "random 100.00, popular 100.00, adversarial 66.67" in told
    assert unequal_recall(*tallies_of(random=same, kitchen=less)) is None  # nobody said that a kitchen has the same questions
    assert unequal_recall([], {}) is None


def test_recall_of_other_questions_may_differ():
    samples = samples_of("random", [("a", "yes"), ("b", "yes")]) + samples_of(
        "popular", [("a", "yes"), ("b", "no"), ("c", "yes")]
    )
    tallies = PopeScorer().tally(samples, answers_to(samples, ["Yes", "No", "Yes", "No", "No"]))
    assert unequal_recall(samples, tallies) is None, "both ask about a, and say yes"
    tallies = PopeScorer().tally(samples, answers_to(samples, ["Yes", "No", "No", "No", "Yes"]))
    assert "random 100.00, popular 0.00" in unequal_recall(samples, tallies)
    apart = samples_of("random", [("a", "yes")]) + samples_of("popular", [("b", "yes")])
    assert unequal_recall(apart, PopeScorer().tally(apart, answers_to(apart, ["Yes", "No"]))) is None


def test_published_scorers_by_hand():
    labels, texts = ["yes", "yes", "yes", "no", "no", "no"], ["Yes", "No", "A dog.", "No", "Yes", None]
    assert score_as("original", labels, texts) == pytest.approx(
        {
            "TP": 2,
            "FP": 1,
            "TN": 1,
            "FN": 1,
            "accuracy": 3 / 6,
            "precision": 2 / 3,
            "recall": 2 / 3,
            "f1": 2 / 3,
            "yes_ratio": 3 / 6,
        }
    )
    harness = {"accuracy": 2 / 6, "precision": 1 / 2, "recall": 1 / 2, "f1": 1 / 2, "yes_ratio": 3 / 6}
    assert score_as("lmms_eval", labels, texts) == pytest.approx(harness)  # the dog is missing from its recall
    assert score_as("vlmevalkit", labels, texts)["recall"] == pytest.approx(1 / 3)
    read = {"TP": 1, "FP": 1, "TN": 1, "FN": 1, **dict.fromkeys(("accuracy", "precision", "recall", "f1", "yes_ratio"), 0.5)}
    assert score_as("repope", labels, texts) == pytest.approx(read)  # neither the dog nor the silence is in any figure
    assert score_as("vcd", labels, texts)["unknown"] == pytest.approx(1 / 6)  # the one that was not answered
    assert set(CONVENTIONS) == set(PARSERS) - {"first-sentence", "refusals-unread", "yes-anywhere"}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_where_no_yes_is_right_a_scorer_stops_or_says_zero(name):
    for texts in (["No", "No"], ["No", "Yes"]):
        found = score_as(name, ["yes", "no"], texts)
        if name in ("original", "llava", "opera", "vcd", "repope"):
            assert found == {"error": "ZeroDivisionError"}
        else:
            assert (found["precision"], found["recall"], found["f1"]) == (0, 0, 0)


def test_published_scorers_refuse_what_does_not_fit():
    with pytest.raises(SettingError, match="no published scorer 'first-sentence'"):
        score_as("first-sentence", [], [])
    with pytest.raises(SettingError, match="2 labels and 1 answers"):
        score_as("vcd", ["yes", "no"], ["Yes"])
