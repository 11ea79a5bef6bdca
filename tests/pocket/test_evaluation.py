"""Evaluation says what decoding says, on tiny checkpoints of both families."""

import pytest

import mgap
from mgap.benchmarks.pope.questions import SPLITS
from mgap.errors import SettingError
from mgap.pocket.benchmark import TEST, odd_colours, pope
from mgap.pocket.evaluation import (
    evaluate_amber,
    evaluate_captions,
    evaluate_odd_colours,
    evaluate_pope,
    read_colour,
)
from mgap.pocket.language import DESCRIBE
from mgap.pocket.scenes import make_scene, render
from mgap.run.first_words import first_words
from tests.methods.builders import build

pytestmark = pytest.mark.filterwarnings("ignore:alpha=:UserWarning")


def words_of(model, questions, methods, **options):
    return first_words(model, [(q.scene, q.text) for q in questions], methods, render, **options)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def loaded(request, family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=request.param)


@pytest.fixture(scope="module")
def methods(loaded):
    prior = mgap.Subspace.fit(loaded, mgap.default_prompts())
    reference = mgap.MGAP(prior, alpha=6.0, preset="reference-code")
    return {"vanilla": None, "paper": mgap.MGAP(prior), "strong": mgap.MGAP(prior, alpha=8.0), "reference": reference}


def decoded(model, method, scenes, texts, batch_size, **options):
    with_method = [render(scene) for scene in scenes], texts
    if method is None:
        return [a.text for a in model.answers(*with_method, batch_size=batch_size, **options)]
    with model.using(method):
        return [a.text for a in model.answers(*with_method, batch_size=batch_size, **options)]


def test_first_words_are_what_greedy_decoding_says(loaded, methods):
    questions = list(pope("adversarial", count=9))
    seen = []
    words = words_of(loaded, questions, methods, batch_size=16, progress=lambda *step: seen.append(step))
    for name, method in methods.items():
        expected = decoded(loaded, method, [q.scene for q in questions], [q.text for q in questions], 16, max_new_tokens=1)
        assert words[name] == expected, name
    assert len({tuple(said) for said in words.values()}) > 1  # a method that changes nothing would pass all the same
    assert seen[-1] == ("questions", len(questions), len(questions))


def test_repeated_and_shuffled_questions_get_their_own_words(model):
    questions = list(pope("random", count=4))
    mixed = [*questions[::-1], *questions]
    words = words_of(model, mixed, {"vanilla": None}, batch_size=64)["vanilla"]
    assert words[: len(questions)][::-1] == words[len(questions) :]
    assert words[len(questions) :] == words_of(model, questions, {"vanilla": None}, batch_size=64)["vanilla"]


def test_plain_figures_are_refused_while_a_method_is_on(model, prior):
    questions = list(pope("random", count=1))
    with model.using(mgap.MGAP(prior)):
        with pytest.raises(SettingError, match="mgap is attached"):
            words_of(model, questions, {"vanilla": None})
        with pytest.raises(SettingError, match="mgap is attached"):
            evaluate_captions(model, {"vanilla": None}, TEST, 1)


def test_methods_elsewhere_than_at_the_head_decode_by_themselves(loaded, methods):
    questions = list(pope("random", count=4))
    mixed = {"vcd": mgap.VCD(alpha=6.0, noise_step=999), "paper": methods["paper"], "dola": build("dola", None)}
    words = words_of(loaded, questions, mixed, batch_size=16)
    assert list(words) == list(mixed)
    for name, method in mixed.items():
        expected = decoded(loaded, method, [q.scene for q in questions], [q.text for q in questions], 16, max_new_tokens=1)
        assert words[name] == expected, name


def test_a_method_at_the_head_that_looks_at_the_prompt_decodes_by_itself(model, monkeypatch):
    questions, seen = list(pope("random", count=2)), []
    monkeypatch.setattr(mgap.Bias, "shares_prefill", False)
    words = words_of(model, questions, {"looking": mgap.Bias(shift=-2.0)}, progress=lambda *step: seen.append(step[0]))
    assert set(seen) == {"questions, looking"}
    monkeypatch.undo()
    assert words == words_of(model, questions, {"looking": mgap.Bias(shift=-2.0)})


def test_strengths_that_share_a_branch_say_what_decoding_says(loaded):
    questions = list(pope("random", count=4))
    pairs = [(rho, null) for null in ("no_image", "mean_colour") for rho in (1.0, 8.0)]
    mixed = {f"blind {rho} {null}": mgap.Blind(rho=rho, null_image=null) for rho, null in pairs}
    mixed |= {f"vcd {alpha}": mgap.VCD(alpha=alpha, noise_step=999) for alpha in (0.5, 2.0, 6.0)}
    mixed |= {f"{kind.name} {alpha}": kind(alpha=alpha) for kind in (mgap.ED, mgap.FastED) for alpha in (0.5, 1.0)}
    words = words_of(loaded, questions, mixed, batch_size=16)
    for name, method in mixed.items():
        expected = decoded(loaded, method, [q.scene for q in questions], [q.text for q in questions], 16, max_new_tokens=1)
        assert words[name] == expected, name
    assert len(set(map(tuple, words.values()))) > 2


def test_pope_is_scored_by_split_and_method(model, prior):
    scores = evaluate_pope(model, {"vanilla": None, "paper": mgap.MGAP(prior)}, TEST, 5)
    assert list(scores) == list(SPLITS)
    asked = [sum(1 for _ in pope(split, TEST, 5)) for split in SPLITS]
    assert [scores[split]["paper"].questions for split in SPLITS] == asked
    assert list(scores["random"]) == ["vanilla", "paper"]


def test_held_out_scenes_are_drawn_in_the_other_style(loaded):
    words = [
        words_of(loaded, list(pope("random", TEST, 12, held_out=held_out)), {"vanilla": None})["vanilla"]
        for held_out in (False, True)
    ]
    assert words[0] != words[1]


def test_amber_is_scored_by_kind(model):
    scores = evaluate_amber(model, {"vanilla": None}, TEST, 6)
    assert list(scores) == ["existence", "colour", "count", "relation"]
    assert all(score["vanilla"].questions > 0 for score in scores.values())
    assert scores["existence"]["vanilla"].recall.of == 0  # the truth is always no


def test_captions_are_those_that_decoding_writes(model, prior):
    methods = {"vanilla": None, "paper": mgap.MGAP(prior)}
    found = evaluate_captions(model, methods, TEST, 5, max_new_tokens=6, batch_size=3)
    shown = [make_scene(TEST + i) for i in range(5)]
    for name, method in methods.items():
        assert found[name].texts == decoded(model, method, shown, [DESCRIBE[0]] * 5, 3, max_new_tokens=6)
        assert found[name].score.captions == 5
        assert found[name].score.recall.of == sum(len(scene.names) for scene in shown)


def test_the_shares_of_odd_colours_add_up(model):
    steps = []
    found = evaluate_odd_colours(model, {"vanilla": None}, TEST, 60, progress=lambda *step: steps.append(step))["vanilla"]
    assert found.questions == len(list(odd_colours(TEST, 60))) > 0
    assert found.usual.value + found.true.value + found.other.value == pytest.approx(1)
    assert steps[-1] == ("odd colours, vanilla", found.questions, found.questions)


@pytest.mark.parametrize(
    ("name", "text", "colour"),
    [
        ("banana", "The banana is blue.", "blue"),
        ("orange", "The orange is blue.", "blue"),
        ("orange", "The orange is orange.", "orange"),
        ("orange", "Orange.", "orange"),
        ("skis", "the skis are Red", "red"),
        ("bus", "It is greenish, I think.", None),
        ("bus", "", None),
    ],
)
def test_a_colour_is_read_past_the_name(name, text, colour):
    assert read_colour(text, name) == colour


def test_seeds_kept_for_outside_checks_are_refused(model):
    for evaluate in (evaluate_pope, evaluate_amber, evaluate_captions, evaluate_odd_colours):
        with pytest.raises(SettingError, match="outside checks"):
            evaluate(model, {"vanilla": None}, 899_999, 2)
