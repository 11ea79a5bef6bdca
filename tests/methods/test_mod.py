"""MoD: against itself written out; what it looks at, hides and keeps; the model's own kernel wherever nobody watches."""

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import mgap
from mgap.errors import ModelError, NonFiniteScores, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.kinds.attention_interceptor import ARGUMENT, attend
from mgap.methods.kinds.attention_weights import AttentionWatch, NewestWeights, least_attended
from mgap.methods.kinds.dependent_branch import DependentCache, blank
from mgap.methods.mod import divergence, hidden_counts
from mgap.types import Mode
from tests.decoding.test_modes import CALLS
from tests.methods.following import REFUSED, check_beams, encode_two
from tests.reference import mod as reference

QUESTIONS = ("Is there a dog in the image?", "What?", "Describe it.", "How many people are there?")
NEW = 12
DEFAULTS = {"rho": 0.2, "theta": 0.05, "a1": 4.0, "a2": 1.0, "beta": 0.5}
STRONG = {"rho": 0.1, "theta": 0.0, "a1": 4.0, "a2": 10.0, "beta": 0.0}
ADDED = {"rho": 0.3, "theta": 1.0, "a1": 9.0, "a2": 1.0, "beta": 0.1}


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def ways(refresh):
    return ("batched", "sequential") if refresh == "prefill" else ("sequential",)


@contextmanager
def reading(exact):
    """What the text decoder is given in every forward inside."""
    calls = []
    handle = exact.backbone.language.register_forward_pre_hook(
        lambda _language, _args, kwargs: calls.append(kwargs), with_kwargs=True
    )
    try:
        yield calls
    finally:
        handle.remove()


@pytest.mark.parametrize("refresh", ["prefill", "every_step"])
@pytest.mark.parametrize(
    "settings", [pytest.param(DEFAULTS, marks=pytest.mark.product), STRONG, ADDED], ids=["defaults", "strong", "added"]
)
def test_it_is_what_its_equations_say(exact, picture, settings, refresh):
    lengths = []
    for question in QUESTIONS:
        main = exact.backbone.encode([picture], [question])
        expected, js = reference.decode(exact, main, {**settings, "refresh": refresh}, NEW)
        for mode in ways(refresh):
            with exact.using(mgap.MoD(**settings, refresh=refresh, branch_mode=mode)):
                answer = exact.answer(picture, question, max_new_tokens=NEW, trace=True)
            assert answer.token_ids[: len(expected)] == expected, (question, mode)
            assert answer.trace[0].values["js"] == pytest.approx(js, rel=1e-3)
        lengths.append(len(expected))
    assert max(lengths) == NEW, lengths


def test_both_refreshes_start_alike_and_part_later(exact, picture):
    told = {}
    for refresh in ("prefill", "every_step"):
        with exact.using(mgap.MoD(**STRONG, refresh=refresh, branch_mode="sequential")):
            told[refresh] = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    assert [tokens[0] for tokens in told["prefill"]] == [tokens[0] for tokens in told["every_step"]]
    assert told["prefill"] != told["every_step"]


@pytest.mark.parametrize("refresh", ["prefill", "every_step"])
@pytest.mark.parametrize("settings", [{"a1": 0.0, "a2": 0.0}, {"rho": 1.0}], ids=str)
def test_zero_strength_and_a_whole_picture_say_what_the_model_says(exact, picture, settings, refresh):
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(mgap.MoD(**settings, refresh=refresh, branch_mode=ways(refresh)[0])):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


@pytest.mark.parametrize("refresh", ["prefill", "every_step"])
def test_every_row_has_its_own_mode_and_the_answer_it_has_alone(exact, picture, refresh):
    """The threshold lies between the rows' divergences: one batch holds both modes."""
    pictures = [picture, picture.rotate(90, expand=True), picture.rotate(180), picture]
    method = mgap.MoD(rho=0.1, a2=5.0, beta=0.0, refresh=refresh, branch_mode=ways(refresh)[0])
    with exact.using(method):
        found = [exact.answer(p, q, max_new_tokens=1, trace=True) for p, q in zip(pictures, QUESTIONS, strict=False)]
    middle = sorted(answer.trace[0].values["js"] for answer in found)[1:3]
    with exact.using(replace(method, theta=sum(middle) / 2)):
        alone = [exact.answer(p, q, max_new_tokens=NEW, trace=True) for p, q in zip(pictures, QUESTIONS, strict=False)]
        together = list(exact.answers(pictures, QUESTIONS[:4], batch_size=4, max_new_tokens=NEW, trace=True))
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    modes = [{step.values["mode"] for step in answer.trace} for answer in together]
    assert all(len(each) == 1 for each in modes), "kept from the first token on"
    assert sorted(mode for each in modes for mode in each) == [-1, -1, 1, 1]


def test_the_branch_reads_zeros_where_it_is_not_to_look(exact, picture):
    """Also at the deeper blocks that some decoders read pictures at; everything else is the main rows' own."""
    backbone, rho = exact.backbone, 0.3
    main = backbone.encode([picture], ["What?"])
    images = backbone.image_mask(main)[0]
    with reference.eager(backbone), torch.no_grad():
        weights = backbone.model(**main, output_attentions=True).attentions
    low = reference.least(reference.attended(weights, images.nonzero()[:, 0].tolist()), rho)
    with exact.using(mgap.MoD(rho=rho)), reading(exact) as calls:
        exact.answer(picture, "What?", max_new_tokens=2)
    own, branch, _ = calls
    assert [len(call["inputs_embeds"]) for call in calls] == [1, 1, 2]
    gone = (branch["inputs_embeds"][0] == 0).all(-1)
    assert sorted(gone.nonzero()[:, 0].tolist()) == sorted(low)
    assert torch.equal(branch["inputs_embeds"][0, ~gone], own["inputs_embeds"][0, ~gone])
    assert torch.equal(branch["position_ids"], own["position_ids"])
    assert branch["attention_mask"].all()
    if own.get("deepstack_visual_embeds") is not None:
        for before, after in zip(own["deepstack_visual_embeds"], branch["deepstack_visual_embeds"], strict=True):
            assert torch.equal((after == 0).all(-1), gone[images])
            assert torch.equal(after[~gone[images]], before[~gone[images]])


def test_several_pictures_of_a_row_are_ranked_together(exact, picture):
    backbone, settings = exact.backbone, {**STRONG, "refresh": "prefill"}
    inputs = encode_two(backbone, picture)
    expected, _ = reference.decode(exact, inputs, settings, 8)
    for mode in ("batched", "sequential"):
        with exact.using(mgap.MoD(**settings, branch_mode=mode)):
            made = backbone.model.generate(**inputs, max_new_tokens=8, do_sample=False)
        assert tuple(made[0, inputs["input_ids"].shape[1] :].tolist())[: len(expected)] == expected


def test_the_vision_tower_runs_once(exact, picture):
    for refresh in ("prefill", "every_step"):
        calls = []
        handle = exact.backbone.vision.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        with exact.using(mgap.MoD(refresh=refresh, branch_mode="sequential")):
            exact.answer(picture, QUESTIONS[0], max_new_tokens=4)
        handle.remove()
        assert len(calls) == 1


def test_reading_anew_costs_the_whole_prompt_at_every_token_and_prefill_does_not(exact, picture):
    lengths = {}
    for refresh in ("prefill", "every_step"):
        with exact.using(mgap.MoD(**STRONG, refresh=refresh, branch_mode="sequential")), reading(exact) as calls:
            exact.answer(picture, "What?", max_new_tokens=3)
        lengths[refresh] = [call["inputs_embeds"].shape[1] for call in calls]
    prompt = lengths["prefill"][0]
    assert lengths["prefill"] == [prompt, prompt, 1, 1, 1, 1]
    assert lengths["every_step"] == [prompt, prompt, 1, prompt, 1, 1, prompt, 2]


def test_beams_of_a_branch_that_reads_anew_score_as_a_forced_answer_does(exact, picture):
    method = mgap.MoD(rho=0.1, theta=0.0, a2=3.0, beta=0.0, refresh="every_step", branch_mode="sequential")
    check_beams(exact, picture, method)


@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=() if mode in (Mode.GREEDY, Mode.STATIC) else pytest.mark.product) for mode in CALLS],
    ids=lambda mode: mode.value,
)
def test_reading_anew_works_in_every_mode_or_is_refused(exact, family, checkpoints, picture, mode):
    draft = mgap.load(str(checkpoints[family])) if mode is Mode.ASSISTED else None
    plain = CALLS[mode](exact, picture, draft)
    method = mgap.MoD(**STRONG, refresh="every_step", branch_mode="sequential")
    with exact.using(method):
        if mode in method.modes:
            assert CALLS[mode](exact, picture, draft) != plain
        else:
            with pytest.raises(UnsupportedDecoding, match=mode.value):
                CALLS[mode](exact, picture, draft)
    assert CALLS[mode](exact, picture, draft) == plain


def test_what_a_row_keeps_follows_its_beam(exact):
    prompt = {"attention_mask": torch.ones(3, 2), "position_ids": torch.tensor([[0, 1], [0, 2], [0, 3]])}
    cache = DependentCache(exact.backbone.config, prompt, torch.zeros(3, 2).bool(), None)
    cache.row_state["js"] = torch.tensor([0.1, 0.2, 0.3])
    cache.append({"input_ids": torch.tensor([[7], [8], [9]])})
    cache.reorder_cache(torch.tensor([2, 2, 0]))
    cache.append({"input_ids": torch.tensor([[1], [2], [3]])})
    assert cache.row_state["js"].tolist() == pytest.approx([0.3, 0.3, 0.1])
    assert cache.answer["input_ids"].tolist() == [[9, 1], [9, 2], [7, 3]]
    assert cache.answer_after()["position_ids"].tolist() == [[4, 5], [4, 5], [2, 3]]


# --- kernels --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernel(exact):
    """The text decoder has a kernel of somebody's own, which notes how many queries it is called with."""
    text, calls = exact.backbone.config.text_config, []

    def attention(module, query, *rest, **more):
        calls.append(query.shape[2])
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, *rest, **more)

    AttentionInterface.register("somebodys_own", attention)
    AttentionMaskInterface.register("somebodys_own", sdpa_mask)
    usual, text._attn_implementation = text._attn_implementation, "somebodys_own"
    yield calls
    assert text._attn_implementation == "somebodys_own"
    text._attn_implementation = usual


def test_any_kernel_works_and_is_left_out_of_the_prompts_main_forward_only(exact, picture, kernel):
    blocks = 3
    with exact.using(mgap.MoD(**STRONG)):
        own = exact.answer(picture, "What?", max_new_tokens=4).token_ids
    prompt = kernel[0]
    assert kernel == [prompt] * blocks + [1] * blocks * (len(own) - 1), "the branch's prompt, then both"
    for other in ("sdpa", "eager"):
        exact.backbone.config.text_config._attn_implementation = other
        try:
            with exact.using(mgap.MoD(**STRONG)):
                assert exact.answer(picture, "What?", max_new_tokens=4).token_ids == own
            assert exact.backbone.config.text_config._attn_implementation == other
        finally:
            exact.backbone.config.text_config._attn_implementation = "somebodys_own"


def test_detaching_leaves_the_model_as_it_was_also_after_an_error(exact, picture):
    own = exact.backbone.model

    def look():
        hooks = [(list(module._forward_hooks), list(module._forward_pre_hooks)) for module in own.modules()]
        return deepcopy(own.config.to_dict()), hooks, own.config.text_config._attn_implementation

    def stop(*_):
        raise RuntimeError("halt")

    exact.answer(picture, QUESTIONS[0], max_new_tokens=2)  # transformers adds hooks of its own once
    before = look()
    with exact.using(mgap.MoD(**STRONG)):
        changed, language = exact.answer(picture, QUESTIONS[0], max_new_tokens=4).token_ids, exact.backbone.language
        resting = list(language._forward_pre_hooks)  # none; older versions of transformers get pictures in there
        for module in (exact.backbone.layers[1], exact.backbone.head_module):
            handle = module.register_forward_hook(stop)
            with pytest.raises(RuntimeError, match="halt"):
                exact.answer(picture, QUESTIONS[0], max_new_tokens=4)
            handle.remove()
            assert own.config.text_config._attn_implementation == before[-1]
            assert list(language._forward_pre_hooks) == resting
        assert exact.answer(picture, QUESTIONS[0], max_new_tokens=4).token_ids == changed
    assert look() == before


def test_an_interrupted_prompt_leaves_nothing_for_the_next_one_to_trip_over(exact, picture):
    """Hooks of torch do not run when somebody presses control-C: the next forward, or detaching, puts things right."""

    def press(*_):
        raise KeyboardInterrupt

    usual = exact.backbone.config.text_config._attn_implementation
    for goes_on in (True, False):
        with exact.using(mgap.MoD(**STRONG)):
            expected = exact.answer(picture, "What?", max_new_tokens=4).token_ids
            handle = exact.backbone.layers[1].register_forward_hook(press)
            with pytest.raises(KeyboardInterrupt):
                exact.answer(picture, "What?", max_new_tokens=4)
            handle.remove()
            if goes_on:
                assert exact.answer(picture, "What?", max_new_tokens=4).token_ids == expected
        assert exact.backbone.config.text_config._attn_implementation == usual
        assert not exact.backbone.language._forward_hooks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("refresh", ["prefill", "every_step"])
def test_it_answers_in_half_precision(family, checkpoints, picture, dtype, refresh):
    half = mgap.load(str(checkpoints[family]), dtype=dtype)
    plain = half.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
    with half.using(mgap.MoD(**STRONG, refresh=refresh, branch_mode=ways(refresh)[0])):
        assert half.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids != plain


def test_a_decoder_that_cannot_be_watched_is_refused(exact, picture):
    """Its attention gets no argument, changes its scores by itself, or is never called for a block."""
    block, states = exact.backbone.layers[0].self_attn, torch.randn(3, 1, 4, 2, 16)
    with pytest.raises(ModelError, match="hand arguments on"):
        attend(block, *states, torch.ones(1, 1, 2, 2).bool())
    with pytest.raises(ModelError, match="softcap, which mod"):
        attend(block, *states, torch.ones(1, 1, 2, 2).bool(), **{ARGUMENT: NewestWeights("mod", 2)}, softcap=50.0)
    usual, block.config = block.config, deepcopy(block.config)  # this block no longer follows the decoder's configuration
    try:
        with exact.using(mgap.MoD()), pytest.raises(ModelError, match="attention of its own"):
            exact.answer(picture, "What?", max_new_tokens=2)
    finally:
        block.config = usual
    watch = AttentionWatch(exact.backbone, "mod")
    watch.start()
    with pytest.raises(ModelError, match="text decoder"):
        watch.take()
    assert exact.backbone.config.text_config._attn_implementation == "sdpa"


def test_a_watched_forward_sees_what_eager_attention_shows(exact, picture):
    backbone = exact.backbone
    inputs = backbone.encode([picture, picture], QUESTIONS[:2])  # the second is left padded
    with reference.eager(backbone), torch.no_grad():
        weights = backbone.model(**inputs, output_attentions=True).attentions
    expected = torch.stack([block[:, :, -1].mean(1) for block in weights])
    watch = AttentionWatch(backbone, "mod")
    watch.start()
    with torch.no_grad():
        backbone.model(**inputs, use_cache=True)
    torch.testing.assert_close(watch.take(), expected, rtol=1e-4, atol=1e-6)


def test_a_window_sees_the_newest_keys_and_gives_the_others_nothing():
    newest = NewestWeights("mod", 4)
    newest.add(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    newest.add(torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(torch.cat(newest.blocks), torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.5, 0.5]]))


# --- the pure parts ---------------------------------------------------------------------------------------------------


def test_the_least_attended_go_and_of_equal_ones_the_first():
    attention = torch.tensor([[0.9, 0.3, 0.1, 0.3, 0.2, 0.0], [0.0, 0.5, 0.5, 0.5, 0.5, 0.9]])
    images = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]]).bool()

    def hidden(rho):
        return least_attended(attention, images, hidden_counts(images, rho))

    assert hidden(0.5).nonzero().tolist() == [[0, 2], [0, 4], [1, 1], [1, 2]]
    assert hidden(0.25).nonzero().tolist() == [[0, 1], [0, 2], [0, 4], [1, 1], [1, 2], [1, 3]]
    assert torch.equal(hidden(0.0), images)
    assert not hidden(1.0).any()


@pytest.mark.parametrize(("n", "rho", "removed"), [(576, 0.2, 460), (256, 0.2, 204), (10, 0.9, 1), (1, 0.2, 0), (5, 0.4, 3)])
def test_the_share_that_goes_is_rounded_down(n, rho, removed):
    assert int(hidden_counts(torch.ones(1, n).bool(), rho)) == removed


def test_the_divergence_is_zero_for_equal_predictions_and_ln_2_for_certain_ones():
    logits = torch.randn(3, 50)
    assert divergence(logits, logits).tolist() == [0.0] * 3
    one, other = torch.full((1, 50), -200.0), torch.full((1, 50), -200.0)
    one[:, 3], other[:, 4] = 200.0, 200.0
    assert float(divergence(one, other)) == pytest.approx(0.6931, abs=1e-3)
    torch.testing.assert_close(divergence(logits, -logits), divergence(-logits, logits))


def test_the_mode_is_decided_once_and_kept():
    main, branch = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[0.0, 1.0, 2.0]])
    method, kept = mgap.MoD(beta=0.0), {}
    same, _ = method.weigh(main, [main.clone()], 1, kept)
    torch.testing.assert_close(same, 5 * main)
    later, traced = method.weigh(main, [branch], 2, kept)
    torch.testing.assert_close(later, main + 4 * branch)
    assert (float(traced["js"]), float(traced["mode"])) == (0.0, 1.0)
    apart, traced = method.combine(main, branch, 1)
    torch.testing.assert_close(apart, 2 * main - branch)
    assert float(traced["mode"]) == -1.0


def test_pictures_as_lists_and_as_one_tensor_are_blanked_alike():
    gone = torch.tensor([True, False, False, False, True, True])
    whole = torch.rand(2, 3, 4) + 1
    one = blank(BaseModelOutputWithPooling(pooler_output=whole), gone).pooler_output
    two = blank(BaseModelOutputWithPooling(pooler_output=list(whole)), gone).pooler_output
    assert torch.equal(one, torch.stack(two))
    assert (one == 0).all(-1).flatten().tolist() == gone.tolist()
    assert (whole > 0).all(), "the main rows' own stay"
    with pytest.raises(ModelError, match="6 encoded tokens for 5"):
        blank(BaseModelOutputWithPooling(pooler_output=whole), gone[:5])


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_a_row_without_a_picture_is_refused(exact, picture):
    with exact.using(mgap.MoD()):
        with pytest.raises(PromptError, match="leave mod off"):
            exact.answer(None, "What?", max_new_tokens=2)
        with pytest.raises(PromptError, match="in every row"):
            list(exact.answers([picture, None], ["What?", "Who?"], batch_size=2, max_new_tokens=2))


def test_a_prompt_in_chunks_is_refused(exact, picture):
    """Up to transformers 5.19 its picture was dropped; later each chunk has the part of it that it shows."""
    inputs = exact.backbone.encode([picture], ["What?"])
    chunk = inputs["input_ids"].shape[1] - 2
    refused = pytest.raises((PromptError, UnsupportedDecoding), match=r"leave mod off|without prefill_chunk_size")
    with exact.using(mgap.MoD()), refused:
        exact.backbone.model.generate(**inputs, max_new_tokens=2, do_sample=False, prefill_chunk_size=chunk)


def test_logits_that_are_no_numbers_are_refused():
    broken = torch.zeros(2, 5).index_fill(0, torch.tensor([1]), torch.nan)
    with pytest.raises(NonFiniteScores, match="NaN"):
        mgap.MoD().combine(torch.randn(2, 5), broken, 1)


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_your_own_generate_in_a_refused_mode_is_refused(exact, picture, options):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    for refresh in ("prefill", "every_step"):
        method = mgap.MoD(refresh=refresh, branch_mode="sequential")
        with exact.using(method), pytest.raises(UnsupportedDecoding):
            exact.backbone.model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)


def test_it_acts_on_somebodys_own_model(exact, picture):
    own, inputs = exact.backbone.model, exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.MoD(**STRONG)):
        expected = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
    with mgap.attach(own, mgap.MoD(**STRONG)):
        made = own.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    assert tuple(made[0, inputs["input_ids"].shape[1] :].tolist()) == expected


def test_it_stacks_on_nothing(exact, prior):
    with exact.using(mgap.MoD()), pytest.raises(SettingError, match="cannot be put on top"), exact.using(mgap.MGAP(prior)):
        pass


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"rho": 1.5}, "rho"), ({"beta": -1}, "beta"), ({"theta": -0.1}, "theta"), ({"a1": float("nan")}, "a1"),
     ({"a2": -1}, "a2"), ({"refresh": "never"}, "refresh"), ({"refresh": "every_step"}, "branch_mode=sequential"),
     ({"branch_mode": "both"}, "both")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.MoD(**settings)
