"""MGAP inside mlx-vlm, on MLX's CPU device; needs mlx, mlx-cpu and mlx-vlm (docs/mlx.md says how to install them)."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mgap
from mgap.backbones.head import Head
from mgap.errors import BackboneMismatch, ModelError, SettingError, UnsupportedDecoding, UnsupportedHead
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction
from mgap.pocket.benchmark import every_calibration_prompt, pope
from mgap.pocket.scenes import render
from mgap.pocket.tiny import TINY_FAMILIES, build_tiny

if find_spec("mlx_vlm") is None:
    pytest.skip("mlx-vlm is not installed: see docs/mlx.md", allow_module_level=True)

import mlx.core as mx
import mlx_vlm
from mlx import nn
from mlx_vlm.generate import batch_generate, generate_step
from mlx_vlm.models.qwen3_5 import config as qwen3_5
from mlx_vlm.models.qwen3_5.language import LanguageModel

from mgap.integrations.mlx import MlxModel, attach
from mgap.integrations.mlx.mlx_attachment import CorrectedHead
from mgap.integrations.mlx.mlx_checkpoint import mlx_readable
from mgap.integrations.mlx.mlx_correction import MlxCorrection
from mgap.integrations.mlx.mlx_head import MlxHead, hooked
from mgap.integrations.mlx.mlx_identity import identity_of
from mgap.integrations.mlx.mlx_model import to_mlx

mx.set_default_device(mx.cpu)

EXAMPLE = Path(__file__).parents[1] / "examples" / "mlx" / "answer.py"
FAMILIES = ("pocket/llava", "pocket/qwen3-vl")  # the second has a tied head
QUESTION = next(iter(pope("adversarial", count=1)))
PICTURE = render(QUESTION.scene)
DESCRIBE = "Please describe this image."
SETTINGS = [
    {},
    {"preset": "reference-code"},
    {"gate": False, "alpha": 1.0},
    {"protect": False, "lam": 2.0},
    {"rank": 1, "restore": True},
    {"threshold": 0.5, "epsilon": 1e-3},
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders that transformers 5 writes."""
    folders = {family: tmp_path_factory.mktemp(family) for family in TINY_FAMILIES}
    for family, folder in folders.items():
        build_tiny(family, folder)
    return folders


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    """The same weights twice, in float32, and a prior that was fitted with transformers."""
    model = mgap.load(request.param, dtype="float32", device="cpu")
    prior = mgap.Subspace.fit(model, every_calibration_prompt()[:50])
    return SimpleNamespace(torch=model, mlx=MlxModel.load(request.param, dtype="float32"), prior=prior)


def caption(model, **options):
    return model.answer(PICTURE, DESCRIBE, max_new_tokens=24, **options)


def first_logprobs(model):
    """Of the first token, under what is attached to an MlxModel."""
    inputs = to_mlx(model._prepare(PICTURE, QUESTION.text)[1])
    ids, pixels, mask = inputs.pop("input_ids"), inputs.pop("pixel_values"), inputs.pop("mask")
    _, logprobs = next(generate_step(ids, model.mlx, pixels, mask, max_tokens=1, temperature=0.0, **inputs))
    return np.array(logprobs)


def transformers_logprobs(model):
    inputs = model.backbone.encode([PICTURE], [QUESTION.text])
    with torch.no_grad():
        return model.backbone.model(**inputs).logits[0, -1].log_softmax(-1).numpy()


# --- answers -------------------------------------------------------------------------------------------------------------


def test_plain_answers_are_those_of_transformers_token_by_token(pair):
    assert caption(pair.mlx).token_ids == caption(pair.torch).token_ids
    ours, theirs = (model.answer(PICTURE, QUESTION.text) for model in (pair.mlx, pair.torch))
    assert (ours.text, ours.token_ids, ours.stop, ours.prompt) == (theirs.text, theirs.token_ids, theirs.stop, theirs.prompt)
    assert ours.stop == "end"


def test_answers_under_mgap_are_those_of_transformers_token_by_token(pair):
    plain, moved = caption(pair.torch), 0
    for alpha in (0.75, 4.0):
        method = strong(pair.prior, alpha)
        with pair.torch.using(method):
            theirs = caption(pair.torch)
        with pair.mlx.using(method):
            assert caption(pair.mlx).token_ids == theirs.token_ids
        moved += theirs.token_ids != plain.token_ids
    assert moved  # else nothing was compared


def strong(prior, alpha):
    """MGAP with one strength at every token, so that answers change."""
    if alpha <= 1:
        return mgap.MGAP(prior, alpha=alpha)
    with pytest.warns(UserWarning, match="flip the sign"):
        return mgap.MGAP(prior, alpha=alpha, gate=False, protect=False)


def test_alpha_zero_and_a_detached_method_leave_every_logit_as_it_was(pair):
    plain = first_logprobs(pair.mlx)
    with pair.mlx.using(mgap.MGAP(pair.prior, alpha=0)):
        assert np.array_equal(first_logprobs(pair.mlx), plain)
    entered = []

    def fail():
        with pair.mlx.using(mgap.MGAP(pair.prior, alpha=1.0)) as attachment:
            entered.append(attachment)
            assert not np.array_equal(first_logprobs(pair.mlx), plain)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [attachment.is_attached for attachment in entered] == [False]
    assert np.array_equal(first_logprobs(pair.mlx), plain)


def test_what_sampling_draws_from_is_the_corrected_distribution_of_transformers(pair):
    plain = first_logprobs(pair.mlx)
    method = strong(pair.prior, 4.0)
    with pair.torch.using(method):
        theirs = transformers_logprobs(pair.torch)
    with pair.mlx.using(method):
        ours = first_logprobs(pair.mlx)
        options = {"sample": True, "temperature": 2.0, "max_new_tokens": 12}
        draws = [pair.mlx.answer(PICTURE, DESCRIBE, seed=seed, **options).token_ids for seed in (1, 1, 2)]
    assert np.abs(ours - theirs).max() < 2e-4
    assert np.abs(ours - plain).max() > 0.05
    assert draws[0] == draws[1] != draws[2]


def test_a_stream_has_the_text_of_the_answer_and_ends_where_the_method_is_switched(pair):
    with pair.mlx.using(mgap.MGAP(pair.prior)):
        pieces = list(pair.mlx.stream(PICTURE, DESCRIBE, max_new_tokens=8))
        assert len(pieces) > 1
        assert "".join(pieces).strip() == pair.mlx.answer(PICTURE, DESCRIBE, max_new_tokens=8).text
        late = pair.mlx.stream(PICTURE, DESCRIBE, max_new_tokens=8)
        next(late)
    with pytest.raises(SettingError, match="switched"):
        next(late)


def test_mlx_vlms_own_generate_and_stream_generate_decode_with_an_attached_method(pair):
    method = strong(pair.prior, 4.0)
    inputs = to_mlx(pair.mlx._prepare(PICTURE, DESCRIBE)[1])
    options = {"temperature": 0.0, "max_tokens": 24}
    with pair.mlx.using(method):
        expected = list(caption(pair.mlx).token_ids)
    with attach(pair.mlx.mlx, method):
        whole = mlx_vlm.generate(pair.mlx.mlx, pair.mlx.processor, "", **inputs, **options)
        *_, last = mlx_vlm.stream_generate(pair.mlx.mlx, pair.mlx.processor, "", **inputs, **options)
    assert whole.token_ids == last.token_ids == expected


def test_rows_of_a_batch_are_corrected_like_single_ones(pair):
    prompts, model, processor = ["Is there a cup?", "What do you see in the image?"], pair.mlx.mlx, pair.mlx.processor
    texts = [mlx_vlm.apply_chat_template(processor, model.config, prompt) for prompt in prompts]  # as batch_generate does

    def batch():
        return batch_generate(model, processor, prompts=prompts, max_tokens=8).texts

    with attach(pair.mlx, strong(pair.prior, 4.0)):
        found = batch()
        single = [mlx_vlm.generate(model, processor, text, max_tokens=8, temperature=0.0).text for text in texts]
    assert found == single != batch()


# --- the arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_setting_gives_the_logits_of_the_correction_in_torch(pair, settings):
    method = mgap.MGAP(pair.prior, **settings)
    h = 3 * torch.randn(2, 3, pair.prior.hidden_size, generator=torch.Generator().manual_seed(0))
    h[0, 0] = 0  # no direction at all
    head = pair.torch.backbone.probe_head()
    expected = Correction(method.subspace.basis, head, method.settings, Tap()).step(h, head.product(h))
    assert_same_step(MlxHead.of(pair.mlx.mlx), method, h, expected)


def assert_same_step(head, method, h, expected, tolerance=2e-4):
    states = mx.array(h.numpy())
    found = np.array(MlxCorrection(method.subspace.basis, head, method.settings)(states, head.product(states)))
    assert np.abs(found - expected.detach().numpy()).max() < tolerance * float(expected.abs().max())


def bare_prior(width, rank=3):
    return mgap.Subspace.from_states(torch.randn(40, width, generator=torch.Generator().manual_seed(1)), rank)


def tiny(family, **config):
    """A model of mlx-vlm with weights drawn at random."""
    module, wanted = import_module(f"mlx_vlm.models.{family}"), {}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 2, "rms_norm_eps": 1e-6,
             "vocab_size": 96, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "rope_theta": 1e4,
             "attention_bias": False, "mlp_bias": False, "model_type": family}  # fmt: skip
    wanted = {name: value for name, value in (sizes | config).items() if name in module.ModelConfig.__dataclass_fields__}
    mx.random.seed(0)
    model = module.Model(module.ModelConfig(**wanted))
    mx.eval(model.parameters())
    return model


GRANITE = {"logits_scaling": 4.0, "attention_multiplier": 0.25, "embedding_multiplier": 1.0, "residual_multiplier": 1.0}


@pytest.mark.parametrize(
    ("family", "config", "scale", "cap"),
    [("gemma2", {"final_logit_softcapping": 5.0}, 1.0, 5.0), ("granite", GRANITE, 0.25, None)],
)
def test_a_soft_cap_and_a_scale_after_the_head_are_measured_and_followed(family, config, scale, cap):
    model = tiny(family, **config)
    head = MlxHead.of(model)
    assert head.place.name == "as_linear"
    assert head.scale == pytest.approx(scale)
    assert head.cap == (None if cap is None else pytest.approx(cap))
    weight = torch.from_numpy(np.array(model.language_model.model.embed_tokens.weight))
    assert_followed(head, weight, scale=scale, cap=cap)


def assert_followed(head, weight, bias=None, **post):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight.data = weight.float()
    if bias is not None:
        linear.bias.data = bias
    h = torch.randn(4, weight.shape[1], generator=torch.Generator().manual_seed(2)) * 5
    theirs = replace(Head.measure(linear, h), **post)
    for settings in ({"alpha": 1.0}, {"preset": "reference-code"}):
        method = mgap.MGAP(bare_prior(weight.shape[1]), **settings)
        expected = Correction(method.subspace.basis, theirs, method.settings, Tap()).step(h, theirs.product(h))
        assert_same_step(head, method, h, expected)


def test_heads_with_a_bias_with_packed_weights_and_in_16_bits_are_followed():
    model = tiny("llama", tie_word_embeddings=False, hidden_size=64)
    own = model.language_model["lm_head"]
    weight = torch.from_numpy(np.array(own.weight))
    own.bias = mx.random.normal((96,))
    assert_followed(MlxHead.of(model), weight, torch.from_numpy(np.array(own.bias)))
    own.set_dtype(mx.bfloat16)
    rounded = torch.from_numpy(np.array(own.weight.astype(mx.float32)))
    assert_followed(MlxHead.of(model), rounded, torch.from_numpy(np.array(own.bias.astype(mx.float32))))
    del own.bias
    nn.quantize(model.language_model, group_size=32, bits=4)
    packed = model.language_model["lm_head"]
    assert type(packed) is nn.QuantizedLinear
    scales, biases = (packed[name].astype(mx.float32) for name in ("scales", "biases"))
    meant = mx.dequantize(packed.weight, scales, biases, group_size=32, bits=4)
    assert_followed(MlxHead.of(model), torch.from_numpy(np.array(meant)))


# --- which model, which prior --------------------------------------------------------------------------------------------


def test_a_prior_of_other_weights_is_refused_and_nothing_stays_behind(pair):
    identity = pair.prior.identity
    name = "layers.1.mlp.down_proj.weight"
    shape, *numbers = identity.tensors[name].split()
    finer = {**identity.tensors, name: " ".join([shape, *(f"{2 * float(n) + 1:.6g}" for n in numbers)])}
    others = [
        replace(identity, architecture="Other"),
        replace(identity, vocab_size=7),
        replace(identity, sample=tuple(value + 0.1 for value in identity.sample)),
        replace(identity, tensors=finer),
    ]
    for other in others:
        with pytest.raises(BackboneMismatch):
            attach(pair.mlx, mgap.MGAP(replace(pair.prior, identity=other)))
    with pytest.raises(BackboneMismatch):
        attach(pair.mlx, mgap.MGAP(bare_prior(48)))
    assert MlxHead.of(pair.mlx.mlx).place.shadow is None


def test_most_weights_are_compared_with_those_of_transformers(pair):
    theirs, ours = pair.prior.identity.tensors, identity_of(pair.mlx.mlx).tensors
    text = [name for name in theirs if name.startswith("layers.")]
    assert text
    assert {*text, "embed_tokens.weight", "norm.weight"} <= {*ours}


def test_a_model_quantised_to_4_bits_takes_the_prior_of_its_original_and_of_no_other():
    model = MlxModel.load("pocket/llava")
    whole = mgap.load("pocket/llava", device="cpu")
    prior = mgap.Subspace.fit(whole, every_calibration_prompt()[:20], rank=3)
    nn.quantize(model.mlx.language_model, group_size=64, bits=4, class_predicate=can_be_packed)
    assert {type(part) for part in (model.mlx.language_model.lm_head, model.mlx.language_model.model.embed_tokens)} == {
        nn.QuantizedLinear,
        nn.QuantizedEmbedding,
    }
    with model.using(mgap.MGAP(prior)):
        assert model.answer(PICTURE, QUESTION.text, max_new_tokens=4).token_ids
    other = replace(prior.identity, sample=tuple(reversed(prior.identity.sample)))
    with pytest.raises(BackboneMismatch):
        attach(model, mgap.MGAP(replace(prior, identity=other)))


def can_be_packed(_, module):
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % 64 == 0


def test_a_prior_fitted_from_mlx_states_spans_that_of_transformers_and_answers_alike(pair, tmp_path):
    prompts = every_calibration_prompt()[::25]
    theirs, heard = mgap.Subspace.fit(pair.torch, prompts, rank=3), []
    ours = pair.mlx.fit(prompts, rank=3, progress=heard.append)
    cosines = torch.linalg.svdvals(theirs.basis.T @ ours.basis)
    assert float(cosines.min()) > 1 - 1e-6
    assert torch.allclose(ours.singular_values[:3], theirs.singular_values[:3], rtol=1e-3)
    assert heard == [*range(1, len(prompts) + 1)]
    for key in ("null_image", "template_sha256", "prompts_sha256", "dtype"):
        assert ours.origin[key] == theirs.origin[key]
    ours.save(tmp_path)
    loaded = mgap.Subspace.load(tmp_path)
    with pair.torch.using(strong(loaded, 4.0)):  # and transformers takes it
        expected = caption(pair.torch).token_ids
    with pair.mlx.using(strong(loaded, 4.0)):
        assert caption(pair.mlx).token_ids == expected


# --- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"num_beams": 2}, {"repetition_penalty": 1.2}, {"sample": True, "min_p": 0.1}], ids=str)
def test_decoding_that_mlx_vlm_does_not_do_is_refused_by_name(pair, option):
    name = [*option][-1]
    with pytest.raises(UnsupportedDecoding, match=name):
        pair.mlx.answer(PICTURE, DESCRIBE, **option)


def test_other_methods_a_second_one_and_paths_past_the_head_are_refused(pair):
    with pytest.raises(SettingError, match="vcd"):
        attach(pair.mlx, mgap.VCD())
    with attach(pair.mlx, mgap.MGAP(pair.prior)):
        with pytest.raises(UnsupportedHead, match="detach"):
            attach(pair.mlx, mgap.MGAP(pair.prior))
        with pytest.raises(UnsupportedHead, match="detach"):
            pair.mlx.fit(["One?", "Two?"], rank=1)
        language = pair.mlx.mlx.language_model
        head = language.lm_head if "lm_head" in language else language.model.embed_tokens.as_linear
        with pytest.raises(UnsupportedHead, match="draft_model"):
            _ = head.weight
    assert MlxHead.of(pair.mlx.mlx).place.shadow is None


def test_a_head_that_gets_other_weights_meanwhile_is_noticed():
    model = tiny("llama", tie_word_embeddings=False, hidden_size=64)
    head = MlxHead.of(model)
    head.place.set(CorrectedHead(head, mgap.MGAP(bare_prior(64))))
    model.language_model(mx.array([[1, 2]]))
    model.language_model["lm_head"].weight = mx.zeros((96, 64))
    with pytest.raises(UnsupportedHead, match="other weights"):
        model.language_model(mx.array([[1, 2]]))
    head.place.clear()
    model.language_model(mx.array([[1, 2]]))


def test_fused_greedy_steps_which_pass_the_head_by_are_off_while_something_acts_there():
    text = qwen3_5.TextConfig(
        model_type="qwen3_5_text", hidden_size=64, intermediate_size=64, linear_num_value_heads=2, linear_num_key_heads=2,
        linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4, num_hidden_layers=4, num_attention_heads=2,
        rms_norm_eps=1e-6, vocab_size=96, num_key_value_heads=2, max_position_embeddings=64, head_dim=32,
    )  # fmt: skip
    config = qwen3_5.ModelConfig(text_config=text, vision_config=qwen3_5.VisionConfig(), model_type="qwen3_5")
    language = LanguageModel(text, config)
    head = MlxHead.of(SimpleNamespace(language_model=language))
    assert callable(language.fused_greedy_decode)
    with hooked(head.place, head.place.own):
        assert language.fused_greedy_decode is None
    assert callable(language.fused_greedy_decode)


def test_a_model_of_another_family_is_refused_before_its_weights_are_loaded(tmp_path, checkpoints):
    folder = tmp_path / "other"
    folder.mkdir()
    for path in checkpoints["llava"].iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llava_next"}))
    with pytest.raises(ModelError, match="attach"):
        MlxModel.load(str(folder))


def test_folders_of_transformers_5_are_copied_with_the_settings_that_mlx_vlm_looks_for(checkpoints):
    for folder in checkpoints.values():
        before = json.loads((folder / "config.json").read_text())["text_config"]["rope_parameters"]["rope_theta"]
        copy = mlx_readable(str(folder))
        assert json.loads(Path(copy, "config.json").read_text())["text_config"]["rope_theta"] == before
        assert mlx_readable(copy) == copy


def test_importing_mgap_imports_no_mlx():
    code = "import sys, mgap; mgap.attach, mgap.MGAP; print([m for m in sys.modules if m.split('.')[0] in ('mlx', 'mlx_vlm')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_example_answers_plainly_and_under_the_prior_that_it_fits(tmp_path):
    words = [sys.executable, "-W", "ignore", str(EXAMPLE), "--prompts", "6", "--alpha", "0", "1", "--prompt", QUESTION.text]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.splitlines()
    plain, off, on = (line.partition(": ")[2] for line in printed)
    assert plain == off
    assert plain.startswith(("Yes", "No"))
    assert on
