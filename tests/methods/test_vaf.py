"""VAF: against itself written out, on the right queries, keys and heads; the cache keeps its keys; refused where it must be."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache

import mgap
from mgap.errors import ModelError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.kinds.attention import AttentionEdit
from mgap.methods.kinds.attention_interceptor import CAUSAL, MASKED, BlockAttention
from mgap.methods.vaf import ScaledKeys, key_factors, text_queries
from tests.methods.following import REFUSED, check_beams
from tests.reference import vaf as reference

QUESTIONS = ("Is there a dog in the image?", "What?")
NEW = 6
STRONG = {"enhance": 3.0, "suppress": 0.3, "heads": 1.0}
GREEDY = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def two_pictures(backbone, picture):
    """One row that shows two pictures, with words between them."""
    image, text = backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id), backbone.render("What?")
    block = f"<|vision_start|>{image}<|vision_end|>" if "vision_start" in text else image
    text = text.replace(block, f"{block} and {block}")
    return dict(backbone.processor(images=[[picture, picture.rotate(90, expand=True)]], text=[text], return_tensors="pt"))


def assert_follows(model, inputs, method, blocks, settings):
    """The method's logits, token by token, are the reference's."""
    tokens, logits = reference.decode(model, inputs, blocks, NEW, **settings)
    with model.using(method):
        made = model.backbone.model.generate(**inputs, **GREEDY)
    assert tuple(made.sequences[0, inputs["input_ids"].shape[1] :].tolist())[: len(tokens)] == tokens
    found = torch.cat(made.logits[: len(tokens)]).double()
    torch.testing.assert_close(found, torch.tensor(logits, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    return len(tokens)


@pytest.mark.parametrize(
    ("settings", "start", "end"),
    [
        pytest.param({"enhance": 1.15, "suppress": 0.95, "heads": 1.0}, None, None, id="defaults"),
        pytest.param(STRONG, 0, 3, id="strong", marks=pytest.mark.both_families),
        pytest.param({**STRONG, "heads": 0.5}, 1, 3, id="half of the heads", marks=pytest.mark.both_families),
        pytest.param({**STRONG, "heads": 0.3}, 0, 2, id="two heads of four"),
    ],
)
def test_vaf_is_what_its_equations_say(exact, picture, settings, start, end):
    blocks, lengths = range(start or 0, end or 1), []
    for question in QUESTIONS:
        inputs = exact.backbone.encode([picture], [question])
        lengths.append(assert_follows(exact, inputs, mgap.VAF(start=start, end=end, **settings), blocks, settings))
    assert max(lengths) == NEW, lengths


@pytest.mark.both_families
def test_words_between_two_pictures_keep_plain_attention(exact, picture):
    inputs = two_pictures(exact.backbone, picture)
    assert_follows(exact, inputs, mgap.VAF(start=0, end=3, **STRONG), range(3), STRONG)


def test_factors_of_1_give_the_plain_logits_to_the_bit_and_touch_nothing(exact, picture):
    inputs, text = exact.backbone.encode([picture], [QUESTIONS[0]]), exact.backbone.config.get_text_config()
    plain, usual = exact.backbone.model.generate(**inputs, **GREEDY).logits, text._attn_implementation
    with exact.using(mgap.VAF(enhance=1.0, suppress=1.0)):
        assert text._attn_implementation == usual
        found = exact.backbone.model.generate(**inputs, **GREEDY).logits
    assert all(map(torch.equal, found, plain))


def test_keys_and_queries_are_told_apart_in_every_row():
    rows = ("..ss##tt##ttt", "#########tttt", "sssstttttttts", "ssssssssss###")  # padding, system, picture, text
    images = torch.tensor([[mark == "#" for mark in row] for row in rows])
    factors = key_factors(images, 2.0, 0.5, torch.float64)
    assert factors[0].tolist() == [0.5] * 4 + [2, 2, 1, 1, 2, 2, 1, 1, 1]
    assert factors[1].tolist() == [2] * 9 + [1] * 4
    assert factors[2].tolist() == [1] * 13, "without a picture nothing is suppressed"
    assert factors[3].tolist() == [0.5] * 10 + [2] * 3
    assert text_queries(images).int().tolist() == [[0] * 10 + [1] * 3, [0] * 9 + [1] * 4, [0] * 13, [0] * 13]


def drawn(dtype, key_heads, queries):
    """Attention of two rows, one padded, over 6 keys of 4 heads."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 16, generator=generator).to(dtype)
    key, value = torch.randn(2, 2, key_heads, 6, 16, generator=generator).to(dtype)
    mask = torch.ones(2, 1, 6, 6).bool().tril()
    mask[1, :, :, :1] = False
    mask[1, :, 0, 0] = True  # a padding query sees itself, as in transformers
    module = SimpleNamespace(layer_idx=1, num_key_value_groups=4 // key_heads, is_causal=True)
    return BlockAttention(module, query[:, :, -queries:], key, value, mask[:, :, -queries:], {"scaling": 0.25})


IMAGES = torch.tensor([[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]]).bool()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str)
@pytest.mark.parametrize("key_heads", [4, 2], ids=["own keys", "shared keys"])
@pytest.mark.parametrize("queries", [6, 1], ids=["prompt", "new token"])
def test_scaled_keys_give_scaled_scores(dtype, tolerance, key_heads, queries):
    block = drawn(dtype, key_heads, queries)
    before = block.key.clone()
    found = ScaledKeys(mgap.VAF(enhance=1.15, suppress=0.95), range(1, 2), IMAGES).attend(block)
    key, value = (part.repeat_interleave(4 // key_heads, 1).float() for part in (block.key, block.value))
    scores = block.query.float() @ key.mT * 0.25
    factors = torch.ones(2, 1, queries, 6)
    for row, first in enumerate((3, 4)):  # of the text
        text = slice(max(0, first - (6 - queries)), None)
        factors[row, :, text, IMAGES[row]] = 1.15
        factors[row, :, text, : first - 2] = 0.95
    weights = (scores * factors).masked_fill(~block.mask, -torch.inf).softmax(-1)
    torch.testing.assert_close(found.float(), (weights @ value).transpose(1, 2), rtol=tolerance, atol=tolerance)
    assert torch.equal(block.key, before)
    assert found.dtype == dtype


def test_a_sliding_window_cuts_the_factors_with_the_keys():
    block = drawn(torch.float32, 4, 1)
    whole = ScaledKeys(mgap.VAF(), range(1, 2), IMAGES)
    window = replace(block, key=block.key[:, :, -3:], value=block.value[:, :, -3:], mask=block.mask[..., -3:])
    assert torch.equal(whole.scale(window.key), whole.scale(block.key)[:, :, -3:])
    half = ScaledKeys(mgap.VAF(heads=0.5), range(1, 2), IMAGES)
    assert half.attend(window).shape == (2, 1, 4, 16)


@pytest.mark.parametrize(("share", "count"), [(0.1, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (1.0, 4)])
def test_the_heads_that_look_at_the_picture_most_are_chosen(share, count):
    block = drawn(torch.float32, 4, 6)
    scores, _ = block.newest_scores()
    mass = (scores.softmax(-1) * IMAGES[:, None, None]).sum((-2, -1))
    chosen = ScaledKeys(mgap.VAF(heads=share), range(1, 2), IMAGES).looking_heads(block)[:, 0, :, 0]
    for row in range(2):
        assert set(chosen[row].nonzero()[:, 0].tolist()) == set(mass[row].argsort(descending=True)[:count].tolist())


@contextmanager
def recorded(model, method, blocks):
    """While the edit is on: the last query's scores and weights in an edited block, and what each block gave."""
    seen, outputs = [], []

    class Recording(ScaledKeys):
        def attend(self, block):
            if block.index in self.blocks:
                (plain, _), (edited, _) = block.newest_scores(), replace(block, key=self.scale(block.key)).newest_scores()
                seen.append((plain[0, :, 0], plain[0, :, 0].log_softmax(-1), edited[0, :, 0].log_softmax(-1)))
            return super().attend(block)

    edit = AttentionEdit(model.backbone, "vaf", partial(Recording, method, blocks), blocks, needs_picture=True)
    handles = [
        block.register_forward_hook(lambda _block, _args, output: outputs.append(output)) for block in model.backbone.layers
    ]
    try:
        yield seen, outputs
    finally:
        edit.remove()
        for handle in handles:
            handle.remove()


@pytest.mark.both_families
def test_positive_scores_of_the_picture_gain_on_the_text_and_lower_blocks_stay_as_they_are(exact, picture):
    inputs, found = exact.backbone.encode([picture], [QUESTIONS[0]]), []
    for enhance in (1.0, 3.0):
        with recorded(exact, mgap.VAF(enhance=enhance, suppress=1.0), range(1, 2)) as (seen, outputs):
            exact.backbone.model.generate(**inputs, max_new_tokens=1, do_sample=False)
        found.append(outputs)
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1])
    ((scores, before, after),) = seen
    images = exact.backbone.image_mask(inputs)[0]
    gained = (after - before)[:, images] - (after - before)[:, -1:]  # on the last text key
    assert torch.equal(gained > 0, scores[:, images] > 0)
    torch.testing.assert_close(gained, 2 * scores[:, images], rtol=1e-3, atol=1e-4)


def test_the_cache_keeps_the_models_own_keys(exact, picture):
    inputs, caches = exact.backbone.encode([picture], [QUESTIONS[0]]), {}
    for method in (None, mgap.VAF(enhance=3.0, start=0, end=1)):
        caches[method] = DynamicCache(config=exact.backbone.config)
        with exact.using(method) if method else torch.no_grad():
            exact.backbone.model.generate(**inputs, max_new_tokens=1, do_sample=False, past_key_values=caches[method])
    plain, edited = (cache.layers for cache in caches.values())
    assert torch.equal(edited[0].keys, plain[0].keys), "what the first block reads is not edited yet"
    assert not torch.equal(edited[1].keys, plain[1].keys)


@pytest.mark.parametrize("heads", [1.0, 0.5])
def test_in_your_own_generate_a_row_without_a_picture_beside_one_with_it_is_left_alone(exact, picture, heads):
    plain, inputs = exact.answer(None, QUESTIONS[1], max_new_tokens=NEW), exact.backbone.encode([picture, None], QUESTIONS)
    with exact.using(mgap.VAF(enhance=8.0, suppress=0.2, start=0, end=3, heads=heads)):
        made = exact.backbone.model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        alone = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW)
    for row, answer in zip(made[:, inputs["input_ids"].shape[1] :].tolist(), (alone, plain), strict=True):
        assert tuple(row[: len(answer.token_ids)]) == answer.token_ids


def test_beams_score_as_a_forced_answer_does(exact, picture):
    check_beams(exact, picture, mgap.VAF(start=0, end=3, **STRONG))


def test_eager_and_sdpa_are_replaced_and_restored(exact, picture):
    text, told = exact.backbone.config.get_text_config(), []
    own = exact.backbone.model
    exact.answer(picture, QUESTIONS[0], max_new_tokens=1)  # transformers adds hooks of its own once
    before = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in own.modules()]
    for kernel, heads in (("sdpa", 1.0), ("eager", 1.0), ("sdpa", 0.5)):
        usual, text._attn_implementation = text._attn_implementation, kernel
        try:
            with exact.using(mgap.VAF(**{**STRONG, "heads": heads}, start=0, end=3)):
                assert text._attn_implementation == (CAUSAL if heads == 1 else MASKED)
                told.append(exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids)
                with pytest.raises(PromptError, match="leave vaf off"):
                    exact.answer(None, QUESTIONS[0], max_new_tokens=1)
            assert text._attn_implementation == kernel
        finally:
            text._attn_implementation = usual
    assert told[0] == told[1]
    assert [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in own.modules()] == before


def test_a_kernel_that_takes_no_keys_of_ours_is_refused_by_name(exact):
    text = exact.backbone.config.get_text_config()
    usual, text._attn_implementation = text._attn_implementation, "flash_attention_2"
    try:
        with pytest.raises(ModelError, match="flash_attention_2"), exact.using(mgap.VAF()):
            pass
        assert not exact.backbone.model._forward_pre_hooks
    finally:
        text._attn_implementation = usual


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_your_own_generate_in_a_refused_mode_is_refused(exact, picture, options):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.VAF()), pytest.raises(UnsupportedDecoding, match="vaf"):
        exact.backbone.model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)


def test_the_trace_shows_the_edited_prediction(exact, picture):
    with exact.using(mgap.VAF(start=0, end=3, **STRONG)):
        answer = exact.answer(picture, QUESTIONS[0], max_new_tokens=3, trace=True)
    assert [step.after[0].token_id for step in answer.trace] == list(answer.token_ids)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"enhance": 0}, "above 0"), ({"enhance": -1}, "enhance"), ({"suppress": 0.0}, "suppress"), ({"heads": 0}, "above 0"),
     ({"heads": 1.5}, "heads"), ({"start": -1}, "start"), ({"end": 0}, "end"), ({"start": 1.5}, "start")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.VAF(**settings)


@pytest.mark.parametrize("bounds", [(3, None), (1, 1), (0, 4), (2, 1)])
def test_bounds_that_hold_no_block_are_refused(exact, bounds):
    with pytest.raises(SettingError, match="3 blocks"), exact.using(mgap.VAF(start=bounds[0], end=bounds[1])):
        pass
    assert not exact.backbone.model._forward_pre_hooks


@pytest.mark.parametrize(("count", "blocks"), [(1, (0, 1)), (3, (0, 1)), (28, (7, 13)), (32, (9, 15)), (36, (10, 16))])
def test_the_blocks_are_the_same_fractions_of_every_depth(count, blocks):
    assert mgap.VAF().blocks(count) == range(*blocks)
    assert mgap.VAF(start=0, end=count).blocks(count) == range(count)
