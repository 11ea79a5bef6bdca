"""Scores that are not finite end in one error that says who decoded and which token it was, in every mode; none is answered."""

from contextlib import contextmanager
from dataclasses import fields, replace

import pytest
import torch

import mgap
from mgap.backbones.head_states import catch_states
from mgap.decoding.generate import generate
from mgap.decoding.replay import Paths
from mgap.decoding.step_by_step import step_by_step
from mgap.decoding.strength_curve import curve
from mgap.errors import NonFiniteScores, NonFiniteStates, SettingError
from mgap.registry import METHODS
from mgap.run.first_words import first_words
from mgap.types import Decoding
from tests.decoding.test_prefill import ASKED, A, B
from tests.methods.builders import LEARNT, NEEDED, build

NEW = 6
NAN, INF = float("nan"), float("inf")
MODES = [
    {},
    {"sample": True},
    {"num_beams": 3},
    {"num_beams": 3, "num_return_sequences": 2},
    {"sample": True, "num_return_sequences": 2},
    {"sample": True, "num_beams": 2},
    {"sample": True, "top_p": 0.5, "top_k": 5, "temperature": 0.3},
    {"repetition_penalty": 1.3},
    {"static_cache": True},
    {"static_cache": True, "sample": True},
    {"static_cache": True, "num_beams": 2},
    {"prompt_lookup": 3},
]


@pytest.fixture(scope="module")
def damaged(family, checkpoints):
    """A checkpoint with one NaN, in the final norm."""
    model = mgap.load(str(checkpoints[family]), dtype=torch.float32)
    with torch.no_grad():
        model.backbone.final_norm.weight[0] = NAN
    return model


@contextmanager
def scores_of(model, value, *, since=1, row=slice(None)):
    """From the so-manyth token on, the head gives these scores to a row's tokens, or to all rows'."""
    calls = []

    def change(_head, _args, output):
        calls.append(output)
        if len(calls) >= since:
            output = output.clone()
            output[row] = value
        return output

    handle = model.backbone.head_module.register_forward_hook(change)
    try:
        yield calls
    finally:
        handle.remove()


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_damaged_weight_is_named_in_every_mode(damaged, options):
    with pytest.raises(NonFiniteScores, match=r"^the plain model: at token 1 .*NaN.*norm\.weight.*fetch the checkpoint again$"):
        damaged.answer(A, ASKED[0], max_new_tokens=NEW, **options)


@pytest.mark.usefixtures("uncompiled_graphs")
def test_a_damaged_weight_is_named_in_compiled_steps(damaged):
    with pytest.raises(NonFiniteScores, match="at token 1"):
        damaged.answer(A, ASKED[0], max_new_tokens=2, compile=True)


@pytest.mark.parametrize("options", [{}, {"static_cache": True}, {"prefill": "shared"}], ids=str)
def test_a_damaged_weight_is_named_in_batches(damaged, options):
    with pytest.raises(NonFiniteScores, match="at token 1"):
        list(damaged.answers([A, A, B], ASKED[:3], batch_size=3, max_new_tokens=NEW, **options))


@pytest.mark.parametrize("options", [{}, {"static_cache": True}, {"sample": True}], ids=str)
def test_nothing_is_streamed_from_scores_that_are_not_finite(damaged, options):
    told = []
    with pytest.raises(NonFiniteScores, match="at token 1"):
        told.extend(damaged.stream(A, ASKED[0], max_new_tokens=NEW, **options))
    assert told == []


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_on_a_damaged_checkpoint_says_so(damaged, prior, name):
    """One that describes the picture first finds it there; one that looks through a bank, before it scores a token."""
    said = rf"^({name}|the plain model): at token 1 .*(norm\.weight|branch's)|some states are NaN"
    anybodys = replace(prior, identity=None)  # by its weights this is another model
    with damaged.using(build(name, anybodys)), pytest.raises((NonFiniteScores, NonFiniteStates), match=said):
        damaged.answer(A, ASKED[0], max_new_tokens=NEW)


@pytest.mark.parametrize(("value", "word"), [(NAN, "NaN"), (INF, "infinite"), (-INF, "every token was dropped")])
@pytest.mark.parametrize(
    "options", [{}, {"sample": True}, {"static_cache": True}, {"static_cache": True, "sample": True}], ids=str
)
def test_a_later_token_is_counted_from_1(exact, options, value, word):
    exact.answer(A, ASKED[0], max_new_tokens=1, **options)  # the head of a captured step is looked at once
    with scores_of(exact, value, since=3), pytest.raises(NonFiniteScores, match=rf"plain model: at token 3 .*{word}.*dtype"):
        exact.answer(A, ASKED[0], max_new_tokens=NEW, **options)


@pytest.mark.parametrize("static", [False, True])
def test_a_method_is_named_and_what_to_do_with_it(exact, prior, static):
    said = r"^vcd and mgap: at token .* give vcd and mgap weaker settings"
    methods = exact.using(build("vcd", prior), build("mgap", prior))
    with methods, scores_of(exact, NAN, since=2), pytest.raises(NonFiniteScores, match=said):
        exact.answer(A, ASKED[0], max_new_tokens=NEW, static_cache=static)


@pytest.mark.parametrize("static", [False, True])
def test_one_finite_score_in_a_row_is_enough(exact, static):
    alone = torch.full((len(exact.backbone.head_module.weight),), -INF)
    alone[7] = -3.0
    exact.answer(A, ASKED[0], max_new_tokens=1, static_cache=static)
    with scores_of(exact, alone):
        assert set(exact.answer(A, ASKED[0], max_new_tokens=3, static_cache=static).token_ids) == {7}


@pytest.mark.parametrize("static", [False, True])
def test_what_follows_the_end_of_a_row_may_be_anything(exact, static, monkeypatch):
    rows, asked = [A, B], ASKED[:2]
    plain = [answer.token_ids for answer in exact.answers(rows, asked, batch_size=2, max_new_tokens=NEW)]
    assert plain[0][1] not in (plain[0][0], *plain[1])
    monkeypatch.setattr(exact.backbone.model.generation_config, "eos_token_id", plain[0][1])
    next(exact.answers(rows, asked, batch_size=2, max_new_tokens=1, static_cache=static))
    with scores_of(exact, NAN, since=3, row=0):
        first, second = exact.answers(rows, asked, batch_size=2, max_new_tokens=NEW, static_cache=static)
    assert (first.token_ids, second.token_ids) == (plain[0][:2], plain[1])


def test_first_words_from_states_that_are_not_finite_are_refused(damaged, exact, prior):
    rows = [("a", ASKED[0]), ("b", ASKED[1])]
    pictures = {"a": A, "b": B}.__getitem__
    with pytest.raises(NonFiniteScores, match="the plain model: at token 1"):
        first_words(damaged, rows, {"vanilla": None}, pictures)
    with pytest.warns(UserWarning, match="flip"):
        strong = mgap.MGAP(prior, alpha=3e38, lam=9.0)
    for methods in ({"strong": strong}, {"one": mgap.Blind(rho=3e38), "other": mgap.Blind(rho=3.1e38)},
                    {"one": mgap.VCD(alpha=3e38), "other": mgap.VCD(alpha=3.1e38)}):  # fmt: skip
        name = next(iter(methods.values())).name
        with pytest.raises(NonFiniteScores, match=rf"^{name}: at token 1 .*weaker settings"):
            first_words(exact, rows, methods, pictures)


def test_one_answer_token_by_token_its_curves_and_its_replay(damaged, exact, prior, picture):
    with pytest.raises(NonFiniteScores, match="mgap: at token 1"):
        next(step_by_step(damaged, mgap.MGAP(replace(prior, identity=None)), picture, ASKED[0], max_new_tokens=NEW))
    always = mgap.MGAP(prior, gate=False, protect=False)
    made = list(step_by_step(exact, always, picture, ASKED[0], max_new_tokens=2))
    with pytest.raises(NonFiniteScores, match="mgap"):
        curve(made[0].states, [1], [0.0, 3e38])
    paths = Paths(exact)
    paths.add(made)
    with pytest.warns(UserWarning, match="flip"):
        strong = replace(always, alpha=3e38)
    with pytest.raises(NonFiniteScores, match="mgap"):
        paths.replay(strong, max_new_tokens=2)


def test_what_is_read_late_is_read_at_the_end(exact):
    """On a card scores are looked at two tokens late; an answer of one token ends before."""
    inputs, seen = exact.backbone.encode([A], ASKED[:1]), []
    with catch_states(exact.backbone) as caught, scores_of(exact, NAN), pytest.raises(NonFiniteScores):
        generate(exact.backbone, inputs, Decoding(max_new_tokens=1))
    assert (len(caught), seen) == (1, [])


STRENGTHS = [
    (name, field.name)
    for name in METHODS.names()
    for field in fields(METHODS.get(name))
    if "float" in str(field.type) and (name, field.name) != ("m3id", "most")  # which may be infinite
]


@pytest.mark.parametrize("value", [1e39, 1e308, 10**39])
def test_a_setting_that_float32_cannot_hold_is_refused_with_the_limit(prior, value):
    assert {"mgap", "opera", "pai", "bias", "asd", "code"} <= {name for name, _ in STRENGTHS}
    for name, setting in STRENGTHS:
        method = METHODS.get(name)
        learnt = {need: LEARNT[kind.kind](prior) for need, kind in method.learnt_settings({setting: 1.0}).items()}
        with pytest.raises(SettingError, match=r"3\.4e\+38|from 0 to 1|below 1"):
            method.of(**{**NEEDED.get(name, {}), **learnt, setting: value})


@pytest.mark.parametrize("options", [{"temperature": 1e-38, "sample": True}, {"repetition_penalty": 1e-39}], ids=str)
def test_scores_divided_by_next_to_nothing_are_refused(options):
    with pytest.raises(SettingError, match="must be from 1e-10"):
        Decoding(**options)


def test_a_weight_that_grows_past_all_numbers_is_no_traceback(exact):
    with exact.using(mgap.M3ID(lam=1e38)), pytest.raises(NonFiniteScores, match="m3id"):
        exact.answer(A, ASKED[0], max_new_tokens=2)
