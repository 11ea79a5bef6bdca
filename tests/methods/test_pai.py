"""PAI: against itself written out, on the right rows and keys, off without a trace, and refused where it cannot act."""

from copy import deepcopy

import pytest
import torch

import mgap
from mgap.errors import ModelError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.kinds.attention_interceptor import ARGUMENT, MASKED, attend
from mgap.methods.pai import RaisedAttention, raise_scores
from tests.methods.following import REFUSED
from tests.reference import pai as reference

QUESTIONS = ("Is there a dog in the image?", "What?", "How many people are there?")
NEW = 12


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.mark.parametrize(
    ("alpha", "gamma", "start", "end"),
    [pytest.param(0.5, 1.1, 2, None, marks=pytest.mark.both_families), (3.0, 2.0, 0, 2), (2.0, 1.0, 0, None)],
    ids=str,
)
def test_pai_is_what_its_equations_say(exact, picture, alpha, gamma, start, end):
    lengths = []
    for question in QUESTIONS:
        main = exact.backbone.encode([picture], [question])
        expected = reference.decode(exact, main, alpha, gamma, range(start, end or 3), NEW)
        for mode in ("batched", "sequential"):
            with exact.using(mgap.PAI(alpha=alpha, gamma=gamma, start=start, end=end, branch_mode=mode)):
                tokens = exact.answer(picture, question, max_new_tokens=NEW).token_ids
            assert tokens[: len(expected)] == expected, (question, mode)
        lengths.append(len(expected))
    assert max(lengths) == NEW, lengths


def test_zero_strength_says_what_the_model_says(exact, picture):
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(mgap.PAI(alpha=0.0, gamma=1.0)):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


def test_the_edit_alone_changes_what_the_model_says(exact, picture):
    plain = exact.answer(picture, QUESTIONS[1], max_new_tokens=NEW).token_ids
    for settings in ({"alpha": 3.0, "gamma": 1.0}, {"alpha": 0.0, "gamma": 3.0}):
        with exact.using(mgap.PAI(start=0, **settings)):
            assert exact.answer(picture, QUESTIONS[1], max_new_tokens=NEW).token_ids != plain


def test_only_the_last_query_and_the_image_keys_change():
    scores, keys = torch.randn(2, 3, 4, 6), torch.tensor([[0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    scores[0, :, :, 5] = -torch.inf
    raised = raise_scores(scores, keys, 0.5)
    changed = torch.zeros(2, 3, 4, 6, dtype=torch.bool)
    changed[0, :, 3, 1:3] = True
    assert torch.equal(raised[~changed], scores[~changed])
    torch.testing.assert_close(raised[changed], scores[changed] + 0.5 * scores[changed].abs())


def test_in_your_own_generate_a_row_without_a_picture_beside_one_with_it_is_left_alone(exact, picture):
    plain = exact.answer(None, QUESTIONS[1], max_new_tokens=NEW)
    inputs = exact.backbone.encode([picture, None], QUESTIONS[:2])
    for gamma in (1.0, 2.0):
        with exact.using(mgap.PAI(alpha=3.0, gamma=gamma, start=0)):
            made = exact.backbone.model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
            alone = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW)
        for row, answer in zip(made[:, inputs["input_ids"].shape[1] :].tolist(), (alone, plain), strict=True):
            assert tuple(row[: len(answer.token_ids)]) == answer.token_ids


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_beams_score_as_a_forced_answer_does(exact, picture, gamma):
    """Every returned beam's score is what greedy decoding gives when it is made to say the same tokens."""
    own, inputs = exact.backbone.model, exact.backbone.encode([picture], [QUESTIONS[0]])
    length = inputs["input_ids"].shape[1]
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    with exact.using(mgap.PAI(alpha=2.0, gamma=gamma, start=0, beta=0.0)):
        beams = own.generate(**inputs, **options, num_beams=3, num_return_sequences=3, length_penalty=0.0, do_sample=False)
        for said, score in zip(beams.sequences[:, length:], beams.sequences_scores, strict=True):
            force = {"prefix_allowed_tokens_fn": lambda _row, ids, said=said: [int(said[len(ids) - length])]}
            made = own.generate(**inputs, **options, do_sample=False, output_logits=True, **force)
            logp = [step.log_softmax(-1)[0, token] for step, token in zip(made.logits, said, strict=True)]
            assert float(sum(logp)) == pytest.approx(float(score), abs=1e-3)


def test_detaching_leaves_the_model_as_it_was(exact, picture):
    own = exact.backbone.model
    text, vision = own.config.text_config, own.config.vision_config

    def look():
        hooks = [(list(module._forward_hooks), list(module._forward_pre_hooks)) for module in own.modules()]
        kernels = [config._attn_implementation for config in (own.config, text, vision)]
        return deepcopy(own.config.to_dict()), list(own.modules()), hooks, kernels

    exact.answer(picture, QUESTIONS[0], max_new_tokens=2)  # transformers adds hooks of its own once
    before = look()
    for gamma in (1.0, 2.0):
        with exact.using(mgap.PAI(gamma=gamma)):
            assert [text._attn_implementation, vision._attn_implementation] == [MASKED, before[-1][2]]
            exact.answer(picture, QUESTIONS[0], max_new_tokens=2)
            with pytest.raises(PromptError):
                exact.answer(None, QUESTIONS[0], max_new_tokens=2)
        assert look() == before


def test_eager_and_sdpa_are_replaced_and_say_the_same(exact, picture):
    text, told = exact.backbone.config.text_config, []
    for kernel in ("sdpa", "eager"):
        usual, text._attn_implementation = text._attn_implementation, kernel
        try:
            with exact.using(mgap.PAI(alpha=2.0, start=0)):
                told.append(exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids)
            assert text._attn_implementation == kernel
        finally:
            text._attn_implementation = usual
    assert told[0] == told[1]


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flex_attention"])
def test_a_kernel_that_shows_no_scores_is_refused_by_name(exact, kernel):
    own, text = exact.backbone.model, exact.backbone.config.text_config
    usual, text._attn_implementation = text._attn_implementation, kernel
    try:
        with pytest.raises(ModelError, match=kernel), exact.using(mgap.PAI()):
            pass
        assert text._attn_implementation == kernel
        assert not own._forward_pre_hooks
    finally:
        text._attn_implementation = usual


def test_a_decoder_that_the_edit_does_not_reach_is_refused(exact, picture):
    """Its attention gets no argument, changes its scores by itself, or is never called for a block."""
    block, states = exact.backbone.layers[0].self_attn, torch.randn(3, 1, 4, 2, 16)
    with pytest.raises(ModelError, match="hand arguments on"):
        attend(block, *states, torch.ones(1, 1, 2, 2).bool())
    raised = RaisedAttention(mgap.PAI(alpha=1.0), range(3), torch.ones(1, 2).bool())
    with pytest.raises(ModelError, match="softcap"):
        attend(block, *states, torch.ones(1, 1, 2, 2).bool(), **{ARGUMENT: raised}, softcap=50.0)
    usual, block.config = block.config, deepcopy(block.config)  # this block no longer follows the decoder's configuration
    try:
        with exact.using(mgap.PAI(gamma=1.0, start=0)), pytest.raises(ModelError, match="attention of its own"):
            exact.answer(picture, "What?", max_new_tokens=2)
    finally:
        block.config = usual


@pytest.mark.parametrize("gamma", [1.0, 1.1])
def test_without_a_picture_it_is_refused(exact, gamma):
    with exact.using(mgap.PAI(gamma=gamma)), pytest.raises(PromptError, match="leave pai off"):
        exact.answer(None, "What?", max_new_tokens=2)


@pytest.mark.parametrize("gamma", [1.0, 1.1])
@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_your_own_generate_in_a_refused_mode_is_refused(exact, picture, options, gamma):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.PAI(gamma=gamma)), pytest.raises(UnsupportedDecoding):
        exact.backbone.model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)


def test_a_forward_without_a_cache_is_refused(exact, picture):
    inputs = exact.backbone.encode([picture], ["What?"])
    with exact.using(mgap.PAI(gamma=1.0)), pytest.raises(UnsupportedDecoding, match="call generate"):
        exact.backbone.model(**inputs)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"alpha": -1}, "alpha"), ({"gamma": float("inf")}, "gamma"), ({"beta": 2}, "beta"), ({"preset": "best"}, "preset"),
     ({"branch_mode": "both"}, "branch_mode")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.PAI(**settings)


@pytest.mark.parametrize("bounds", [(3, None), (1, 1), (0, 4), (-1, 2)])
def test_bounds_that_hold_no_block_are_refused(exact, bounds):
    with pytest.raises(SettingError, match="3 blocks"), exact.using(mgap.PAI(start=bounds[0], end=bounds[1])):
        pass
    assert not exact.backbone.model._forward_pre_hooks


def test_presets_fill_in_what_is_not_given():
    assert (mgap.PAI().alpha, mgap.PAI().gamma) == (0.5, 1.1)
    assert mgap.PAI(preset="reference-code", alpha=0.3).strengths == (0.3, 2.0)


def test_the_trace_shows_the_edited_prediction_also_without_a_branch(exact, picture):
    for gamma in (1.0, 1.1):
        with exact.using(mgap.PAI(gamma=gamma)):
            answer = exact.answer(picture, QUESTIONS[0], max_new_tokens=4, trace=True)
        assert [step.after[0].token_id for step in answer.trace] == list(answer.token_ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [4, 2], ids=["own keys", "shared keys"])
def test_a_new_token_is_attended_from_as_the_end_of_a_prompt_is(exact, dtype, heads):
    """With one query, whether the mask is a bool or a bias, and with more."""
    block, drawn = exact.backbone.layers[0].self_attn, torch.Generator().manual_seed(0)
    usual, block.num_key_value_groups = block.num_key_value_groups, 4 // heads
    query = torch.randn(2, 4, 3, 16, generator=drawn).to(dtype)
    key, value = torch.randn(2, 2, heads, 6, 16, generator=drawn).to(dtype)
    keys = torch.tensor([[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]]).bool()
    mask = torch.ones(2, 1, 3, 6).bool().tril(3)
    mask[1, :, :, :2] = False
    bias = torch.zeros(2, 1, 3, 6, dtype=dtype).masked_fill(~mask, -torch.inf)
    told = []
    try:
        for q, shown in ((query, mask), (query[:, :, -1:], mask[:, :, -1:]), (query[:, :, -1:], bias[:, :, -1:])):
            raised = RaisedAttention(mgap.PAI(alpha=0.5), range(3), keys)
            out, _ = attend(block, q, key, value, shown, **{ARGUMENT: raised}, scaling=0.25)
            told.append(out[:, -1:])
    finally:
        block.num_key_value_groups = usual
    assert told[0].shape == (2, 1, 4, 16)
    for other in told[1:]:
        torch.testing.assert_close(other, told[0])
