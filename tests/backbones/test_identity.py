"""Which model it is: every weight counts, in whatever precision, place or packing it is loaded."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import mgap
from mgap.backbones.identity import Identity, describe_tensors, is_same_tensor, short_name
from mgap.errors import BackboneMismatch


@pytest.fixture
def fresh(checkpoints):
    """A model of its own, to be altered."""
    return mgap.load(str(checkpoints["llava"])).backbone


@pytest.mark.both_families
def test_a_change_of_any_weight_is_another_model(checkpoints, family):
    backbone = mgap.load(str(checkpoints[family])).backbone
    before = backbone.identity
    for name, weight in backbone.model.named_parameters():
        with torch.no_grad():
            weight.add_(0.1)
        with pytest.raises(BackboneMismatch, match="the weights differ"):
            before.require(backbone.identity, f"what knows {name}")
        with torch.no_grad():
            weight.sub_(0.1)
    before.require(backbone.identity, "it")


def test_the_weight_that_differs_is_named(fresh):
    before = fresh.identity
    with torch.no_grad():
        fresh.head_module.weight.neg_()
    with pytest.raises(BackboneMismatch, match=r"the weights differ, such as lm_head\.weight; fit one for this model"):
        before.require(fresh.identity, "the prior")


def test_a_weight_that_is_there_or_not_there_is_another_model(fresh):
    before = fresh.identity
    fresh.head_module.bias = nn.Parameter(torch.zeros(fresh.head_module.out_features))
    for one, other in ((before, fresh.identity), (fresh.identity, before)):
        with pytest.raises(BackboneMismatch, match=r"such as lm_head\.bias"):
            one.require(other, "the prior")


@pytest.mark.both_families
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_model_in_two_precisions_is_one_model(model, checkpoints, family, dtype):
    half = mgap.load(str(checkpoints[family]), dtype=dtype).backbone.identity
    half.require(model.backbone.identity, "it")
    model.backbone.identity.require(half, "it")
    assert half.tensors != model.backbone.identity.tensors  # so the comparison was not one of equal texts


def test_a_head_that_is_tied_counts_once(checkpoints):
    names = mgap.load(str(checkpoints["qwen3-vl"])).backbone.identity.tensors
    assert "embed_tokens.weight" in names
    assert not [name for name in names if "lm_head" in name]


def test_offloaded_weights_are_compared_where_they_are(fresh):
    accelerate = pytest.importorskip("accelerate")
    before = fresh.identity
    accelerate.cpu_offload(fresh.model, execution_device=torch.device("cpu"))
    assert fresh.head_module.weight.is_meta
    assert fresh.identity.tensors == before.tensors
    fresh.head_module._hf_hook.weights_map["weight"].add_(1)
    with pytest.raises(BackboneMismatch, match=r"lm_head\.weight"):
        before.require(fresh.identity, "the prior")


def test_packed_weights_are_left_out_and_the_others_compared(fresh):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    before, plain = fresh.identity, fresh.layers[0].mlp.up_proj
    packed = bitsandbytes.nn.Linear4bit(plain.in_features, plain.out_features, bias=False, compute_dtype=torch.float32)
    packed.load_state_dict({"weight": plain.weight.data.clone()})
    fresh.layers[0].mlp.up_proj = packed.to("cpu")
    before.require(fresh.identity, "the prior")
    assert fresh.identity.is_partial
    with torch.no_grad():
        fresh.head_module.weight.add_(1)
    with pytest.raises(BackboneMismatch, match=r"lm_head\.weight"):
        before.require(fresh.identity, "the prior")


def test_a_weight_larger_than_memory_is_described_from_a_few_values():
    wide = torch.arange(2.0**20).expand(2**20, 2**20)  # 4 TiB, if it were copied
    (text,) = describe_tensors({"wide": wide}).values()
    assert text.startswith("1048576x1048576 ")


def test_a_description_does_not_depend_on_how_a_tensor_lies_in_memory():
    weight = torch.randn(33, 70, generator=torch.Generator().manual_seed(0))
    lying = weight.T.contiguous().T
    assert not lying.is_contiguous()
    assert describe_tensors({"a": lying}) == describe_tensors({"a": weight})
    assert not is_same_tensor(*(describe_tensors({"a": each})["a"] for each in (weight, weight.flip(0))))


@pytest.mark.parametrize(
    "names",
    [
        ("model.language_model.layers.0.mlp.up_proj.weight", "language_model.model.layers.0.mlp.up_proj.weight"),
        ("lm_head.weight", "language_model.lm_head.weight"),
        ("model.vision_tower.encoder.layers.0.fc.bias", "vision_tower.vision_model.encoder.layers.0.fc.bias"),
    ],
)
def test_names_of_other_versions_and_of_checkpoints_mean_the_same_weight(names):
    assert short_name(names[0]) == short_name(names[1])


def test_an_identity_of_an_older_version_is_compared_by_what_it_has_and_says_so(model):
    now = model.backbone.identity
    older = Identity.from_json({key: value for key, value in now.to_json().items() if key not in ("tensors", "is_partial")})
    with pytest.warns(UserWarning, match="the prior was saved by an older version, which knew a model by its input embedding"):
        older.require(now, "the prior")
    with pytest.raises(BackboneMismatch, match="the weights differ"):
        older.require(replace(now, sample=tuple(-value for value in now.sample)), "the prior")


def test_a_file_with_whole_numbers_for_the_sample_is_of_another_model(model):
    now = model.backbone.identity
    other = Identity.from_json({**now.to_json(), "sample": [2**70] + [0] * (len(now.sample) - 1)})
    with pytest.raises(BackboneMismatch, match="the weights differ"):
        other.require(now, "the prior")


def test_tokens_that_were_added_make_another_model(fresh):
    before = fresh.identity
    fresh.model.resize_token_embeddings(before.vocab_size + 3, mean_resizing=False)
    with pytest.raises(BackboneMismatch, match=f"vocab_size is {before.vocab_size} there and {before.vocab_size + 3} here"):
        before.require(fresh.identity, "the prior")


@pytest.mark.parametrize("text", ["", "8", "8 1 2 3 4", "8 1 2 3 4 nan", "8xa 1 2 3 4 5", "8 1 2 3 4 1e999", "8 1 2 3 4 5 6 7"])
def test_a_description_that_is_none_is_refused(model, text):
    data = model.backbone.identity.to_json()
    with pytest.raises(TypeError, match=r"model\.tensors\.lm_head\.weight"):
        Identity.from_json({**data, "tensors": {"lm_head.weight": text}})


@pytest.mark.gpu
def test_the_same_on_a_gpu(fresh):
    before = fresh.identity
    fresh.model.to("cuda")
    assert fresh.identity == before
