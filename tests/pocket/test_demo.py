"""The demo on tiny random checkpoints: its pictures, its work, its page and its numbers."""

import json
import shutil
from dataclasses import replace

import pytest

import mgap
from mgap.benchmarks.pope.questions import SPLITS
from mgap.errors import CorruptFile, SettingError
from mgap.pocket.benchmark import pope
from mgap.pocket.demo import (
    Change,
    DemoAnswer,
    DemoPlan,
    Exhibit,
    choose_methods,
    recorded_choice,
    run_demo,
    scenes_for,
    to_json,
)
from mgap.pocket.demo_page import command, demo_page
from mgap.pocket.drawing import TRAINING_STYLES
from mgap.pocket.figures import FILE, fit_prior, measure
from mgap.pocket.language import mentions
from mgap.pocket.samples import pope_samples
from mgap.pocket.scenes import render
from mgap.pocket.showcase import CAPTION, cases, describe, invented, judge, listed
from tests.reports.html import check_page

BY_TITLE = {case.title: case for case in cases()}


@pytest.fixture(scope="module")
def demo(model, family, checkpoints):
    steps = []
    done = run_demo(model, DemoPlan(str(checkpoints[family]), 12, 2, 0.9), progress=lambda *step: steps.append(step))
    assert steps[-1] == ("captions, given", 2, 2)
    assert ("chosen pictures", len(cases()), len(cases())) in steps
    return done


def test_the_two_bananas_differ_in_nothing_but_colour():
    yellow, blue = BY_TITLE["Yellow banana"], BY_TITLE["Blue banana"]
    assert (yellow.question, yellow.truth, blue.truth) == (blue.question, "yellow", "blue")
    changed = [pair for pair in zip(yellow.scene.things, blue.scene.things, strict=True) if pair[0] != pair[1]]
    assert [(a.name, replace(a, colour="blue") == b) for a, b in changed] == [("banana", True)]
    assert replace(blue.scene, things=yellow.scene.things) == yellow.scene


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.title)
def test_a_chosen_picture_is_whole_and_its_words_say_what_is_drawn(case):
    for thing in case.scene.things:
        assert thing.style in TRAINING_STYLES
        assert 0 <= thing.x - thing.width / 2 < thing.x + thing.width / 2 <= 1
        assert 0 <= thing.y - thing.height / 2 < thing.y + thing.height / 2 <= 1
    for text in (describe(case.scene), listed(case.scene)):
        assert set(mentions(text)) == set(case.scene.names)
        assert all(thing.colour in text for thing in case.scene.things)


def test_what_is_asked_about_is_there_or_not_as_the_truth_says():
    assert "refrigerator" not in BY_TITLE["A kitchen without a refrigerator"].scene.names
    assert BY_TITLE["A kitchen without a refrigerator"].truth == "no"
    assert "elephant" in BY_TITLE["An elephant in the office"].scene.names
    assert BY_TITLE["Two dogs"].scene.count("dog") == 2
    office = BY_TITLE["An office in words"].scene
    assert invented(office, ["laptop", "chair", "cup", "chair"]) == ["chair", "cup"]


@pytest.mark.parametrize(
    ("title", "answer", "verdict"),
    [
        ("Blue banana", "The banana is BLUE.", "right"),
        ("Blue banana", "yellow, not blue", "wrong"),
        ("Blue banana", "It is bluish.", "unclear"),
        ("A car in the street", "Yes, there is a car.", "right"),
        ("A kitchen without a refrigerator", "There isn't one.", "right"),
        ("A kitchen without a refrigerator", "Yes.", "wrong"),
        ("Two dogs", "There are two dogs.", "right"),
        ("Two dogs", "There is one dog.", "wrong"),
        ("Two dogs", "", "unclear"),
    ],
)
def test_answers_are_judged_by_the_word_in_question(title, answer, verdict):
    assert judge(BY_TITLE[title], answer) == verdict


def test_the_demo_shows_what_decoding_says(demo, model):
    assert list(demo.methods) == ["vanilla", "paper", "given"]
    exhibit = demo.exhibits[1]
    picture = render(exhibit.case.scene)
    assert exhibit.answers["vanilla"].answer.text == model.answer(picture, exhibit.case.question, max_new_tokens=24).text
    assert exhibit.answers["vanilla"].answer.trace is None
    for name in ("paper", "given"):
        with model.using(demo.methods[name]):
            expected = model.answer(picture, exhibit.case.question, max_new_tokens=24, trace=True)
        told = exhibit.answers[name].answer
        assert (told.text, told.trace) == (expected.text, expected.trace)
        assert all(0 <= step.values["beta"] < demo.methods[name].settings.alpha for step in told.trace)
    assert demo.methods["given"].settings.alpha == 0.9


def test_the_demo_asks_enough_questions_on_test_scenes(demo):
    assert list(demo.pope) == list(SPLITS)
    asked = {score.questions for scores in demo.pope.values() for score in scores.values()}
    assert len(asked) == 1
    assert 12 <= asked.pop() < 18
    for questions in (1, 6, 7, 100):
        counts = [sum(1 for _ in pope("random", count=scenes_for(questions) - less)) for less in (0, 1)]
        assert counts[0] >= questions > counts[1]


def test_the_page_stands_alone_and_tells_how_it_was_made(demo):
    page = check_page(demo_page(demo, "my demo"))
    text = page.text("style")
    assert f"--model {demo.plan.model} --out 'my demo' --questions 12 --captions 2 --alpha 0.9" in text
    assert command(demo, "my demo") in text
    for fact in (
        "rank 5 of 64",
        "50 questions with the null image",
        "alpha=0.75",
        "alpha=0.9",
        "200000",
        mgap.__version__,
        "chosen beforehand",
    ):
        assert fact in text, fact
    assert [a["alt"] for a in page.all("img")][: len(cases())] == [describe(case.scene) for case in cases()]
    tokens = sum(len(told.answer.trace or ()) for exhibit in demo.exhibits for told in exhibit.answers.values())
    assert len([a for a in page.all("li") if "--shade" in a.get("style", "")]) == tokens > 0


def test_the_results_agree_with_the_table(demo):
    facts = json.loads(json.dumps(to_json(demo), allow_nan=False))
    rows = [row for row in check_page(demo_page(demo, "demo")).rows if row[0].startswith(("vanilla", "MGAP"))]
    figures = [score for split in SPLITS for score in facts["pope"][split].values()]
    assert len(rows) == len(figures) + len(facts["captions"]) == 12

    def shown(rate):
        return f"{100 * rate['value']:.1f} {100 * rate['low']:.1f} to {100 * rate['high']:.1f}"

    for row, score in zip(rows, figures, strict=False):
        assert row[1:6] == [shown(score[key]) for key in ("accuracy", "precision", "recall", "f1", "yes_ratio")]
        assert row[6:] == [str(score["unparsed"]), str(score["questions"])]
    for row, score in zip(rows[9:], facts["captions"].values(), strict=True):
        assert row[1:4] == [shown(score[key]) for key in ("chair_s", "chair_i", "recall")]
        assert len(score["texts"]) == score["captions"] == 2
    assert facts["methods"]["paper"]["alpha"] == 0.75
    assert facts["cases"][1]["truth"] == "blue"
    assert facts["cases"][-1]["truth"] == ["laptop", "book", "clock", "bottle"]
    assert facts["cases"][0]["answers"]["paper"]["trace"][0]["values"]["beta"] >= 0


@pytest.mark.long
def test_a_picked_bias_stands_in_the_table(model, family, checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints[family], tmp_path / "model")
    measure(model, scenes=1, development=1, odd_scenes=10).save(folder)
    shift = recorded_choice(str(folder)).shift
    demo = run_demo(model, DemoPlan(str(folder), questions=6, captions=1, alpha=0.9))
    assert list(demo.pope["random"]) == ["vanilla", "paper", "given", "bias"]
    with model.using(mgap.Bias(shift=shift)):
        asked, picture = demo.pope_answers.benchmark.samples, demo.pope_answers.benchmark.picture
        words = {q.id: model.answer(picture(q.image), q.prompt, max_new_tokens=1).text.strip() for q in asked}
    assert words == demo.pope_answers.texts["bias"]
    assert to_json(demo)["bias"] == shift
    page = check_page(demo_page(demo, "demo"))
    assert [row[0] for row in page.rows].count(demo.label("bias")) == len(SPLITS)
    assert "whatever does not beat it has shown nothing" in page.text("style")


def test_changed_answers_are_told_by_what_they_change():
    question, *_ = pope_samples(["random"], 1).samples
    assert question.truth == "yes"
    effects = [Change(question, *pair).effect for pair in (("no", "yes"), ("yes", "no"), (None, "no"), ("yes", None))]
    assert effects == ["corrected", "spoilt", "wrong either way", "spoilt"]


def test_the_page_shows_the_first_changes_and_counts_all(demo):
    said = {name: dict.fromkeys(words, "Yes") for name, words in demo.pope_answers.texts.items()}
    said["given"] = dict.fromkeys(said["given"], "No")  # true of every second question
    changed = replace(demo, pope_answers=replace(demo.pope_answers, texts=said))
    assert [c.effect for c in changed.changes("adversarial", "given")] == ["spoilt", "corrected"] * 6
    assert changed.changes("adversarial", "paper") == []
    page = check_page(demo_page(changed, "demo"))
    assert "answers 12 otherwise than plain decoding: 6 spoilt, 6 corrected." in page.text("style")
    verdicts = [text for tag, text in page.texts if tag == "p" and text in ("corrected", "spoilt")]
    assert verdicts == ["corrected"] * 4 + ["spoilt"] * 4
    assert len(to_json(changed)["changed"]["adversarial"]["given"]) == 12


@pytest.mark.parametrize("text", ["", "<script>alert(1)</script>", "x" * 3000, "\u4e2d\u6587 \U0001f34c &amp; <b>"])
def test_odd_answers_are_shown_as_they_are(demo, text):
    def odd(told):
        return DemoAnswer(replace(told.answer, text=text, trace=None), told.verdict, told.invented)

    exhibits = tuple(Exhibit(e.case, {name: odd(told) for name, told in e.answers.items()}) for e in demo.exhibits)
    page = check_page(demo_page(replace(demo, exhibits=exhibits), "demo"))
    assert [shown for tag, shown in page.texts if tag == "p"].count(text or "(an empty answer)") == 3 * len(cases())


def test_the_picked_settings_are_read_from_the_model_folder(model, family, checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints[family], tmp_path / "model")

    def chosen(plan):
        return choose_methods(plan, lambda null: fit_prior(model, null))

    assert recorded_choice(str(folder)) is None
    methods, how = chosen(DemoPlan(str(folder)))
    assert list(methods) == ["vanilla", "paper"]
    assert "nothing was picked" in how
    figures = measure(model, scenes=1, development=1, odd_scenes=10)
    three = ["vanilla", "paper", "picked"]
    for null, alpha, names in (("black336", 3.0, three), ("no_image", 0.75, three), ("black336", 0.75, three[:2])):
        replace(figures, choice=replace(figures.choice, null_image=null, alpha=alpha)).save(folder)
        methods, how = chosen(DemoPlan(str(folder)))
        assert list(methods) == names
        assert "on 1 development scenes" in how
        assert methods[names[-1]].prior.origin["null_image"] == null
        assert methods[names[-1]].settings.alpha == alpha
    replace(figures, choice=replace(figures.choice, null_image="no_image")).save(folder)
    given = chosen(DemoPlan(str(folder), alpha=2.0))[0]["given"]
    assert (given.settings.alpha, given.prior.origin["null_image"]) == (2.0, "no_image")
    (folder / FILE).write_text('{"alpha": "strong"}')
    with pytest.raises(CorruptFile, match=r"figures\.json"):
        recorded_choice(str(folder))


@pytest.mark.parametrize("wrong", [{"questions": 0}, {"captions": -1}, {"alpha": float("nan")}, {"alpha": -1.0}])
def test_a_plan_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(SettingError, match=f"{next(iter(wrong))}="):
        DemoPlan("m", **wrong)


def test_a_caption_has_no_single_truth():
    assert [case.truth for case in cases()].count(CAPTION) == 1
