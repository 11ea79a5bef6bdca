"""MME's readers against the published verdicts, and its figures where one can count them by hand."""

import json

import pytest

from mgap.benchmarks.mme.questions import ALL, HALLUCINATION, PERCEPTION
from mgap.benchmarks.mme.readers import READERS
from mgap.benchmarks.mme.scorer import MmeScorer
from mgap.benchmarks.tally import compare
from mgap.benchmarks.yesno_parsers import PARSERS
from mgap.errors import BenchmarkError, SettingError
from mgap.types import Sample


def samples(tasks=HALLUCINATION, pictures=10):
    return [
        Sample(f"{task}/{n}.jpg/{k + 1}", f"{task}/{n}.jpg", "Is it?", task, ("yes", "no")[k])
        for task in tasks
        for n in range(pictures)
        for k in (0, 1)
    ]


def rates(texts, asked=None, parser="mme"):
    tallies = MmeScorer(parser).tally(samples() if asked is None else asked, texts)
    return {name: {figure: rate.value for figure, rate in tally.rates().items()} for name, tally in tallies.items()}


def test_every_published_verdict_holds(shared):
    cases = json.loads((shared / "fixtures" / "benchmarks" / "mme" / "parser_edge_cases.json").read_text())
    for case in cases:
        for name, verdict in case["verdicts"].items():
            expected = None if verdict in ("other", "unknown") else verdict
            assert READERS[name](case["text"], "yes") == expected, (name, case["text"])
    assert len(cases) > 50


@pytest.mark.parametrize(
    ("text", "mme", "lmms_eval"),
    [
        ("Yes", "yes", "yes"),
        ("NO.", "no", "no"),
        ("  Yes", None, "yes"),
        ("Y", None, "yes"),
        ("n.", None, "no"),
        ("N.o", None, "no"),
        ("Snow", "no", "no"),
        ("Eyes", "yes", "yes"),
        ("There is none", None, None),
        ("", None, None),
    ],
)
def test_the_first_four_characters_decide(text, mme, lmms_eval):
    assert (READERS["mme"](text, ""), READERS["lmms_eval"](text, "")) == (mme, lmms_eval)


def test_ours_and_vlmevalkits_reader_are_those_of_pope_and_lmms_evals_is_not():
    assert READERS["first-sentence"] is PARSERS["first-sentence"]
    assert READERS["vlmevalkit"] is PARSERS["vlmevalkit"]
    assert PARSERS["lmms_eval"]("Yes, it is", "yes") is None
    assert READERS["lmms_eval"]("Yes, it is", "yes") == "yes"


@pytest.mark.parametrize(
    ("answers", "accuracy", "plus", "says_yes"),
    [(("Yes", "No"), 1, 1, 0.5), (("Yes", "Yes"), 0.5, 0, 1), (("No", "No"), 0.5, 0, 0), (("Hm", "Hm"), 0, 0, 0)],
)
def test_one_sided_answers_get_half_and_unread_ones_nothing(answers, accuracy, plus, says_yes):
    asked = samples()
    found = rates({sample.id: answers[sample.truth == "no"] for sample in asked})
    assert list(found) == [*HALLUCINATION, "hallucination"]
    for task in HALLUCINATION:
        assert (found[task]["accuracy"], found[task]["accuracy_plus"], found[task]["yes_ratio"]) == (accuracy, plus, says_yes)
        assert found[task]["score"] == 100 * accuracy + 100 * plus
    total = found["hallucination"]
    assert list(total) == [*HALLUCINATION, "object_level", "attribute_level", "total"]
    assert total["object_level"] == total["attribute_level"] == total["total"] / 2 == 200 * (accuracy + plus)


def test_one_wrong_answer_costs_its_picture_too():
    asked = samples(pictures=30)
    texts = {sample.id: sample.truth for sample in asked} | {"count/3.jpg/2": "Yes"}
    found = rates(texts, asked)
    assert found["count"]["score"] == pytest.approx(200 - 100 / 60 - 100 / 30)
    assert found["hallucination"]["total"] == pytest.approx(795)
    assert found["hallucination"]["object_level"] == pytest.approx(395)


def test_the_order_of_the_samples_is_no_matter():
    asked = samples()
    texts = {sample.id: sample.truth if number % 7 else "Hm" for number, sample in enumerate(asked)}
    assert rates(texts, asked[::-1]) == {name: pytest.approx(figures) for name, figures in rates(texts, asked).items()}


def test_recall_leaves_unread_answers_out_only_where_the_official_script_reads():
    asked = samples(["color"])
    texts = {sample.id: "Yes" for sample in asked} | {"color/0.jpg/1": "  Yes", "color/1.jpg/1": "No"}
    assert rates(texts, asked, "mme")["color"]["recall"] == 8 / 9
    assert rates(texts, asked, "vlmevalkit")["color"]["recall"] == 9 / 10
    unread = texts | {"color/0.jpg/1": "Hm"}
    assert rates(unread, asked, "vlmevalkit")["color"]["recall"] == 8 / 10


def test_sums_need_all_of_their_tasks():
    asked = samples(ALL, pictures=1)
    texts = {sample.id: sample.truth for sample in asked}
    found = rates(texts, asked)
    assert (found["perception"]["total"], found["cognition"]["total"]) == (2000, 800)
    assert list(found["perception"]) == [*PERCEPTION, "total"]
    fewer = [sample for sample in asked if sample.group not in ("OCR", "color")]
    assert not {"perception", "hallucination"} & rates(texts, fewer).keys()


def test_a_picture_counts_with_both_questions_or_not_at_all():
    asked = samples(["color"])[:-1]
    tally = MmeScorer().tally(asked, {sample.id: "Yes" for sample in asked})["color"]
    assert (len(tally.pictures), len(tally.right)) == (9, 18)
    assert MmeScorer().tally(asked[:1], {asked[0].id: "Yes"}) == {}
    thrice = [*asked, Sample("color/0.jpg/3", "color/0.jpg", "Is it?", "color", "no")]
    with pytest.raises(BenchmarkError, match=r"color/0\.jpg has 3 questions, and a picture of MME has two"):
        MmeScorer().tally(thrice, {sample.id: "Yes" for sample in thrice})
    with pytest.raises(BenchmarkError, match="19 of 19 samples have no answer"):
        MmeScorer().tally(asked, {})


def test_intervals_are_wide_and_never_beyond_what_a_task_has():
    asked = samples(pictures=30)
    texts = {sample.id: sample.truth for sample in asked}
    best = MmeScorer().tally(asked, texts)
    perfect = best["existence"].rates()["score"]
    assert (perfect.value, perfect.high) == (200, pytest.approx(200))
    assert 150 < perfect.low < 200  # no spread is no certainty
    assert best["hallucination"].rates()["total"].high == pytest.approx(800)
    some = {sample.id: "Yes" if sample.truth == "yes" or number % 3 else "No" for number, sample in enumerate(asked)}
    worse = MmeScorer().tally(asked, some)
    rate = worse["existence"].rates()["score"]
    assert rate.high - rate.low > 20
    difference = compare(worse["hallucination"], best["hallucination"]).differences["total"]
    assert difference.low <= difference.value <= difference.high < 0


def test_a_reader_of_another_benchmark_is_refused():
    with pytest.raises(SettingError, match="unknown parser 'vcd': choose from first-sentence, mme, lmms_eval, vlmevalkit"):
        MmeScorer("vcd")
    with pytest.raises(SettingError, match="unknown setting 'language'"):
        MmeScorer.of({}, language="nltk")
