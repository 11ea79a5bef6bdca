"""Reading yes and no, and the figures of POPE and CHAIR, by hand and against the published scorers."""

import json

import pytest

from mgap.benchmarks.chair.mentions import Mentions
from mgap.benchmarks.chair.scorer import ChairScore, tally_mentions
from mgap.benchmarks.pope.scorer import PopeScore
from mgap.benchmarks.statistics import Rate
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.errors import SettingError
from mgap.types import Sample
from tests.benchmarks.labelled import score_labels

PUBLISHED = ("real_llava15_7b_coco_adversarial", "real_llava15_13b_coco_popular")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Yes", "yes"),
        ("NO", "no"),
        (" yes, there is a dog.", "yes"),
        ("\nNo", "no"),
        ('"No"', "no"),
        ("(yes)", "yes"),
        ("There is no dog.", "no"),
        ("There isn't a dog.", "no"),
        ("There isn\N{RIGHT SINGLE QUOTATION MARK}t a dog.", "no"),
        ("I don't see one.", "no"),
        ("None", "no"),
        ("I would say yes", "yes"),
        ("Yes. There is no cat though.", "yes"),
        ("No, yes", "no"),
        ("It is not. Yes.", "no"),
        ("There is a snowboard.", None),
        ("I know the eyes of a nomad.", None),
        ("", None),
        ("...", None),
        ("42", None),
    ],
)
def test_the_first_sentence_decides(text, verdict):
    assert yes_or_no(text) == verdict


def test_where_the_published_parsers_agree_on_whole_words_so_do_we(shared):
    cases = json.loads((shared / "fixtures" / "benchmarks" / "pope" / "parser_edge_cases.json").read_text())
    agreed = 0
    for case in cases:
        said = [verdict for parser, verdict in case["verdicts"].items() if parser != "lmms_eval"]  # that one wants bare words
        if any(verdict != said[0] for verdict in said) or "eyes" in case["text"]:  # they find the yes in eyes
            continue
        agreed += 1
        assert yes_or_no(case["text"]) == said[0], case["text"]
    assert agreed > 8


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_answers_get_the_published_figures(shared, name):
    folder = shared / "fixtures" / "benchmarks" / "pope"
    expected = json.loads((folder / f"{name}.expected.json").read_text())
    questions = [json.loads(line) for line in (shared / "data" / expected["question_file"]).read_text().splitlines()]
    by_id = {question["question_id"]: question for question in questions}
    answers = [json.loads(line) for line in (folder / f"{name}.answers.jsonl").read_text().splitlines()]
    asked = [by_id[answer["question_id"]] for answer in answers]
    score = score_labels([q["label"] for q in asked], [yes_or_no(a["text"]) for a in answers], [q["image"] for q in asked])
    figures = expected["expected"]["original"]
    for name in ("accuracy", "precision", "recall", "f1", "yes_ratio"):
        assert getattr(score, name).value == pytest.approx(figures[name], abs=1e-12), name
    assert score.unparsed == 0


def test_pope_by_hand():
    labels = ["yes", "yes", "yes", "no", "no", "no"]
    verdicts = ["yes", "yes", "no", "yes", "no", None]
    score = score_labels(labels, verdicts, ["a", "a", "b", "b", "c", "c"])
    assert (score.questions, score.unparsed) == (6, 1)
    assert score.accuracy.value == pytest.approx(3 / 6)  # saying neither is wrong, also where the truth is no
    assert score.precision.value == score.recall.value == score.f1.value == pytest.approx(2 / 3)
    assert score.yes_ratio.value == 0.5
    assert (score.precision.of, score.recall.of, score.accuracy.of) == (3, 3, 6)


def test_pope_without_a_yes():
    score = score_labels(["yes", "no"], ["no", "no"], [1, 2])
    assert score.precision == Rate(0.0, 0.0, 1.0, 0)
    assert (score.accuracy.value, score.recall.value, score.f1.value, score.yes_ratio.value) == (0.5, 0.0, 0.0, 0.0)


def test_pope_all_wrong_all_unparsed_and_nothing_at_all():
    wrong = score_labels(["yes", "no"], ["no", "yes"], [1, 2])
    assert (wrong.accuracy.value, wrong.precision.value, wrong.f1.value) == (0.0, 0.0, 0.0)
    silent = score_labels(["yes", "no"], [None, None], [1, 1])
    assert (silent.accuracy.value, silent.unparsed, silent.yes_ratio.value) == (0.0, 2, 0.0)
    assert PopeScore.of(None).accuracy == Rate(0.0, 0.0, 1.0, 0)
    assert (PopeScore.of(None).questions, PopeScore.of(None).unparsed) == (0, 0)


def test_pope_refuses_a_label_that_is_neither():
    with pytest.raises(SettingError, match="maybe"):
        score_labels(["yes", "maybe"], ["yes", "no"], [1, 2])


def test_chair_by_hand():
    captions = ["A dog and a dog.", "A cat.", "Nothing here"]
    named, truths = [("dog", "dog", "car"), ("cat",), ()], [["dog", "bus"], ["dog"], ["cup"]]
    samples = [Sample(str(number), str(number), "", "", truth) for number, truth in enumerate(truths)]
    mentions = [Mentions(names, names, (), (), 0) for names in named]
    score = ChairScore.of(tally_mentions(samples, mentions), captions)
    assert score.captions == 3
    assert score.chair_s.value == pytest.approx(2 / 3)
    assert (score.chair_i.value, score.chair_i.of) == (0.5, 4)
    assert (score.recall.value, score.recall.of) == (0.25, 4)
    assert score.words == pytest.approx((5 + 2 + 2) / 3)
