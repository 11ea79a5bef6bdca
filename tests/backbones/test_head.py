"""What the probe says about heads of every kind, and that MGAP is exact or refused on each."""

import shutil
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import mgap
from mgap.backbones.head import Head
from mgap.errors import UnsupportedHead

peft = pytest.importorskip("peft", reason="adapters on the head need peft")
bitsandbytes = pytest.importorskip("bitsandbytes", reason="weights in four bits need bitsandbytes")

pytestmark = pytest.mark.both_families


@pytest.fixture
def fresh(family, checkpoints):
    """A model of its own, to be altered."""
    return mgap.load(str(checkpoints[family]))


def swap_head(model, head):
    model.backbone.model.lm_head = head
    return model


def corrected_and_expected(model, picture, prior, **settings):
    """Final logits under MGAP, and head(h_cut) through the head itself, from the states that the head read."""
    own, head = model.backbone.model, model.backbone.head_module
    inputs = model.backbone.encode([picture], ["Is there a dog in the image?"])
    states = []
    handle = head.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    method = mgap.MGAP(replace(prior, identity=None), **settings)  # a model with another head is another model
    with model.using(method):
        states.clear()
        with torch.no_grad():
            logits = own(**inputs).logits
    handle.remove()
    h, V = states[0].double(), prior.basis
    with torch.no_grad():
        plain = head.forward(states[0]).double()
        entropy = torch.distributions.Categorical(logits=plain).entropy()
        share = (h @ V).norm(dim=-1) / h.norm(dim=-1)
        beta = method.alpha * torch.tanh(method.lam * entropy) * (1 - share)
        cut = h - beta.unsqueeze(-1) * (h @ V @ V.T)
        expected = head.forward(cut.to(states[0].dtype)).double()
    assert not torch.allclose(expected, plain, atol=1e-3), "the correction must show"
    return logits.double(), expected


def test_a_plain_head_is_linear_and_unbiased(model, family):
    head = model.backbone.probe_head()
    assert (head.linear, head.bias, head.scale, head.cap, head.weights) == (True, None, 1.0, None, "float")
    assert head.tied == (family == "qwen3-vl")


def test_a_bias_is_found_and_does_not_enter_the_correction(fresh, prior, picture):
    old = fresh.backbone.head_module
    biased = nn.Linear(old.in_features, old.out_features)
    biased.weight.data = old.weight.data.clone()
    swap_head(fresh, biased)
    head = fresh.backbone.probe_head()
    torch.testing.assert_close(head.bias, biased.bias.data)
    torch.testing.assert_close(head.table(prior.basis), (biased.weight @ prior.basis.float()).T, rtol=1e-4, atol=1e-5)
    logits, expected = corrected_and_expected(fresh, picture, prior)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_an_adapter_on_the_head_is_part_of_it(fresh, prior, picture):
    old = fresh.backbone.head_module
    if fresh.backbone.probe_head().tied:  # an adapter on a tied head needs a head of its own
        old = nn.Linear(old.in_features, old.out_features, bias=False)
        old.weight.data = fresh.backbone.head_module.weight.data.clone()
        swap_head(fresh, old)
        fresh.backbone.config.tie_word_embeddings = fresh.backbone.config.text_config.tie_word_embeddings = False
    own = peft.get_peft_model(fresh.backbone.model, peft.LoraConfig(target_modules=["lm_head"], r=4, init_lora_weights=False))
    head = Head.probe(own)
    assert head.linear
    assert "Linear on float" in head.weights
    merged = head.module.base_layer.weight + head.module.get_delta_weight("default")
    torch.testing.assert_close(head.table(prior.basis), (merged @ prior.basis.float()).T, rtol=1e-4, atol=1e-4)
    logits, expected = corrected_and_expected(fresh, picture, prior)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)


def test_weights_in_four_bits_are_still_linear(fresh, prior, picture):
    old = fresh.backbone.head_module
    packed = bitsandbytes.nn.Linear4bit(
        old.in_features, old.out_features, bias=False, quant_type="nf4", compute_dtype=torch.float32
    )
    packed.load_state_dict({"weight": old.weight.data.clone()})
    swap_head(fresh, packed.to("cpu"))
    head = fresh.backbone.probe_head()
    assert head.linear
    assert head.weights == "Linear4bit"
    logits, expected = corrected_and_expected(fresh, picture, prior)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)


def test_a_quantised_checkpoint_is_loaded_onto_the_device(checkpoints, tmp_path):
    from transformers import BitsAndBytesConfig, LlavaForConditionalGeneration

    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    LlavaForConditionalGeneration.from_pretrained(
        checkpoints["llava"], quantization_config=four_bits, device_map={"": "cpu"}
    ).save_pretrained(tmp_path)
    for file in checkpoints["llava"].iterdir():
        if not (tmp_path / file.name).exists():
            shutil.copy(file, tmp_path)
    model = mgap.load(str(tmp_path), device="cpu")
    assert type(model.backbone.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    assert model.backbone.device.type == "cpu"


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_quantised_activations_take_the_exact_path_through_the_head(fresh, prior, picture):
    from torch.ao.nn.quantized.dynamic import Linear
    from torch.ao.quantization import default_dynamic_qconfig

    old = fresh.backbone.head_module
    plain = nn.Linear(old.in_features, old.out_features, bias=False)
    plain.weight.data = old.weight.data.clone()
    plain.qconfig = default_dynamic_qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        swap_head(fresh, Linear.from_float(plain))
    assert not fresh.backbone.probe_head().linear
    logits, expected = corrected_and_expected(fresh, picture, prior)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-2)  # a step of the quantiser may fall either way
    assert (logits - expected).abs().mean() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_not_taken_for_a_curved_head(dtype):
    module = nn.Linear(4096, 1000, bias=False).to(dtype)
    assert Head.measure(module, torch.zeros(1, 4096, dtype=dtype)).linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_curved_head_is_noticed_in_any_precision(dtype):
    module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 100)).to(dtype)
    assert not Head.measure(module, torch.zeros(1, 64, dtype=dtype)).linear


def test_a_curved_head_gets_the_exact_path(fresh, prior, picture):
    old = fresh.backbone.head_module
    curved = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, old.out_features))
    curved[2].weight.data *= 10
    swap_head(fresh, curved)
    logits, expected = corrected_and_expected(fresh, picture, prior)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_a_head_that_is_never_called_is_refused(fresh):
    class Bypassing(type(fresh.backbone.model)):
        def get_output_embeddings(self):
            return nn.Linear(64, 384)

    fresh.backbone.model.__class__ = Bypassing
    prior = mgap.Subspace.from_states(torch.randn(30, 64), rank=3)
    with pytest.raises(UnsupportedHead, match="0 times"), fresh.using(mgap.MGAP(prior)):
        pass


@pytest.mark.parametrize("value", [-torch.inf, torch.nan])
def test_a_head_without_a_finite_logit_is_refused(fresh, value):
    """A prior can be fitted on such a model, as its states are finite; no method can act on it."""
    with torch.no_grad():
        fresh.backbone.head_module.weight.fill_(1)
    fresh.backbone.head_module.bias = nn.Parameter(torch.full((fresh.backbone.head_module.out_features,), value))
    prior = mgap.Subspace.from_states(torch.randn(30, 64), rank=3)
    with pytest.raises(UnsupportedHead, match="nothing but NaN and infinite logits"), fresh.using(mgap.MGAP(prior)):
        pass


def test_logits_that_are_changed_in_an_unknown_way_are_refused(fresh, prior):
    def square(_, __, output):
        output.logits = output.logits**2
        return output

    handle = fresh.backbone.model.register_forward_hook(square)
    with pytest.raises(UnsupportedHead, match="neither a scale nor a soft cap"), fresh.using(mgap.MGAP(prior)):
        pass
    handle.remove()


def test_masked_tokens_after_the_head_are_refused(fresh, prior):
    def mask(_, __, output):
        output.logits[..., 7] = -torch.inf
        return output

    handle = fresh.backbone.model.register_forward_hook(mask)
    with pytest.raises(UnsupportedHead), fresh.using(mgap.MGAP(prior)):
        pass
    handle.remove()


def test_a_model_without_a_head_is_refused(fresh, prior):
    with pytest.raises(UnsupportedHead, match="no output head"):
        Head.probe(fresh.backbone.model.model)
