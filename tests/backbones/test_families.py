"""Every family of the registry loads, reads pictures, answers and takes MGAP; heads that scale or cap are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import mgap
from mgap.backbones.base import Backbone
from mgap.backbones.gemma import Gemma3
from mgap.backbones.head import Head
from mgap.backbones.idefics import Idefics3, SmolVLM
from mgap.backbones.instructblip import InstructBlip
from mgap.backbones.internvl import InternVL
from mgap.backbones.llava import LlavaNext, LlavaOneVision
from mgap.backbones.picture_layout import from_pictures, to_pictures
from mgap.backbones.qwen_vl import QwenVL
from mgap.backbones.shared_vision import shared_pictures
from mgap.errors import ModelError, PromptError, UnsupportedDecoding
from mgap.methods.deco import correct
from mgap.methods.dola import contrast_layers
from mgap.methods.nullu_export import projected_weights
from tests.backbones import families
from tests.reference import contrast

BACKBONES = {
    "llava_next": LlavaNext, "llava_onevision": LlavaOneVision, "qwen2_vl": QwenVL, "qwen2_5_vl": QwenVL,
    "gemma3": Gemma3, "idefics3": Idefics3, "smolvlm": SmolVLM, "internvl": InternVL,
    "instructblip": InstructBlip,
}  # fmt: skip
SHORT, LONG = "Is there a dog?", "Describe this picture in a few words, and count the people in it."


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


WIDE, TALL = noise(64, 48), noise(40, 90)
EARLY = ("llava_next", "qwen2_5_vl", "smolvlm", "instructblip")  # in make test: tiles, any size, pieces, a picture that reads


@pytest.fixture(
    scope="module",
    params=[name if name in EARLY else pytest.param(name, marks=pytest.mark.product) for name in families.FAMILIES],
)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[mgap.Model]:
    folder: Path = tmp_path_factory.mktemp("families") / family
    families.FAMILIES[family](folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mgap.backbones.loading.is_torchvision_available", lambda: False)  # also where it is installed
        yield mgap.load(str(folder), device="cpu")


@pytest.fixture(scope="module")
def prior(model: mgap.Model) -> mgap.Subspace:
    return mgap.Subspace.fit(model, mgap.default_prompts()[:12], rank=3)


def logits_of(model: mgap.Model, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.backbone.model(**inputs).logits
    return logits


def test_the_folder_loads_as_its_family_on_pillow_alone(family, model):
    assert type(model.backbone) is BACKBONES[family]
    assert model.backbone.config.model_type == family
    assert type(model.backbone.processor.image_processor).__name__.endswith("Pil")


def test_a_picture_becomes_image_tokens_and_changes_the_logits(model):
    one, other = (model.backbone.encode([Image.new("RGB", (64, 48), colour)], [SHORT]) for colour in ("red", "white"))
    mask = model.backbone.image_mask(one)
    assert mask.any()
    assert not mask.all()
    assert torch.equal(one["input_ids"], other["input_ids"])
    assert not torch.allclose(logits_of(model, one)[:, -1], logits_of(model, other)[:, -1], atol=1e-3)


def test_a_batch_is_padded_on_the_left(model):
    backbone = model.backbone
    batch = backbone.encode([WIDE, WIDE], [SHORT, LONG])
    alone = backbone.encode([WIDE], [SHORT])["input_ids"][0]
    padding = batch["input_ids"].shape[1] - len(alone)
    assert padding > 0
    assert torch.equal(batch["input_ids"][0, padding:], alone)
    assert (batch["input_ids"][0, :padding] == backbone.tokenizer.pad_token_id).all()
    assert batch["attention_mask"].sum(1).tolist() == [len(alone), len(alone) + padding]
    assert not batch["attention_mask"][0, :padding].any()


def test_a_batched_answer_equals_the_answer_alone(model):
    images, prompts = [WIDE, TALL, None], [SHORT, LONG, SHORT]  # other sizes, other lengths, and no picture
    alone = [model.answer(i, p, max_new_tokens=6).token_ids for i, p in zip(images, prompts, strict=True)]
    batched = [answer.token_ids for answer in model.answers(images, prompts, max_new_tokens=6)]
    assert batched == alone
    assert len(set(alone)) == 3


def test_a_prompt_with_a_placeholder_of_its_own_is_refused(model):
    backbone = model.backbone
    shown, blind = (backbone.render("?", pictures=pictures) for pictures in (1, 0))
    added = [edit for edit in SequenceMatcher(None, blind, shown, autojunk=False).get_opcodes() if edit[0] == "insert"]
    written = max((shown[start:stop].strip() for *_, start, stop in added), key=len, default="")  # by the template
    for token in {written, str(backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id))} - {""}:
        for image in (WIDE, None):
            with pytest.raises(PromptError, match=r"leave .* out"):
                model.answer(image, f"What is {token} here?")


@pytest.mark.parametrize("null", ["black336", "mean_colour", "noise", "no_image", "black_same_size"])
def test_a_null_image_can_stand_for_the_picture(model, null):
    inputs = model.backbone.blind([SHORT, LONG], null, size=(64, 48) if null == "black_same_size" else None)
    assert model.backbone.image_mask(inputs).any(1).tolist() == [null != "no_image"] * 2
    assert ("pixel_values" in inputs) == (null != "no_image")
    if null == "mean_colour":
        assert inputs["pixel_values"].abs().max() < 0.02  # half a grey level
    if null == "black_same_size":
        seen = model.backbone.encode([WIDE, WIDE], [SHORT, LONG])
        assert torch.equal(inputs["input_ids"], seen["input_ids"])
    assert logits_of(model, inputs).isfinite().all()


def test_the_blocks_and_the_final_norm_are_found(model):
    assert len(model.backbone.layers) == families.LAYERS
    assert isinstance(model.backbone.final_norm, nn.Module)
    assert model.backbone.final_norm.weight.shape == (families.WIDTH,)


def test_the_head_is_linear_and_nothing_comes_after_it(model):
    head = model.backbone.probe_head()
    assert (head.linear, head.scale, head.cap, head.bias) == (True, 1.0, None, None)
    assert (head.hidden_size, head.vocab_size) == (families.WIDTH, families.VOCABULARY)


def test_alpha_zero_returns_the_same_logits_and_tokens(model, prior):
    inputs = model.backbone.encode([WIDE], [SHORT])
    plain, answer = logits_of(model, inputs), model.answer(WIDE, SHORT, max_new_tokens=6)
    with model.using(mgap.MGAP(prior, alpha=0)):
        assert torch.equal(logits_of(model, inputs), plain)
        assert model.answer(WIDE, SHORT, max_new_tokens=6).token_ids == answer.token_ids


@pytest.mark.filterwarnings("ignore:alpha=")
def test_a_large_alpha_changes_the_answer_only_while_the_method_is_on(model, prior):
    plain = model.answer(WIDE, LONG, max_new_tokens=6).token_ids
    with model.using(mgap.MGAP(prior, alpha=8.0)):
        assert model.answer(WIDE, LONG, max_new_tokens=6).token_ids != plain
    assert model.answer(WIDE, LONG, max_new_tokens=6).token_ids == plain


@pytest.mark.parametrize("layers", [[0], [1], [0, 1]])
def test_earlier_layers_are_read_out_as_the_model_had_them(model, layers):
    inputs = model.backbone.encode([WIDE, None], [LONG, SHORT])
    with torch.no_grad():
        hidden = model.backbone.model(**inputs, output_hidden_states=True).hidden_states
        head, norm = model.backbone.head_module, model.backbone.final_norm
        early = torch.stack([head(norm(hidden[layer][:, -1:])) for layer in layers])
        expected = {
            "deco": correct(head(hidden[-1][:, -1:]), early, 3.0, 0.9, 20).scores,
            "dola": contrast_layers(head(hidden[-1][:, -1:]), early, 0.1, "mixture").scores,
        }
    for method in (mgap.DeCo(alpha=3.0, layers=layers), mgap.DoLa(layers=layers, lens_norm=True)):
        with model.using(method):
            found = logits_of(model, inputs)[:, -1:]
        torch.testing.assert_close(found, expected[method.name], rtol=1e-4, atol=1e-4)


def test_nullu_in_the_weights_says_what_its_hooks_say(model):
    backbone = model.backbone
    drawn = torch.randn(2, 12, len(backbone.layers), backbone.hidden_size, generator=torch.Generator().manual_seed(0))
    method, inputs = mgap.Nullu(space=mgap.NullSpace.from_states(*drawn, rank=8, start=0)), backbone.encode([WIDE], [SHORT])
    plain = logits_of(model, inputs)
    with model.using(method):
        hooked = logits_of(model, inputs)
    with projected_weights(backbone, method):
        torch.testing.assert_close(logits_of(model, inputs), hooked, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(hooked, plain, rtol=1e-2, atol=1e-2)
    assert torch.equal(logits_of(model, inputs), plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_family_answers_in_half_precision(model, prior, dtype):
    half = mgap.load(model.backbone.name, device="cpu", dtype=dtype)
    with half.using(mgap.MGAP(prior)):
        assert half.answer(WIDE, SHORT, max_new_tokens=3).token_ids
    for method in (mgap.DeCo(), mgap.DoLa(layers=[1])):
        with half.using(method):
            assert half.answer(WIDE, SHORT, max_new_tokens=3).token_ids


# --- heads whose output is changed before it is read as logits ----------------------------------------------------

HEADS = {
    "scaled": (lambda: families.granite4_vision(scale=0.3), 0.3, None),
    "capped": (lambda: families.gemma4(cap=2.0), 1.0, 2.0),
    "scaled-then-capped": (lambda: families.muse_glimmer(scale=0.3, cap=2.0), 0.3, 2.0),
}


@pytest.fixture(scope="module", params=HEADS)
def bare(request: pytest.FixtureRequest) -> tuple[Any, float, float | None]:
    """A transformers model, and the scale and cap of its configuration."""
    build, scale, cap = HEADS[request.param]
    return build(), scale, cap


def test_a_scale_and_a_soft_cap_are_measured(bare):
    model, scale, cap = bare
    head = Head.probe(model)
    assert head.linear
    assert head.scale == pytest.approx(scale, rel=0.01)
    assert head.cap == (None if cap is None else pytest.approx(cap, rel=0.01))


def test_methods_that_set_logits_follow_a_scale_and_refuse_a_soft_cap(bare):
    model, scale, cap = bare
    ids = torch.randint(8, families.VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(0))
    method = mgap.DeCo(alpha=3.0, layers=[1])
    if cap is not None:
        with pytest.raises(mgap.MgapError, match="caps its logits"):
            mgap.attach(model, method)
        assert not model.get_output_embeddings()._forward_hooks
        return
    backbone = Backbone.of(model)
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
        final, early = backbone.head_module(hidden[-1]), backbone.head_module(backbone.final_norm(hidden[1]))
        expected = correct(scale * final, scale * early.unsqueeze(0), 3.0, 0.9, 20).scores
        with mgap.attach(model, method):
            found = model(input_ids=ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_mgap_cuts_before_the_scale_and_cap_and_takes_the_entropy_after_them(bare):
    model, scale, cap = bare
    draw = torch.Generator().manual_seed(0)
    prior = mgap.Subspace.from_states(torch.randn(40, families.WIDTH, generator=draw), rank=3)
    ids = torch.randint(8, families.VOCABULARY, (2, 7), generator=draw)
    states: list[Tensor] = []
    with mgap.attach(model, mgap.MGAP(prior, alpha=0.75, lam=0.5)) as attachment, attachment.record() as recorder:
        handle = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: states.append(args[0]))
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        handle.remove()

    h, W, V = states[0].double(), model.get_output_embeddings().weight.detach().double(), prior.basis  # [B, T, d]

    def post(z: Tensor) -> Tensor:
        return scale * z if cap is None else cap * torch.tanh(scale * z / cap)

    def entropy(z: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=z).entropy()

    H = entropy(post(h @ W.T))  # [B, T]
    share = (h @ V).norm(dim=-1) / h.norm(dim=-1)
    beta = 0.75 * torch.tanh(0.5 * H) * (1 - share)
    h_cut = h - beta.unsqueeze(-1) * (h @ V @ V.T)
    torch.testing.assert_close(logits.double(), post(h_cut @ W.T), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits.double(), post(h @ W.T), atol=1e-3)  # it did something
    torch.testing.assert_close(recorder.steps[0].values["entropy"].double(), H[:, -1], rtol=1e-5, atol=1e-5)
    assert (entropy(h @ W.T) - H).abs().min() > 1e-3  # the uncapped entropy would have been seen


PIECES = ("idefics3", "smolvlm")  # a picture's placeholders stand in several places
READS = ("instructblip",)  # a picture's tokens depend on its prompt
TILED = ("llava_next", "llava_onevision", "idefics3", "smolvlm")  # cut a picture into tiles: pixels alone do not say how


BRANCHES = [mgap.VCD(alpha=3.0), mgap.Blind(rho=2.0), mgap.M3ID(lam=0.3), mgap.ICD(alpha=3.0, with_vcd=True)]


@pytest.mark.parametrize("method", BRANCHES, ids=lambda m: m.name)
def test_a_second_branch_runs_or_is_refused_by_name(family, model, method):
    pictures, prompts = [WIDE, TALL], [SHORT, LONG]
    plain = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
    with model.using(method):
        if family in TILED and method.name != "m3id":
            with pytest.raises((ModelError, PromptError), match=r"cannot be encoded|in pieces"):
                model.answer(WIDE, SHORT, max_new_tokens=2)
        elif family in READS and method.name == "icd":
            with pytest.raises(PromptError, match="a branch with another text beside a picture is not supported"):
                model.answer(WIDE, SHORT, max_new_tokens=2)
        else:
            together = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
            alone = [model.answer(i, p, max_new_tokens=6).token_ids for i, p in zip(pictures, prompts, strict=True)]
            assert together == alone
    assert [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)] == plain


WHOLE = ("gemma3", "qwen2_vl", "qwen2_5_vl", "instructblip")  # pixels hold whole pictures


def test_a_picture_is_changed_whole_or_refused_by_name(family, model):
    pictures, prompts = [WIDE, TALL], [SHORT, LONG]
    method = mgap.RITUAL(alpha=9.0, beta=0.0, transform="rotation")
    if family not in WHOLE:
        with pytest.raises(ModelError, match=f"ritual changes whole pictures, and {family} cuts"), model.using(method):
            pass
        return
    inputs = model.backbone.encode(pictures, prompts)
    whole = to_pictures("ritual", model.backbone, inputs)
    pixels = from_pictures("ritual", model.backbone, whole, inputs["pixel_values"])
    torch.testing.assert_close(pixels, inputs["pixel_values"], rtol=0, atol=1e-5)
    with model.using(method):
        together = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
        alone = [model.answer(i, p, max_new_tokens=6).token_ids for i, p in zip(pictures, prompts, strict=True)]
    assert together == alone
    assert together != [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]


PARTLY = [
    mgap.MoD(rho=0.1, theta=0.0, a2=9.0, beta=0.0, branch_mode="sequential"),
    mgap.MoD(rho=0.1, theta=0.0, a2=9.0, beta=0.0, refresh="every_step", branch_mode="sequential"),
    mgap.SID(alpha=9.0, beta=0.0, keep=1, branch_mode="sequential"),
    mgap.AvisC(alpha=9.0, beta=0.0, branch_mode="sequential"),
]


@pytest.mark.parametrize("evidence", [mgap.Evidence((TALL,)), mgap.Evidence(text=LONG)], ids=["a picture", "a text"])
def test_a_branch_that_shows_something_else_is_what_it_gives_alone_or_refused(family, model, evidence):
    """Another picture has other tiles, patches and lengths."""
    method = mgap.Given(evidence=lambda asked: [evidence if row.prompt == SHORT else None for row in asked], missing="plain")
    if family in PIECES + READS or (family == "gemma3" and evidence.text is not None):
        with (
            pytest.raises((ModelError, PromptError), match=r"in pieces|does not write|with its prompt in mind"),
            model.using(method),
        ):
            model.answer(WIDE, SHORT, max_new_tokens=2)
        return
    shown, prompt = (TALL, SHORT) if evidence.pictures else (WIDE, LONG)
    main, other = model.backbone.encode([WIDE], [SHORT]), model.backbone.encode([shown], [prompt])
    expected = contrast.decode(model, main, other, contrast.contrastive(1.0, 0.1), 4)
    plain = model.answer(TALL, LONG, max_new_tokens=4).token_ids
    with model.using(method):
        together = [answer.token_ids for answer in model.answers([WIDE, TALL], [SHORT, LONG], max_new_tokens=4)]
    assert together == [expected, plain]


@pytest.mark.parametrize("method", PARTLY, ids=["mod", "mod every step", "sid", "avisc"])
def test_a_branch_with_a_part_of_the_picture_runs_on_every_family(family, model, method):
    pictures, prompts = [WIDE, TALL], [SHORT, LONG]
    plain = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
    with model.using(method):
        together = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
        alone = [model.answer(i, p, max_new_tokens=6).token_ids for i, p in zip(pictures, prompts, strict=True)]
    assert together == alone
    is_behind = (family, method.name) == ("gemma3", "sid")  # the picture is behind the window of the block that ranks it
    assert (alone == plain) == is_behind
    if getattr(method, "refresh", "") != "every_step":
        with model.using(replace(method, branch_mode="batched")):
            assert [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)] == alone
    assert [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)] == plain


def test_an_instruction_goes_where_it_would_be_written(family, model):
    """Behind the picture's closing marker, where a family has one."""
    instruction = "You are a confused objects detector."
    main = model.backbone.encode([WIDE, WIDE], [SHORT, LONG])
    method = mgap.ICD(instruction=instruction, alpha=3.0)
    if family in PIECES + READS:
        with pytest.raises(PromptError, match=r"in pieces|another text beside a picture"):
            method.branch(model.backbone, main)
        return
    branch = method.branch(model.backbone, main)
    by_hand = model.backbone.encode([WIDE, WIDE], [f"{instruction} {SHORT}", f"{instruction} {LONG}"])
    for key in {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"} & set(main):
        assert torch.equal(branch[key], by_hand[key]), key
    with model.using(method):
        assert model.answer(WIDE, SHORT, max_new_tokens=6).token_ids


def test_equal_pictures_can_be_encoded_once(model):
    pictures, prompts = [WIDE, WIDE, WIDE], [SHORT, LONG, SHORT]
    plain = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
    with shared_pictures(model.backbone):
        assert [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)] == plain


@pytest.mark.parametrize("preset", ["reference-code", "haltrapper"])
def test_a_description_takes_the_pictures_place_or_is_refused(family, model, preset):
    pictures, prompts = [WIDE, TALL], [SHORT, LONG]
    method = mgap.CODE(preset=preset, length=4)
    if family not in ("qwen2_vl", "qwen2_5_vl"):  # one picture for the tower, one placeholder in the template
        with pytest.raises((ModelError, PromptError, UnsupportedDecoding)), model.using(method):
            model.answer(WIDE, SHORT, max_new_tokens=2)
        with pytest.raises((ModelError, PromptError, UnsupportedDecoding)), model.using(method):
            model.answer(WIDE, SHORT, max_new_tokens=2, num_beams=5)  # as many rows as tiles
        return
    with model.using(method):
        together = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
        assert together == [model.answer(i, p, max_new_tokens=6).token_ids for i, p in zip(pictures, prompts, strict=True)]


def test_words_stand_behind_the_pictures_last_token_or_are_refused(family, model):
    pictures, prompts = [WIDE, TALL], [SHORT, LONG]
    method = mgap.HalTrapper(alpha=3.0, candidates=("dog", "bus"))
    main = model.backbone.encode(pictures, prompts)
    if family in PIECES + READS:
        with pytest.raises(PromptError, match=r"in pieces|another text beside a picture"):
            method.branch(model.backbone, main)
        return
    branch, image = method.branch(model.backbone, main), model.backbone.image_token_id
    for row, ids in enumerate(branch["input_ids"].tolist()):
        last = max(place for place, token in enumerate(ids) if token == image)
        assert model.backbone.tokenizer.decode(ids[last + 1 :]).lstrip().startswith("dog bus"), row
        assert ids.count(image) == main["input_ids"][row].tolist().count(image)
    with model.using(method):
        together = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
        assert together == [model.answer(i, p, max_new_tokens=6).token_ids for i, p in zip(pictures, prompts, strict=True)]


def test_candidates_are_searched_or_the_search_is_refused(family, model):
    pictures, prompts = [WIDE, TALL], [SHORT, LONG]
    method = mgap.HalTrapper(alpha=3.0, n=3, length=4)
    if family not in ("qwen2_vl", "qwen2_5_vl"):  # one picture for the tower, one placeholder in the template
        with pytest.raises((ModelError, PromptError, UnsupportedDecoding)), model.using(method):
            model.answer(WIDE, SHORT, max_new_tokens=2)
        return
    with model.using(method):
        together = [answer.token_ids for answer in model.answers(pictures, prompts, max_new_tokens=6)]
        assert together == [model.answer(i, p, max_new_tokens=6).token_ids for i, p in zip(pictures, prompts, strict=True)]


def test_a_search_runs_or_is_refused_by_name(family, model):
    """Its zero is the family's own beam search; with a way back every sample is as it is alone, or there is no batch."""
    pictures, questions = [noise(80, 60), noise(60, 80)], ["What?", "Describe what you can make out in this picture."]
    own = model.backbone.head_module.weight.shape[0]
    plain = [model.answer(p, q, max_new_tokens=8, num_beams=2).token_ids for p, q in zip(pictures, questions, strict=True)]
    with model.using(mgap.OPERA(alpha=0.0, beams=2, candidates=own, window=0)):
        zero = [model.answer(p, q, max_new_tokens=8).token_ids for p, q in zip(pictures, questions, strict=True)]
    assert zero == plain
    if family == "gemma3":
        return  # the next test
    with model.using(mgap.OPERA(beams=2, candidates=2, r=0, sigma=40.0)):
        alone = [model.answer(p, q, max_new_tokens=16).token_ids for p, q in zip(pictures, questions, strict=True)]
        assert [a.token_ids for a in model.answers(pictures, questions, max_new_tokens=16)] == alone


@pytest.mark.parametrize("family", ["gemma3"], indirect=True)
def test_a_search_takes_one_sample_at_a_time_where_windows_slide(model):
    with model.using(mgap.OPERA(beams=2, candidates=2, r=0, sigma=40.0)):
        assert model.answer(WIDE, SHORT, max_new_tokens=8).token_ids
        with pytest.raises(UnsupportedDecoding, match="sliding windows"):
            list(model.answers([WIDE, WIDE], [SHORT, LONG], max_new_tokens=8))
