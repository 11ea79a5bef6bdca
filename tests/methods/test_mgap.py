"""MGAP on real heads: presets, switches, refusals, and agreement of the two ways to the logits."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mgap
from mgap.backbones.head_states import catch_states
from mgap.errors import BackboneMismatch, SettingError
from mgap.methods.base import Tap
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.mgap import PRESETS, Correction, entropy_of
from tests.reference import mgap as reference

pytestmark = [pytest.mark.both_families, pytest.mark.filterwarnings("ignore:alpha=")]


@pytest.fixture
def inputs(model, picture):
    return model.backbone.encode([picture], ["Is there a dog in the image?"])


def plain(model, inputs):
    with torch.no_grad():
        return model.backbone.model(**inputs).logits


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_alpha_zero_returns_the_same_logits(family, checkpoints, picture, preset, dtype):
    model = mgap.load(str(checkpoints[family]), dtype=dtype)
    prior = mgap.Subspace.fit(model, mgap.default_prompts()[:12])
    inputs = model.backbone.encode([picture], ["Is there a dog in the image?"])
    before = plain(model, inputs)
    with model.using(mgap.MGAP(prior, alpha=0.0, preset=preset)) as attachment:
        assert torch.equal(plain(model, inputs), before)
        with attachment.record():
            assert torch.equal(plain(model, inputs), before)
    assert torch.equal(plain(model, inputs), before)


@pytest.mark.parametrize("alpha", [0.75, 1.0, 6.0])
@pytest.mark.parametrize("preset", PRESETS)
def test_the_logits_path_agrees_with_the_head_on_the_cut_state(model, prior, inputs, alpha, preset):
    method = mgap.MGAP(prior, alpha=alpha, preset=preset)
    head = model.backbone.probe_head()
    states = []
    handle = head.module.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    plain(model, inputs)
    handle.remove()
    results = []
    for way in (head, replace(head, linear=False)):
        correction = Correction(method.subspace.basis, way, method.settings, Tap())
        with torch.no_grad():
            results.append(correction(head.module, (states[0],), head.product(states[0])))
    assert not torch.allclose(results[0], head.product(states[0]), atol=1e-2)
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("gate", "protect"), [(True, True), (False, True), (True, False), (False, False)])
def test_the_attached_model_agrees_with_the_paper_written_out(model, prior, inputs, gate, protect):
    states = []
    handle = model.backbone.head_module.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    with model.using(mgap.MGAP(prior, gate=gate, protect=protect)):
        logits = plain(model, inputs)
    handle.remove()
    weight = model.backbone.head_module.weight.detach().double().numpy()
    for position in range(0, logits.shape[1], 7):
        h = states[-1][0, position].double().numpy()
        _, expected = reference.step(h, prior.basis.numpy(), weight, 0.0, 0.75, 0.5, gate=gate, protect=protect)
        torch.testing.assert_close(logits[0, position].double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)


def test_the_betas_of_states_are_those_that_decoding_uses(model, prior, inputs):
    with model.using(mgap.MGAP(prior)) as attachment, catch_states(model.backbone) as caught, attachment.record() as recorder:
        plain(model, inputs)
    method, head = mgap.MGAP(prior, alpha=0.1), model.backbone.probe_head()
    betas = method.betas(head, caught[0], strength=0.75)
    torch.testing.assert_close(betas, recorder.steps[0].values["beta"])
    h, moved = caught[0].float(), method.effective_states(head, HeadInputs(caught[0]), 0.75)
    torch.testing.assert_close(h - moved, betas.unsqueeze(-1) * (h @ prior.projector.float()), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("is_linear", [True, False])
def test_the_decode_loop_does_no_second_head_product(model, prior, picture, is_linear, monkeypatch):
    head = model.backbone.head_module
    forwards, products = [], []
    original = torch.nn.functional.linear

    def counted(h, weight, bias=None):
        products.extend([1] * (weight is head.weight))
        return original(h, weight, bias)

    if not is_linear:  # a head that is not linear is allowed the second one, and must use it
        monkeypatch.setattr("mgap.backbones.head._is_linear", lambda *_: False)
    with model.using(mgap.MGAP(prior)):
        monkeypatch.setattr(torch.nn.functional, "linear", counted)
        handle = model.backbone.model.register_forward_pre_hook(lambda *_: forwards.append(1))
        model.answer(picture, "What is this?", max_new_tokens=8)
        handle.remove()
    assert len(forwards) >= 2
    assert len(products) == len(forwards) * (1 if is_linear else 2)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "much", True])
@pytest.mark.parametrize("name", ["alpha", "lam"])
def test_a_strength_that_is_no_finite_number_of_at_least_zero_is_refused(prior, name, bad):
    with pytest.raises(SettingError, match=name):
        mgap.MGAP(prior, **{name: bad})


def test_a_threshold_that_no_share_reaches_is_refused(prior):
    with pytest.raises(SettingError, match=r"threshold=1\.0 must be below 1"):
        mgap.MGAP(prior, threshold=1.0)


def test_alpha_above_one_is_allowed_with_a_warning(prior):
    with pytest.warns(UserWarning, match="alpha=2"):
        mgap.MGAP(prior, alpha=2)


def test_an_unknown_preset_names_the_known_ones(prior):
    with pytest.raises(SettingError, match="reference-code"):
        mgap.MGAP(prior, preset="papre")


def test_presets_are_the_published_strengths(prior):
    strengths = {name: (mgap.MGAP(prior, preset=name).alpha, mgap.MGAP(prior, preset=name).lam) for name in PRESETS}
    assert strengths == {
        "paper": (0.75, 0.5), "table-random": (0.75, 1.0), "table-hard": (1.0, 0.5), "reference-code": (0.75, 0.6)
    }  # fmt: skip
    settings = mgap.MGAP(prior, preset="reference-code").settings
    assert (settings.threshold, settings.epsilon, settings.restore) == (0.25, 1e-6, True)


def test_what_is_given_wins_over_the_preset(prior):
    method = mgap.MGAP(prior, preset="reference-code", lam=0.1)
    assert (method.alpha, method.lam, method.rank, method.settings.threshold) == (0.75, 0.1, 3, 0.25)
    assert method.subspace.rank == 3


def test_a_rank_that_the_prior_does_not_have_is_refused(prior):
    with pytest.raises(SettingError, match="rank=9"):
        mgap.MGAP(prior, rank=9)


def test_a_prior_of_another_model_is_refused_and_leaves_no_hook(checkpoints):
    one, other = (mgap.load(str(folder)) for folder in checkpoints.values())
    prior = mgap.Subspace.fit(one, mgap.default_prompts()[:12])
    with pytest.raises(BackboneMismatch, match="was made with"), other.using(mgap.MGAP(prior)):
        pass
    assert not other.backbone.head_module._forward_hooks


def test_a_prior_of_the_same_model_in_another_precision_is_accepted(family, checkpoints, prior):
    half = mgap.load(str(checkpoints[family]), dtype=torch.bfloat16)
    with half.using(mgap.MGAP(prior)):
        pass


@settings(max_examples=40)
@given(
    rows=st.integers(1, 5),
    vocab=st.integers(1, 3000),
    size=st.floats(0, 60),
    masked=st.integers(0, 50),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_the_entropy_on_a_processor_is_that_of_its_definition(rows, vocab, size, masked, dtype):
    logits = (size * torch.randn(rows, 2, vocab, generator=torch.Generator().manual_seed(vocab))).to(dtype)
    logits[..., 1 : 1 + masked] = -torch.inf
    p = logits.double().softmax(-1)
    expected = torch.special.entr(p).sum(-1)
    found = entropy_of(logits)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
