"""SID: against itself written out; which keys its branch sees, anew at every token; the main rows left alone."""

from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch

import mgap
from mgap.errors import ModelError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.kinds.attention_interceptor import ARGUMENT, BlockAttention
from mgap.methods.sid import LeastAttendedKeys, hide_keys, kept_counts
from tests.backbones.families import FAMILIES
from tests.methods.following import REFUSED, check_beams, encode_two
from tests.reference import sid as reference
from tests.reference.attention import eager

QUESTIONS = ("Is there a dog in the image?", "What?", "How many people are there?")
NEW = 8
DEFAULTS = {"alpha": 1.0, "beta": 0.1, "keep": 0.1736, "start": 1}
LATE = {"alpha": 4.0, "beta": 0.0, "keep": 3, "start": 2}


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@contextmanager
def hiding(exact):
    """The pass of every forward inside that has rows of the branch."""
    passes = []

    def keep(_language, _args, kwargs):
        if isinstance(kwargs[ARGUMENT], LeastAttendedKeys):
            passes.append(kwargs[ARGUMENT])

    handle = exact.backbone.language.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield passes
    finally:
        handle.remove()


@pytest.mark.both_families
@pytest.mark.parametrize("settings", [DEFAULTS, LATE], ids=["defaults", "late"])
def test_it_is_what_its_equations_say(exact, picture, settings):
    lengths = []
    for question in QUESTIONS[:2]:
        main = exact.backbone.encode([picture], [question])
        expected = reference.decode(exact, main, settings, NEW)
        for mode in ("batched", "sequential"):
            with exact.using(mgap.SID(**settings, branch_mode=mode)):
                tokens = exact.answer(picture, question, max_new_tokens=NEW).token_ids
            assert tokens[: len(expected)] == expected, (question, mode)
        lengths.append(len(expected))
    assert max(lengths) == NEW, lengths


def test_in_a_model_with_windows_it_is_what_its_equations_say(tmp_path, picture):
    """The block that ranks sees 16 keys, the one behind it all: the picture leaves the window during the answer."""
    FAMILIES["gemma3"](tmp_path)
    model = mgap.load(str(tmp_path), dtype=torch.float32)
    settings = {"alpha": 30.0, "beta": 0.0, "keep": 1, "start": 1}
    expected = reference.decode(model, model.backbone.encode([picture], ["?"]), settings, 5)
    assert expected != model.answer(picture, "?", max_new_tokens=5).token_ids[: len(expected)]
    for mode in ("batched", "sequential"):
        with model.using(mgap.SID(**settings, branch_mode=mode)):
            answer = model.answer(picture, "?", max_new_tokens=5, trace=True)
        assert answer.token_ids[: len(expected)] == expected
        distances = [step.values["distance"] for step in answer.trace]
        assert distances[0] > 1e-3 > distances[-1]


def test_several_pictures_of_a_row_are_ranked_together(exact, picture):
    backbone, inputs = exact.backbone, encode_two(exact.backbone, picture)
    expected = reference.decode(exact, inputs, LATE, 4)
    for mode in ("batched", "sequential"):
        with exact.using(mgap.SID(**LATE, branch_mode=mode)):
            made = backbone.model.generate(**inputs, max_new_tokens=4, do_sample=False)
        assert tuple(made[0, inputs["input_ids"].shape[1] :].tolist())[: len(expected)] == expected


def test_at_alpha_0_the_plain_logits_are_returned_to_the_bit_and_greedy_decoding_is_plain(exact, picture):
    main, branch = torch.randn(2, 3, 50)
    assert torch.equal(mgap.SID(alpha=0.0, beta=0.0).combine(main, branch, 1)[0], main)
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    for mode in ("batched", "sequential"):
        with exact.using(mgap.SID(alpha=0.0, beta=0.5, branch_mode=mode)):
            assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


@pytest.mark.parametrize("start", [1, 2])
def test_blocks_below_the_cut_have_the_same_states_in_both_rows_and_later_ones_do_not(exact, picture, start):
    states = {index: [] for index in range(3)}
    handles = [
        block.register_forward_hook(lambda _block, _args, out, index=index: states[index].append(out))
        for index, block in enumerate(exact.backbone.layers)
    ]
    with exact.using(mgap.SID(start=start, keep=1)):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=3)
    for handle in handles:
        handle.remove()
    for index, outputs in states.items():
        rows = [(out if isinstance(out, torch.Tensor) else out[0]).chunk(2) for out in outputs]
        assert len(rows) == 3
        assert all(torch.equal(main, branch) == (index < start) for main, branch in rows), index


def test_the_fewer_tokens_the_branch_keeps_the_further_it_is(exact, picture):
    n = int(exact.backbone.image_mask(exact.backbone.encode([picture], ["What?"])).sum())
    distances = []
    for keep in (n - 1, 1):
        with exact.using(mgap.SID(keep=keep)):
            answer = exact.answer(picture, QUESTIONS[0], max_new_tokens=1, trace=True)
        distances.append(answer.trace[0].values["distance"])
    assert 0 < distances[0] < distances[1] / 2


@pytest.mark.both_families
@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_every_token_chooses_by_its_own_attention_and_main_rows_see_everything(exact, picture, mode):
    """Two rows of other lengths, held to what eager attention shows of each alone."""
    backbone, keep, start = exact.backbone, 0.3, 2
    pictures, questions = [picture, picture.rotate(90, expand=True)], QUESTIONS[:2]
    inputs = backbone.encode(pictures, questions)
    method = mgap.SID(alpha=3.0, keep=keep, start=start, branch_mode=mode)
    with exact.using(method), hiding(exact) as passes:
        made = backbone.model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert len(passes) == 3
    assert all(not each.hidden[: each.main_rows].any() for each in passes)
    length, chosen = inputs["input_ids"].shape[1], [set(), set()]
    for row in range(2):
        alone, answer = backbone.encode([pictures[row]], [questions[row]]), made[row : row + 1, length:-1]
        prompt = alone["input_ids"].shape[1]
        images = backbone.image_mask(alone)[0].nonzero()[:, 0].tolist()
        alone["input_ids"] = torch.cat([alone["input_ids"], answer], 1)
        alone["attention_mask"] = torch.ones_like(alone["input_ids"])
        if "mm_token_type_ids" in alone:
            alone["mm_token_type_ids"] = torch.cat([alone["mm_token_type_ids"], torch.zeros_like(answer)], 1)
        with eager(backbone), torch.no_grad():
            weights = backbone.model(**alone, output_attentions=True).attentions[start - 1][0].mean(0)  # [T, T]
        for step, one in enumerate(passes):
            w = {j: float(weights[prompt - 1 + step, j]) for j in images}
            kept = reference.least(w, reference.count(keep, len(images)))
            hidden = one.hidden[one.main_rows + row].nonzero()[:, 0].tolist()
            assert hidden == [length - prompt + j for j in images if j not in kept]  # behind the padding
            chosen[row].add(tuple(hidden))
    assert any(len(each) > 1 for each in chosen), "a choice that is made once would pass"


@pytest.mark.both_families
def test_a_batch_of_two_says_what_one_and_one_say(exact, picture):
    pictures = [picture, picture.rotate(90, expand=True)]
    for mode in ("batched", "sequential"):
        with exact.using(mgap.SID(alpha=4.0, keep=0.3, branch_mode=mode)):
            alone = [exact.answer(p, q, max_new_tokens=NEW).token_ids for p, q in zip(pictures, QUESTIONS, strict=False)]
            together = [answer.token_ids for answer in exact.answers(pictures, QUESTIONS[:2], max_new_tokens=NEW)]
        assert together == alone


def test_beams_score_as_a_forced_answer_does(exact, picture):
    check_beams(exact, picture, mgap.SID(alpha=3.0, beta=0.0, keep=2))


def test_the_vision_tower_runs_once(exact, picture):
    calls = []
    handle = exact.backbone.vision.register_forward_hook(lambda *_: calls.append(1))
    with exact.using(mgap.SID()):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=2)
    handle.remove()
    assert len(calls) == 1


# --- the pure parts ---------------------------------------------------------------------------------------------------


def test_keep_counts_tokens_or_a_share_of_them_rounded_as_python_rounds():
    images = torch.arange(600) < torch.tensor([576, 10, 5, 2])[:, None]
    assert kept_counts(images, 100).tolist() == [100] * 4
    for share in (0.1736, 0.25, 0.5, 0.3, 0.001):
        assert kept_counts(images, share).tolist() == [max(1, round(share * n)) for n in (576, 10, 5, 2)]
    assert int(kept_counts(images[:1], mgap.SID().keep)) == 100


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float16])
def test_hidden_keys_are_hidden_from_every_query_unless_nothing_else_is_left(dtype):
    causal = torch.ones(4, 4).bool().tril()[None, None].expand(2, 1, 4, 4)
    mask = causal if dtype == torch.bool else torch.zeros(2, 1, 4, 4, dtype=dtype).masked_fill(~causal, -torch.inf)
    before = mask.clone()
    hidden = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]]).bool()
    left = hide_keys(mask, hidden)
    assert left.dtype == dtype
    visible = left if dtype == torch.bool else left == 0
    assert visible[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 1]]
    assert visible[1, 0].int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert torch.equal(mask, before)
    assert not (left if dtype == torch.bool else left.float().softmax(-1)).isnan().any()


def block_of(scores, mask, index):
    """A block whose every query has these scores [B, kv], and whose values are the scores."""
    key = scores[:, None, :, None].repeat(1, 1, 1, 8)  # [B, 1, kv, 8]
    query = torch.zeros(len(scores), 1, mask.shape[-2], 8)
    query[..., 0] = 1.0
    module = type("Block", (), {"layer_idx": index, "num_key_value_groups": 1, "is_causal": True})()
    return BlockAttention(module, query, key, key, mask, {"scaling": 1.0})


def test_a_window_ranks_the_image_keys_inside_and_leaves_the_others_visible():
    """At the prompt all keys are there and the mask says what the window is; later only its keys are."""
    images = torch.tensor([[0, 1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0]]).bool()
    scores = torch.tensor([[0.0, -9, 9, 3, 1, 2, 0, 0], [0.0, 1, 2, 0, 0, 0, 0, 0]])
    window = torch.ones(8, 8).bool().tril().triu(-4).expand(2, 1, 8, 8)  # the newest query sees the last five
    for given, mask in ((scores, window), (scores[:, 3:], window[:, :, -1:, 3:])):
        one = LeastAttendedKeys(mgap.SID(keep=1), 1, 0, images)
        one.rank(block_of(given, mask, 0))
        assert one.hidden.nonzero().tolist() == [[0, 3], [0, 5]]


def test_blocks_of_one_forward_may_see_more_keys_or_fewer():
    images = torch.tensor([[0, 1, 1, 1, 1, 0]]).bool()
    scores, seen = torch.tensor([[0.0, 4, 1, 3, 2, 0]]), torch.ones(1, 1, 1, 6).bool()
    one = LeastAttendedKeys(mgap.SID(keep=1), 1, 0, images)
    one.attend(block_of(scores, seen, 0))
    for index, first in enumerate((0, 3, 0, 2), start=1):  # windows between blocks that see everything
        out = one.attend(block_of(scores[:, first:], seen[..., first:].clone(), index))
        left = torch.tensor([scores[0, j] for j in (0, 2, 5) if j >= first])
        torch.testing.assert_close(out[0, 0, 0, 0], (left.softmax(-1) * left).sum())


@pytest.mark.parametrize(("blocks", "first"), [(32, 2), (36, 2), (40, 2), (64, 4), (3, 1), (2, 1)])
def test_the_cut_is_two_of_32_blocks_or_the_same_fraction(blocks, first):
    assert mgap.SID().first_block(blocks) == first
    with pytest.raises(SettingError, match="this model has 1"):
        mgap.SID().first_block(1)


def test_presets_fill_in_what_is_not_given():
    assert mgap.SID().strengths == (1.0, 0.1)
    assert mgap.SID(preset="reference-code").strengths == (0.5, 0.0)
    assert mgap.SID(preset="reference-code", alpha=2.0).strengths == (2.0, 0.0)


# --- on the model, and off it -------------------------------------------------------------------------------------------


def test_detaching_leaves_the_model_as_it_was_also_after_an_error(exact, picture):
    own = exact.backbone.model

    def look():
        hooks = [(list(module._forward_hooks), list(module._forward_pre_hooks)) for module in own.modules()]
        return deepcopy(own.config.to_dict()), hooks, own.config.text_config._attn_implementation

    def stop(*_):
        raise RuntimeError("halt")

    exact.answer(picture, QUESTIONS[0], max_new_tokens=2)  # transformers adds hooks of its own once
    before = look()
    for mode in ("batched", "sequential"):
        with exact.using(mgap.SID(branch_mode=mode)):
            expected = exact.answer(picture, QUESTIONS[0], max_new_tokens=2).token_ids
            handle = exact.backbone.layers[1].register_forward_hook(stop)
            with pytest.raises(RuntimeError, match="halt"):
                exact.answer(picture, QUESTIONS[0], max_new_tokens=2)
            handle.remove()
            assert exact.answer(picture, QUESTIONS[0], max_new_tokens=2).token_ids == expected
        assert look() == before


def test_eager_and_sdpa_are_replaced_and_say_the_same_and_other_kernels_are_refused_by_name(exact, picture):
    text, told = exact.backbone.config.text_config, []
    usual = text._attn_implementation
    try:
        for kernel in ("sdpa", "eager"):
            text._attn_implementation = kernel
            with exact.using(mgap.SID(alpha=4.0)):
                told.append(exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids)
            assert text._attn_implementation == kernel
        text._attn_implementation = "flash_attention_2"
        with pytest.raises(ModelError, match="flash_attention_2"), exact.using(mgap.SID()):
            pass
        assert text._attn_implementation == "flash_attention_2"
        assert not exact.backbone.model._forward_pre_hooks
    finally:
        text._attn_implementation = usual
    assert told[0] == told[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_answers_in_half_precision(family, checkpoints, picture, dtype):
    half = mgap.load(str(checkpoints[family]), dtype=dtype)
    pictures, told = [picture, picture.rotate(90, expand=True)], []
    told.append([answer.token_ids for answer in half.answers(pictures, QUESTIONS[:2], max_new_tokens=NEW)])
    with half.using(mgap.SID(alpha=8.0, beta=0.0, keep=1)):
        told.append([answer.token_ids for answer in half.answers(pictures, QUESTIONS[:2], max_new_tokens=NEW)])
    assert told[0] != told[1]


def test_it_acts_on_somebodys_own_model(exact, picture):
    own, inputs = exact.backbone.model, exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.SID(**LATE)):
        expected = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
    with mgap.attach(own, mgap.SID(**LATE)):
        made = own.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    assert tuple(made[0, inputs["input_ids"].shape[1] :].tolist()) == expected


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_a_row_without_a_picture_is_refused(exact, picture):
    with exact.using(mgap.SID()):
        with pytest.raises(PromptError, match="leave sid off"):
            exact.answer(None, "What?", max_new_tokens=2)
        with pytest.raises(PromptError, match="in every row"):
            list(exact.answers([picture, None], ["What?", "Who?"], batch_size=2, max_new_tokens=2))


def test_a_branch_that_would_see_the_whole_picture_is_refused(exact, picture):
    n = int(exact.backbone.image_mask(exact.backbone.encode([picture], ["What?"])).sum())
    for keep in (n, n + 1, 0.999):
        with exact.using(mgap.SID(keep=keep)), pytest.raises(SettingError, match=f"{n} image tokens: keep fewer"):
            exact.answer(picture, "What?", max_new_tokens=1)


@pytest.mark.parametrize("start", [3, 30])
def test_a_cut_behind_the_last_block_is_refused(exact, start):
    with pytest.raises(SettingError, match="this model has 3"), exact.using(mgap.SID(start=start)):
        pass
    assert not exact.backbone.model._forward_pre_hooks


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_your_own_generate_in_a_refused_mode_is_refused(exact, picture, options):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    for mode in ("batched", "sequential"):
        with exact.using(mgap.SID(branch_mode=mode)), pytest.raises(UnsupportedDecoding):
            exact.backbone.model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)


def test_it_stacks_on_nothing(exact, prior):
    with exact.using(mgap.SID()), pytest.raises(SettingError, match="cannot be put on top"), exact.using(mgap.MGAP(prior)):
        pass


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"alpha": -1}, "alpha"), ({"beta": 2}, "beta"), ({"keep": 0}, "keep"), ({"keep": 1.0}, "keep"), ({"keep": 0.0}, "keep"),
     ({"keep": True}, "keep"), ({"keep": 2**31}, "keep"), ({"keep": float("nan")}, "keep"), ({"start": 0}, "start"),
     ({"start": 1.5}, "start"), ({"preset": "best"}, "preset"), ({"branch_mode": "both"}, "branch_mode")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.SID(**settings)
