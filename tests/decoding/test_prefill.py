"""A picture that several rows share is read once, and every answer stays what it was."""

import gc
import runpy
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.backbones.base import families_that
from mgap.backbones.gemma import Gemma3
from mgap.backbones.shared_prefill import SharedPrefill
from mgap.backbones.shared_vision import digest
from mgap.decoding.generate import generation_config
from mgap.decoding.prefill_sharing import can_share
from mgap.errors import ImageError, ModelError, PromptError, SettingError, UnsupportedDecoding
from mgap.pocket.benchmark import TEST, pope
from mgap.pocket.scenes import render
from mgap.pocket.tiny import build_tiny
from mgap.registry import EMBEDDED, METHODS
from mgap.types import Decoding
from tests.backbones import families
from tests.methods.builders import build

NEW = 6
ASKED = [
    "Is there a dog in the picture?",
    "Is there a cat in the picture?",
    "What?",
    "Describe what you can make out in this long and winding picture, please.",
]
SHARING = ["bias", "deco", "dola", "mgap", "nullu", "predicted-prior", "yes-if-close"]
TINY = {"llava": lambda folder: build_tiny("llava", folder), "qwen3_vl": lambda folder: build_tiny("qwen3-vl", folder)}


def noise(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


A, B, C = noise(64, 48), noise(40, 90), noise(80, 60)

# name -> rows of picture and prompt, in batches of three
ROWS = {
    "one picture": ([A, A, A, A], ASKED),
    "mixed, in turns": ([A, B, A, C, B, A], [*ASKED, ASKED[0], ASKED[2]]),
    "sorted, going on in the next batch": ([A, A, A, A, B, B, B], [*ASKED, *ASKED[:3]]),
    "a longer question first": ([A, B, A, B], [ASKED[3], ASKED[3], ASKED[0], ASKED[2]]),
    "one question": ([A], ASKED[:1]),
    "all pictures distinct": ([A, B, C], ASKED[:3]),
    "the same prompt again": ([A, A, B, A, A], [ASKED[0], ASKED[0], ASKED[1], ASKED[0], ASKED[0]]),
    "equal pictures, other objects": ([A, A.copy(), A.copy()], ASKED[:3]),
}


def tokens(model, rows, **options):
    options = {"batch_size": 3, "max_new_tokens": NEW, **options}
    return [(a.token_ids, *(b.token_ids for b in a.alternatives)) for a in model.answers(*rows, **options)]


def first_logits(model, rows):
    """The logits of the first token with both prefills, in float32: [B, vocab] each."""
    backbone, decoding = model.backbone, Decoding(max_new_tokens=1)
    config = generation_config(backbone, decoding)
    config.output_logits = True
    begun = SharedPrefill(backbone).encode(*rows)
    calls = [backbone.encode(*rows), {**begun.inputs, "past_key_values": begun.cache}]
    with torch.no_grad():
        own, shared = (backbone.model.generate(**call, generation_config=config).logits[0] for call in calls)
    return own, shared


@pytest.fixture
def read(model):
    """Digests of the pictures that the tower was shown, call by call."""
    calls, backbone = [], model.backbone

    def look(_tower, args, kwargs):
        seen = backbone.tower_inputs(args, kwargs)
        calls.append([digest(seen["pixel_values"][part]) for part in backbone.pictures(seen)])

    handle = backbone.vision.register_forward_pre_hook(look, with_kwargs=True)
    yield calls
    handle.remove()


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_answers_are_the_same(model, rows):
    own, shared = (tokens(model, rows, prefill=prefill) for prefill in ("own", "shared"))
    assert shared == own


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_the_first_token_has_the_same_logits(model, rows):
    own, shared = first_logits(model, rows)
    torch.testing.assert_close(shared, own, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"sample": True, "seed": 3},
        {"sample": True, "num_return_sequences": 3, "temperature": 0.7},
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2},
    ],
    ids=str,
)
def test_other_ways_to_choose_tokens_agree_as_well(model, options):
    rows = ROWS["sorted, going on in the next batch"]
    own, shared = (tokens(model, rows, prefill=prefill, **options) for prefill in ("own", "shared"))
    assert shared == own
    assert own != tokens(model, rows), "the option must show"


def test_a_repetition_penalty_sees_the_row_and_nothing_that_fills_it_up(model):
    rows = ROWS["sorted, going on in the next batch"]
    alone = tokens(model, rows, batch_size=1, repetition_penalty=1.3)  # in a batch of its own prefill it sees the padding
    assert tokens(model, rows, prefill="shared", repetition_penalty=1.3) == alone != tokens(model, rows)


def test_a_picture_is_read_once_for_its_rows_and_for_the_next_batch(model, read):
    rows = ROWS["sorted, going on in the next batch"]
    tokens(model, rows, prefill="shared")
    shown = [picture for call in read for picture in call]
    assert len(shown) == len(set(shown)) == 2
    read.clear()
    tokens(model, rows)
    assert sum(map(len, read)) == len(rows[0])


def test_a_file_is_a_picture_too(model, picture_file, picture):
    own = tokens(model, ([picture] * 3, ASKED[:3]))
    assert tokens(model, ([picture_file, str(picture_file), picture], ASKED[:3]), prefill="shared") == own


def test_only_the_pictures_of_the_last_batch_are_held(model):
    shared = SharedPrefill(model.backbone)
    shared.encode([A, B], ASKED[:2])
    before = weakref.ref(shared.held.cache.layers[0].keys)
    begun = shared.encode([B, C], ASKED[:2])
    gc.collect()
    assert before() is None
    held = shared.held.cache.layers[0].keys
    assert len(held) == len(shared.held.blocks) == 2
    shared.encode([C], ASKED[:1])
    assert len(shared.held.blocks) == 1
    assert begun.cache.layers[0].keys is not held, "generate must not write into what is held"


def test_what_is_held_is_no_wider_than_its_pictures(model):
    shared = SharedPrefill(model.backbone)
    shared.encode([A, B], [ASKED[2], ASKED[3]])
    width = shared.held.cache.get_seq_length()
    shared.encode([A], ASKED[:1])
    narrow = shared.held.cache.get_seq_length()
    assert narrow == len(shared.held.prefixes[0]) <= width
    assert shared.held.cache.layers[0].keys.untyped_storage().nbytes() == shared.held.cache.layers[0].keys.nbytes


def test_words_that_rows_share_are_not_read_again(model):
    shared = SharedPrefill(model.backbone)
    alike = shared.encode([A, A], ["Is there a dog?", "Is there a cat?"])
    shared.held = None
    unlike = shared.encode([A, A], ["Is there a dog?", "Where? A cat?"])
    assert alike.cache.get_seq_length() > unlike.cache.get_seq_length()
    assert alike.inputs["position_ids"].shape[-1] < unlike.inputs["position_ids"].shape[-1]


def test_what_fills_up_a_row_is_masked_and_new_to_no_row(model):
    inputs = SharedPrefill(model.backbone).encode(*ROWS["mixed, in turns"]).inputs
    own = model.backbone.encode(*ROWS["mixed, in turns"])
    for ids, mask, plain, used in zip(
        *(part[key] for part in (inputs, own) for key in ("input_ids", "attention_mask")), strict=True
    ):
        assert ids[mask.bool()].tolist() == plain[used.bool()].tolist()
        assert set(ids.tolist()) == set(ids[mask.bool()].tolist())


@pytest.mark.parametrize("name", METHODS.names())
def test_a_method_acts_as_before_or_is_refused(model, prior, name):
    method, rows = build(name, prior), ROWS["sorted, going on in the next batch"]
    plain = tokens(model, rows, prefill="shared")
    with model.using(method):
        if name in SHARING:
            assert can_share(model, method) == ""
            shared = tokens(model, rows, prefill="shared")
            assert shared == tokens(model, rows)
            assert shared != plain
        else:
            assert name in can_share(model, method)
            with pytest.raises(UnsupportedDecoding, match=name):
                tokens(model, rows, prefill="shared")
    assert tokens(model, rows, prefill="shared") == plain, "nothing may stay behind"


def test_the_strength_of_mgap_matters(model, prior):
    rows, told = ROWS["one picture"], []
    for method in (mgap.MGAP(prior, alpha=0.0), mgap.MGAP(prior), build("mgap", prior)):
        with model.using(method):
            told.append(tokens(model, rows, prefill="shared"))
            assert told[-1] == tokens(model, rows)
    assert told[0] == tokens(model, rows) != told[2]


def test_a_stack_is_refused_for_the_method_that_cannot(model, prior):
    with model.using(build("vcd", prior), build("mgap", prior)), pytest.raises(UnsupportedDecoding, match="vcd"):
        tokens(model, ROWS["one picture"], prefill="shared")


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("name", SHARING)
def test_the_trace_is_the_same(model, prior, name, options):
    rows = ROWS["sorted, going on in the next batch"]
    with model.using(build(name, prior)):
        own, shared = (
            list(model.answers(*rows, batch_size=3, max_new_tokens=4, trace=True, prefill=prefill, **options))
            for prefill in ("own", "shared")
        )
    for mine, theirs in zip(shared, own, strict=True):
        assert [step.token_id for step in mine.trace] == [step.token_id for step in theirs.trace] == list(mine.token_ids)
        for step, other in zip(mine.trace, theirs.trace, strict=True):
            assert step.values == pytest.approx(other.values, abs=1e-4, rel=1e-4)
            assert [c.probability for c in step.after] == pytest.approx([c.probability for c in other.after], abs=1e-4)


@pytest.mark.usefixtures("uncompiled_graphs")
@pytest.mark.parametrize("options", [{"static_cache": True}, pytest.param({"compile": True}, marks=pytest.mark.long)], ids=str)
def test_static_and_compiled_decoding_go_on_from_what_rows_share(model, prior, options):
    rows = ROWS["mixed, in turns"]
    with model.using(build("mgap", prior)):
        assert tokens(model, rows, prefill="shared", **options) == tokens(model, rows)


@pytest.mark.parametrize(
    ("options", "mode"),
    [({"static_cache": True, "num_beams": 2}, "static"), ({"compile": True, "num_beams": 2}, "compile"),
     ({"prompt_lookup": 2}, "assisted")],
)  # fmt: skip
def test_modes_that_cannot_go_on_from_a_cache_are_refused(model, options, mode):
    with pytest.raises(UnsupportedDecoding, match=mode):
        tokens(model, ([A], ASKED[:1]), prefill="shared", **options)


def test_neither_a_stream_nor_a_single_answer_takes_a_prefill(model):
    for call in (model.answer, lambda *rows, **options: list(model.stream(*rows, **options))):
        with pytest.raises(SettingError, match="prefill"):
            call(A, ASKED[0], prefill="shared")


def test_rows_that_have_nothing_to_share_are_refused(model):
    with pytest.raises(SettingError, match="prefill='both'"):
        tokens(model, ROWS["one picture"], prefill="both")
    with pytest.raises(PromptError, match="without a picture"):
        tokens(model, ([A, None], ASKED[:2]), prefill="shared")
    with pytest.raises(PromptError, match="1 images but 2"):
        tokens(model, ([A], ASKED[:2]), prefill="shared")
    placeholder = model.backbone.tokenizer.decode([model.backbone.image_token_id])
    with pytest.raises(PromptError, match=r"leave .* out"):
        tokens(model, ([A], [f"What is {placeholder}?"]), prefill="shared")


def test_an_error_on_the_way_leaves_nothing_behind(model, prior, tmp_path):
    rows = ROWS["one picture"]
    plain = tokens(model, rows)
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.backbone.model.modules()]
    with pytest.raises(ImageError), model.using(build("deco", prior)):
        tokens(model, ([A, A, A, tmp_path / "missing.png"], ASKED), prefill="shared")
    assert [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.backbone.model.modules()] == hooks
    assert tokens(model, rows) == tokens(model, rows, prefill="shared") == plain


def test_a_template_with_the_prompt_before_the_picture_is_refused(model, monkeypatch):
    parts = "{% for part in messages[0]['content'] | reverse %}{{ part['text'] if part['type'] == 'text' else PICTURE }}"
    backwards = parts + "{% endfor %}!"
    picture = model.backbone.tokenizer.decode([model.backbone.image_token_id])
    monkeypatch.setattr(model.backbone.processor, "chat_template", backwards.replace("PICTURE", repr(picture)))
    assert "before the picture" in can_share(model)
    with pytest.raises(UnsupportedDecoding, match="before the picture"):
        tokens(model, ROWS["one picture"], prefill="shared")
    rows = (ROWS["one picture"][0], [ASKED[0], ASKED[1], ASKED[0], ASKED[2]])
    own, shared = first_logits(model, rows)  # rows that begin alike still share, and the others do not
    torch.testing.assert_close(shared, own, rtol=0, atol=1e-4)


def test_what_has_not_been_checked_is_refused(model, monkeypatch):
    assert can_share(model) == can_share(model.backbone) == ""
    assert "processor" in can_share(model.backbone.model)
    with monkeypatch.context() as patch:
        patch.setattr(model.backbone.config.get_text_config(), "_attn_implementation_internal", "flex_attention")
        assert "flex_attention" in can_share(model)
    monkeypatch.setattr(type(model.backbone), "shares_prefill", False)
    assert model.backbone.config.model_type in can_share(model)


@pytest.mark.parametrize("kind", [*TINY, *families.FAMILIES])
def test_every_family_that_is_named_agrees_and_the_others_are_refused(kind, tmp_path, monkeypatch):
    {**TINY, **families.FAMILIES}[kind](tmp_path)
    monkeypatch.setattr("mgap.backbones.loading.is_torchvision_available", lambda: False)
    model, rows = mgap.load(str(tmp_path)), ROWS["mixed, in turns"]
    assert (can_share(model) == "") == (kind in families_that("shares_prefill"))
    if kind not in families_that("shares_prefill"):
        with pytest.raises(UnsupportedDecoding, match=kind):
            tokens(model, rows, prefill="shared")
        return
    own, shared = first_logits(model, rows)
    torch.testing.assert_close(shared, own, rtol=0, atol=1e-4)
    assert tokens(model, rows, prefill="shared") == tokens(model, rows)


def test_every_family_that_is_named_is_tested():
    assert set(TINY) | set(families.FAMILIES) >= set(families_that("shares_prefill"))


def test_a_cache_that_forgets_is_refused(tmp_path, monkeypatch):
    families.gemma3(tmp_path)
    monkeypatch.setattr(Gemma3, "shares_prefill", True)
    assert "sliding window" in can_share(mgap.load(str(tmp_path)))


def test_a_picture_that_words_may_run_into_is_refused(model, monkeypatch):
    shared = SharedPrefill(model.backbone)
    shared.special = set()
    with pytest.raises(ModelError, match="run into"):
        shared.encode([A], ASKED[:1])


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_pocket_models_answer_alike(name):
    model = mgap.load(name, dtype="float32")
    questions = list(pope("random", TEST, 3))
    drawn = {q.scene: render(q.scene) for q in questions}
    rows = [drawn[q.scene] for q in questions], [q.text for q in questions]
    own, shared = first_logits(model, rows)
    torch.testing.assert_close(shared, own, rtol=0, atol=1e-4)
    own, shared = (tokens(model, rows, batch_size=8, max_new_tokens=16, prefill=prefill) for prefill in ("own", "shared"))
    assert shared == own
    assert len({told[0][0] for told in own}) == 2, "both yes and no are said"


@pytest.mark.long
def test_the_benchmark_measures_all_three_ways_and_finds_the_same_answers(capsys):
    script = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "prefill.py"))
    script["main"](["--questions", "9", "--batch-size", "4", "--threads", "1", "--max-new-tokens", "4"])
    out, err = capsys.readouterr()
    assert "9 questions about 2 pictures" in out
    for precision in ("bfloat16", "float32"):
        assert f"\n{precision}\n" in out
        assert f"{precision}: 9 of 9 questions" in err
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith(("| one by one", "| own", "| shared"))]
    assert [row[0].strip("| ") for row in rows] == 2 * ["one by one", "own", "shared"]
    assert {row[-1].strip("| ") for row in rows[3:]} == {"0 of 9"}, "in float32 every answer is the same"
