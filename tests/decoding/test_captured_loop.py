"""Static and compiled decoding through the captured step: the same answers, methods that act, no compiling at every length."""

import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

import mgap
from mgap.backbones.base import Backbone, families_that
from mgap.decoding.fast import captured_step
from mgap.decoding.fast.captured_loop import StepWatch, head_of, uses_captured_loop
from mgap.decoding.fast.captured_step import MAX_STEPS, forget, uncapturable
from mgap.decoding.fast.fixed_cache import ATTENTION, FixedCache, attend
from mgap.decoding.generate import generate
from mgap.errors import UnsupportedDecoding
from mgap.types import Decoding, Mode
from tests.backbones import families
from tests.decoding.test_prefill import ASKED, ROWS, TINY, A, B, tokens
from tests.methods.builders import build

NEW = 12


@pytest.fixture
def model(family, checkpoints):
    """One of its own: steps are kept with a model."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.fixture
def prior(model):
    return mgap.Subspace.fit(model, mgap.default_prompts())


@pytest.fixture
def built(monkeypatch):
    """The shapes of the steps that are built: (rows, length)."""
    shapes = []

    class Counted(captured_step.CapturedStep):
        def __init__(self, backbone, cache, positions, *, is_compiled):
            shapes.append((len(cache.mask), cache.mask.shape[-1]))
            super().__init__(backbone, cache, positions, is_compiled=is_compiled)
            self._forward = backbone.language  # what is compiled is the same, and takes a minute less

    monkeypatch.setattr(captured_step, "CapturedStep", Counted)
    return shapes


def by_generate(model, options, rows=([A], ASKED[:1])):
    """What transformers' own loop says, with its own cache."""
    made = generate(model.backbone, model.backbone.encode(*rows), Decoding(max_new_tokens=NEW, **options))
    return made.tokens.tolist()


@pytest.mark.parametrize("kind", [*TINY, *families.FAMILIES])
def test_every_family_that_is_named_agrees_and_others_are_left_to_transformers(kind, tmp_path, monkeypatch):
    {**TINY, **families.FAMILIES}[kind](tmp_path)
    monkeypatch.setattr("mgap.backbones.loading.is_torchvision_available", lambda: False)
    model, rows = mgap.load(str(tmp_path), dtype=torch.float32), ROWS["mixed, in turns"]
    assert uses_captured_loop(model.backbone, Decoding(static_cache=True).modes(rows=3)) == (
        kind in families_that("captures_steps")
    )
    if kind in families_that("captures_steps"):  # transformers 5.16.1 itself cannot decode Gemma-3 with a static cache
        assert tokens(model, rows, static_cache=True) == tokens(model, rows)


def test_every_family_that_is_named_is_tested():
    assert set(TINY) | set(families.FAMILIES) >= set(families_that("captures_steps"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_are_those_of_eager_decoding_and_the_model_attends_as_before(family, checkpoints, attention):
    model = mgap.load(str(checkpoints[family]), dtype=torch.float32, attention=attention)
    caught = []
    handle = model.backbone.head_module.register_forward_hook(lambda _head, _args, out: caught.append(out[:, -1].clone()))
    try:
        for options in ({}, {"static_cache": True}):
            list(model.answers([A, B], ASKED[1:3], batch_size=2, max_new_tokens=NEW, **options))
    finally:
        handle.remove()
    assert len(caught) == 2 * NEW + 1, "the head was looked at once"
    torch.testing.assert_close(caught[NEW + 1 :], caught[:NEW], rtol=1e-4, atol=1e-4)
    assert model.backbone.config.get_text_config()._attn_implementation == attention


@pytest.mark.parametrize(
    "options",
    [{}, {"repetition_penalty": 1.5}, {"sample": True, "seed": 4}, {"sample": True, "num_return_sequences": 3},
     {"sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}, {"sample": True, "repetition_penalty": 1.3, "seed": 2},
     {"sample": True, "temperature": 0.7, "min_p": 0.5, "seed": 1}],
    ids=str,
)  # fmt: skip
def test_tokens_are_chosen_as_generate_chooses_them(model, options):
    answer = model.answer(A, ASKED[0], max_new_tokens=NEW, static_cache=True, **options)
    told = [list(each.token_ids) for each in (answer, *answer.alternatives)]
    for mine, theirs in zip(told, by_generate(model, options), strict=True):
        assert mine == theirs[: len(mine)]


def test_rows_that_end_early_are_filled_up_and_all_that_ended_end_the_loop(model):
    rows = ([A, B, A], ASKED[:3])
    plain = tokens(model, rows)
    ending = plain[1][0][2]  # what the second row says third
    model.backbone.model.generation_config.eos_token_id = [ending, plain[0][0][5]]
    ended = tokens(model, rows, max_new_tokens=40)
    assert len(ended[1][0]) <= 3
    assert tokens(model, rows, max_new_tokens=40, static_cache=True) == ended


@pytest.mark.parametrize("name", ["mgap", "bias", "yes-if-close"])
def test_what_acts_at_the_head_acts_at_every_strength_in_turn(model, prior, name):
    def ask(**options):
        return model.answer(A, ASKED[0], max_new_tokens=NEW, **options).token_ids

    plain = ask()
    assert ask(static_cache=True) == plain
    with model.using(build(name, prior)):
        strong = ask()
        assert strong != plain
        assert ask(static_cache=True) == strong
    assert ask(static_cache=True) == plain, "nothing of the method may stay in the step"


@pytest.mark.long
@pytest.mark.usefixtures("uncompiled_graphs")
def test_a_large_alpha_matters_in_compiled_steps(model, prior):
    """The prompt's own token is no proof: it comes from another forward."""
    plain = model.answer(A, ASKED[0], max_new_tokens=NEW, compile=True).token_ids
    told = {plain}
    for alpha in (4.0, 8.0):
        with pytest.warns(UserWarning, match="flip"):
            method = mgap.MGAP(prior, alpha=alpha)
        with model.using(method):
            answer = model.answer(A, ASKED[0], max_new_tokens=NEW, compile=True, trace=True)
            assert answer.token_ids == model.answer(A, ASKED[0], max_new_tokens=NEW).token_ids
            assert all(step.before != step.after for step in answer.trace[1:])
            told.add(answer.token_ids)
    assert len(told) == 3


def test_a_trace_of_captured_steps_is_that_of_eager_ones(model, prior):
    with model.using(build("mgap", prior)):
        one, other = (
            list(model.answers([A, B], ASKED[1:3], batch_size=2, max_new_tokens=NEW, trace=True, static_cache=static))
            for static in (False, True)
        )
    for mine, theirs in zip(one, other, strict=True):
        assert mine.token_ids == theirs.token_ids
        for step, same in zip(mine.trace, theirs.trace, strict=True):
            assert step.values == pytest.approx(same.values, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["blind", "code", "haltrapper", "icd", "m3id", "ritual", "vcd"])
def test_a_branch_is_rows_of_the_same_step(model, prior, name):
    rows, method = ([A, B, A], ASKED[:3]), build(name, prior)
    with model.using(method):
        assert tokens(model, rows, static_cache=True) == tokens(model, rows)  # compiled: tests/decoding/test_modes.py
    with model.using(replace(method, branch_mode="sequential")), pytest.raises(UnsupportedDecoding, match="static"):
        tokens(model, rows, static_cache=True)


@pytest.mark.parametrize("options", [{}, {"sample": True, "num_return_sequences": 3}, {"repetition_penalty": 1.4}], ids=str)
@pytest.mark.parametrize(
    "stack", [lambda prior: (mgap.VCD(), build("mgap", prior)), lambda _prior: (mgap.ICD(with_vcd=True),)], ids=["two", "three"]
)
def test_branches_and_what_stands_on_them_choose_as_in_generate(model, prior, stack, options):
    with model.using(*stack(prior)):
        answer = model.answer(A, ASKED[0], max_new_tokens=NEW, static_cache=True, **options)
        told = [list(each.token_ids) for each in (answer, *answer.alternatives)]
        for mine, theirs in zip(told, by_generate(model, options), strict=True):
            assert mine == theirs[: len(mine)]


def test_a_trace_of_a_branch_is_that_of_eager_decoding(model):
    with model.using(mgap.M3ID()):
        eager, static = (model.answer(A, ASKED[0], max_new_tokens=NEW, trace=True, static_cache=each) for each in (False, True))
    assert eager.token_ids == static.token_ids
    for step, same in zip(eager.trace, static.trace, strict=True):
        assert step.values == pytest.approx(same.values, rel=1e-3, abs=1e-4), "also of those that count steps"


def test_a_method_inside_the_decoder_is_left_to_transformers(model, prior):
    modes = frozenset({Mode.GREEDY, Mode.STATIC})
    assert uses_captured_loop(model.backbone, modes)
    with model.using(build("deco", prior)):
        assert not uses_captured_loop(model.backbone, modes)
    handle = model.backbone.layers[0].register_forward_hook(lambda *_: None)
    assert "hooks" in uncapturable(model.backbone)
    handle.remove()
    model.backbone.model(**model.backbone.encode([A], ASKED[:1]), output_hidden_states=True)
    assert uncapturable(model.backbone) == "", "transformers' own listeners do not count"
    assert not uses_captured_loop(model.backbone, modes | {Mode.BEAM})
    assert not uses_captured_loop(model.backbone, frozenset({Mode.GREEDY}))


def test_a_method_that_does_the_same_at_every_step_is_captured_with_it(model, prior, built):
    modes, nullu, other = frozenset({Mode.GREEDY, Mode.STATIC}), build("nullu", prior), build("nullu", prior)

    def answer(**options):
        return model.answer(A, ASKED[0], max_new_tokens=NEW, **options).token_ids

    made = []
    for method in (None, nullu, nullu, other, None, nullu):
        with model.using(method) if method else nullcontext():
            assert uses_captured_loop(model.backbone, modes)
            made.append(answer(static_cache=True))
    plain, first, again, equal, none, back = made
    assert plain == none != first == again == equal == back
    assert len(built) == 3, "plain decoding and each method have a step of their own, which they find again"
    with model.using(nullu):
        assert first == answer()
        assert not uses_captured_loop(model.backbone, modes, is_traced=True), "a replay runs no hook that could be traced"
        assert not uses_captured_loop(model.backbone, modes | {Mode.COMPILE}), "inductor does not guard hooks"
        traced = model.answer(A, ASKED[0], max_new_tokens=NEW, static_cache=True, trace=True)
    assert traced.token_ids == first
    assert all("share" in step.values for step in traced.trace)


def test_a_step_keeps_what_the_hooks_in_its_graph_read(model, prior):
    method = build("nullu", prior)
    with model.using(method):
        model.answer(A, ASKED[0], max_new_tokens=NEW, static_cache=True)
        hooks = list(model.backbone.language.modules())
        inside = [hook for part in hooks for hook in part._forward_hooks.values() if hasattr(hook, "basis")]
    (step,) = captured_step._steps[model.backbone.model].values()
    methods, held = step.held
    assert methods == (method,)
    assert inside
    assert all(any(hook is one for one in held) for hook in inside)


def test_lengths_and_rows_near_each_other_share_a_step(model, built):
    for prompt in ASKED:
        for new in (3, 5, NEW):
            model.answer(A, prompt, max_new_tokens=new, compile=True)
    assert built == [(1, 256)]
    for rows in (3, 4):
        list(model.answers([A] * rows, ASKED[:rows], batch_size=rows, max_new_tokens=NEW, compile=True))
    assert built == [(1, 256), (4, 256)]
    model.answer(A, ASKED[0], max_new_tokens=300, compile=True)
    assert built[2:] == [(1, 512)]


def test_rows_beside_an_odd_number_of_them_change_nothing(model, built):
    rows = ([A, B, A], ASKED[:3])
    assert tokens(model, rows, compile=True) == tokens(model, rows)
    assert built == [(4, 256)]


def test_only_the_latest_steps_are_kept_and_their_memory_is_given_back(model, built, monkeypatch):
    monkeypatch.setattr(captured_step, "LENGTH_MULTIPLE", 8)
    for new in range(2, 8 * (MAX_STEPS + 2), 8):
        model.answer(A, ASKED[2], max_new_tokens=new, compile=True)
    assert len(built) == MAX_STEPS + 2
    steps = captured_step._steps[model.backbone.model]
    assert len(steps) == MAX_STEPS
    first = weakref.ref(next(iter(steps.values())).cache)
    forget(model.backbone.model)
    del steps
    gc.collect()
    assert first() is None


def test_weights_that_moved_are_read_where_they_are(model, built):
    before = model.answer(A, ASKED[0], max_new_tokens=NEW, compile=True).token_ids
    with torch.no_grad():
        for parameter in model.backbone.layers[0].parameters():
            parameter.data = parameter.data.flip(0)
    after = model.answer(A, ASKED[0], max_new_tokens=NEW, compile=True).token_ids
    assert after == model.answer(A, ASKED[0], max_new_tokens=NEW).token_ids != before
    assert len(built) == 2


def test_compiling_is_told_once_a_shape(model, built):
    told = []
    model.on_progress = told.append
    for _ in range(2):
        model.answer(A, ASKED[0], max_new_tokens=NEW, compile=True)
    model.answer(A, ASKED[0], max_new_tokens=NEW, static_cache=True)
    assert told == ["compiling the decoding step for 1 row of up to 256 tokens, once"]


def test_a_stream_that_is_left_stops_the_loop(model):
    pieces = model.stream(A, ASKED[0], max_new_tokens=200, static_cache=True)
    next(pieces)
    pieces.close()
    whole = "".join(model.stream(A, ASKED[0], max_new_tokens=NEW, static_cache=True))
    assert whole.strip() == model.answer(A, ASKED[0], max_new_tokens=NEW).text


def test_an_error_in_a_stream_reaches_its_reader(model):
    def fail(*_):
        raise RuntimeError("a hook that fails")

    head_of(model.backbone)
    handle = model.backbone.head_module.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="a hook that fails"):
        list(model.stream(A, ASKED[0], max_new_tokens=NEW, static_cache=True))
    handle.remove()


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("rows", [1, 3])
def test_attention_to_slots_is_torchs_own_to_what_is_filled(rows, heads):
    draw = torch.Generator().manual_seed(rows * 10 + heads)
    query = torch.randn(rows, 4, 1, 8, generator=draw)
    prompt = DynamicCache()
    prompt.update(torch.randn(rows, heads, 5, 8, generator=draw), torch.randn(rows, heads, 5, 8, generator=draw), 0)
    keys, values = prompt.layers[0].keys, prompt.layers[0].values
    mask = torch.ones(rows, 5, dtype=torch.long)
    mask[-1, :2] = 0
    slots = FixedCache(prompt, rows + 1, 16)
    slots.fill(prompt, mask, 1)
    spread = [part.repeat_interleave(4 // heads, 1) for part in (keys, values)]
    expected = torch.nn.functional.scaled_dot_product_attention(query, *spread, attn_mask=mask.bool()[:, None, None])
    stored = slots.layers[0]
    assert stored.get_max_length() == 16
    for scaling in (8**-0.5, None):  # as blocks give it, and torch's own
        found, _ = attend(None, query, stored.keys[:rows], stored.values[:rows], slots.mask[:rows], scaling=scaling)
        torch.testing.assert_close(found.transpose(1, 2), expected)


def test_transformers_knows_the_attention_by_its_name():
    from transformers import AttentionInterface

    assert AttentionInterface()[ATTENTION] is attend


def test_a_report_on_a_cpu_is_read_at_once():
    watch = StepWatch(torch.zeros(2, dtype=torch.long))
    watch.send(torch.tensor([1, 0]))
    assert [report.tolist() for report in watch.read()] == [[1, 0]]
    assert watch.read(flush=True) == []


@pytest.mark.gpu
def test_captured_steps_on_a_card_answer_as_eager_ones(model, prior):
    assert Backbone.of(model).device.type == "cuda"
    rows = ([A, B, A], ASKED[:3])
    for method in (None, build("mgap", prior)):
        for options in ({"static_cache": True}, {"compile": True}):
            if method is None:
                assert tokens(model, rows, **options) == tokens(model, rows)
                continue
            with model.using(method):
                assert tokens(model, rows, **options) == tokens(model, rows)
                assert tokens(model, rows, prefill="shared", **options) == tokens(model, rows)


@pytest.mark.gpu
def test_rows_that_ended_on_a_card_are_noticed_two_tokens_late_and_not_said(model):
    plain = tokens(model, ([A], ASKED[:1]))[0][0]
    model.backbone.model.generation_config.eos_token_id = plain[3]
    short = model.answer(A, ASKED[0], max_new_tokens=200, static_cache=True)
    assert short.token_ids == plain[: plain.index(plain[3]) + 1]
    assert short.stop == "end"
