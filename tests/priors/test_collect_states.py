"""Blind states: prompts packed behind one picture give what each gives alone, and the picture is read once."""

import pytest
import torch

import mgap
from mgap.backbones.hooks import is_hooked
from mgap.backbones.packed_prompts import pack
from mgap.backbones.shared_prefill import SharedPrefill, unshareable
from mgap.diagnosis.principal_angles import principal_angles
from mgap.errors import ModelError, SettingError, UnsupportedDecoding
from mgap.pocket.tiny import build_tiny
from mgap.priors import collect_states
from mgap.priors.collect_states import blind_states, last_states
from tests.backbones import families
from tests.methods.builders import build

PROMPTS = [
    "What?",
    "Describe what you can make out in this long and winding picture, please.",
    "Is there a dog in the picture?",
    "Is there a dog in the picture?",
    "Is there a dog in the picture, or is there a cat?",
    *mgap.default_prompts()[:4],
]
KINDS = {
    "llava": lambda folder: build_tiny("llava", folder),
    "qwen3_vl": lambda folder: build_tiny("qwen3-vl", folder),
    **families.FAMILIES,
}


def alone(backbone, prompts, **null):
    """A picture and a forward for every prompt."""
    return torch.cat([last_states(backbone, backbone.blind([prompt], **null)) for prompt in prompts])


def assert_alike(found, right):
    assert found.dtype == torch.float32
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, right, rtol=0, atol=1e-4 * float(right.abs().max()))


@pytest.fixture
def shown(model, monkeypatch):
    """How many calls the vision tower had; a hook would be seen."""
    calls, forward = [], model.backbone.vision.forward

    def look(*args, **kwargs):
        calls.append(1)
        return forward(*args, **kwargs)

    monkeypatch.setattr(model.backbone.vision, "forward", look)
    return calls


@pytest.mark.parametrize("size", [1, 2, 4, None])
def test_packed_prompts_give_the_states_that_each_gives_alone_in_their_order(model, size):
    found, most = list(blind_states(model.backbone, iter(PROMPTS), batch_size=size)), size or 16
    assert [len(states) for states in found] == [len(PROMPTS[start : start + most]) for start in range(0, len(PROMPTS), most)]
    assert_alike(torch.cat(found), alone(model.backbone, PROMPTS))


@pytest.mark.parametrize(
    ("kind", "attention"), [*((kind, "sdpa") for kind in KINDS), ("llava", "eager"), ("qwen2_vl", "eager")]
)
def test_every_family_gives_the_same_states_packed_or_not(kind, attention, tmp_path, monkeypatch):
    KINDS[kind](tmp_path)
    monkeypatch.setattr("mgap.backbones.loading.is_torchvision_available", lambda: False)
    backbone = mgap.load(str(tmp_path), attention=attention).backbone
    used = []
    monkeypatch.setattr(collect_states, "pack", lambda *given: used.append(1) or pack(*given))
    assert_alike(torch.cat(list(blind_states(backbone, PROMPTS, batch_size=4))), alone(backbone, PROMPTS))
    assert bool(used) == (unshareable(backbone) == "")


def test_what_is_asked_twice_has_one_state(model):
    found = torch.cat(list(blind_states(model.backbone, [PROMPTS[2], *PROMPTS, PROMPTS[2]])))
    assert torch.equal(found[0], found[3])
    assert torch.equal(found[0], found[-1])
    assert not torch.equal(found[0], found[1])


def test_the_picture_is_read_once_whatever_the_number_of_batches(model, shown):
    assert sum(map(len, blind_states(model.backbone, PROMPTS, batch_size=2))) == len(PROMPTS)
    assert len(shown) == 1


def test_what_is_held_of_the_picture_stays_as_it_is(model, picture):
    shared = SharedPrefill(model.backbone)
    first = pack(shared, picture, PROMPTS[:2])
    held = shared.held
    length, before = held.cache.get_seq_length(), [layer.keys.clone() for layer in held.cache.layers]
    with torch.no_grad():
        model.backbone.model(**first.inputs, past_key_values=first.cache, use_cache=True)
    assert first.cache.get_seq_length() > length
    pack(shared, picture, PROMPTS[2:])
    assert shared.held is held
    assert held.cache.get_seq_length() == length
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(held.cache.layers, before, strict=True))


def test_no_prompt_sees_another(model, picture):
    shared = SharedPrefill(model.backbone)
    states = [
        collect_states._packed_states(model.backbone, pack(shared, picture, [PROMPTS[2], other])) for other in PROMPTS[:2]
    ]
    torch.testing.assert_close(states[0][0], states[1][0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(states[0][1], states[1][1], atol=1e-2)


@pytest.mark.parametrize("null", ["mean_colour", "no_image", "black_same_size"])
def test_other_null_images_give_the_states_of_their_own(model, null):
    about = {"size": (64, 48)}
    found = torch.cat(list(blind_states(model.backbone, PROMPTS, null_image=null, **about)))
    assert_alike(found, alone(model.backbone, PROMPTS, null=null, **about))


def test_the_fitted_subspace_is_that_of_states_taken_one_by_one(model):
    prompts = mgap.default_prompts()[:24]
    packed = mgap.Subspace.fit(model, iter(prompts), rank=3)
    right = mgap.Subspace.from_states(alone(model.backbone, prompts), rank=3)
    assert float(principal_angles(packed.basis, right.basis)[-1]) < 0.01  # degrees
    assert packed.origin["prompts_sha256"] == mgap.Subspace.fit(model, prompts, rank=3, batch_size=5).origin["prompts_sha256"]


def test_a_model_with_hooks_on_it_reads_whole_rows(model, prior, shown):
    assert not is_hooked(model.backbone.model)
    with model.using(build("mgap", prior)):
        assert is_hooked(model.backbone.model)
        found = torch.cat(list(blind_states(model.backbone, PROMPTS[:3], batch_size=2)))
        assert len(shown) == 2, "a batch brings its pictures"
        assert_alike(found, alone(model.backbone, PROMPTS[:3]))
    with model.using(build("vcd", prior)), pytest.raises(UnsupportedDecoding, match="call generate"):
        next(blind_states(model.backbone, PROMPTS))
    with torch.no_grad():
        model.backbone.model(**model.backbone.blind(PROMPTS[:1]), output_hidden_states=True)
    assert not is_hooked(model.backbone.model), "transformers' own listeners do not count"


def test_a_processor_that_mixes_pictures_and_words_is_read_row_by_row(model, monkeypatch, shown):
    right = alone(model.backbone, PROMPTS[:3])
    shown.clear()
    monkeypatch.setattr("mgap.backbones.shared_prefill.block_between", mixes)
    assert_alike(torch.cat(list(blind_states(model.backbone, PROMPTS[:3], batch_size=2))), right)
    assert len(shown) == 2


def mixes(*_):
    raise ModelError("its processor writes more than a picture where the picture goes")


def test_a_batch_of_nothing_is_refused(model):
    with pytest.raises(SettingError, match="batch_size=0"):
        next(blind_states(model.backbone, PROMPTS, batch_size=0))


@pytest.mark.gpu
def test_states_from_a_card_arrive_whole_and_in_order(checkpoints, family):
    backbone = mgap.load(str(checkpoints[family]), device="cuda", dtype="float32").backbone
    found = torch.cat(list(blind_states(backbone, PROMPTS, batch_size=2)))
    assert_alike(found, alone(backbone, PROMPTS))
