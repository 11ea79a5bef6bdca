"""The predicted prior: its equations written out, MGAP as a special case, and nothing moved outside of the subspace."""

import math
from dataclasses import replace

import pytest
import torch
import yaml

import mgap
from mgap.backbones.head import Head
from mgap.backbones.head_states import catch_states
from mgap.errors import BackboneMismatch, SettingError
from mgap.methods.base import Tap
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.predicted_prior import Removal
from mgap.priors.prior_plan import Priors
from mgap.run.config import Config
from mgap.run.method_plans import MethodPlan, build_method
from tests.methods.builders import build
from tests.reference import predicted_prior as reference

SWITCHES = [(True, True), (False, True), (True, False), (False, False)]


@pytest.fixture
def inputs(model, picture):
    return model.backbone.encode([picture], ["Is there a dog in the image?"])


@pytest.fixture(scope="module")
def prior_map(prior):
    return build("predicted-prior", prior).prior_map


def plain(model, inputs):
    with torch.no_grad():
        return model.backbone.model(**inputs).logits


def own_part(prior):
    """The map that takes a state's own coordinates for the blind twin's: A = V', a = 0."""
    return mgap.PriorMap(prior.basis.T.contiguous(), prior.basis.new_zeros(prior.rank), prior, count=0, r2=0.0, ridge=0.0)


@pytest.mark.parametrize(("gate", "protect"), SWITCHES)
@pytest.mark.parametrize("alpha", [0.0, 0.75, 1.0])
def test_mgap_is_the_special_case_of_the_states_own_part(model, prior, inputs, alpha, gate, protect):
    with model.using(mgap.MGAP(prior, alpha=alpha, lam=0.3, gate=gate, protect=protect)):
        expected = plain(model, inputs)
    with model.using(mgap.PredictedPrior(own_part(prior), rho=alpha, lam=0.3, gate=gate, protect=protect)):
        torch.testing.assert_close(plain(model, inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("gate", "protect"), SWITCHES)
@pytest.mark.parametrize("rho", [0.5, 2.0])
def test_the_attached_model_agrees_with_the_equations_written_out(model, prior_map, inputs, rho, gate, protect):
    method = mgap.PredictedPrior(prior_map, rho=rho, lam=0.3, gate=gate, protect=protect)
    with catch_states(model.backbone, last=False) as caught, model.using(method):
        caught.clear()  # what was read on attaching
        logits = plain(model, inputs)
    head = model.backbone.head_module.weight.detach().double().numpy()
    V, A, a = (t.numpy() for t in (prior_map.prior.basis, prior_map.weight, prior_map.offset))
    settings = {"rho": rho, "lam": 0.3, "gate": gate, "protect": protect}
    for position in range(0, logits.shape[1], 7):
        h = caught[0][0, position].double().numpy()
        _, expected = reference.step(h, V, A, a, head, 0.0, **settings)
        torch.testing.assert_close(logits[0, position].double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rho_zero_returns_the_same_logits(family, checkpoints, picture, prior_map, dtype):
    model = mgap.load(str(checkpoints[family]), dtype=dtype)
    inputs = model.backbone.encode([picture], ["Is there a dog in the image?"])
    before = plain(model, inputs)
    with model.using(mgap.PredictedPrior(prior_map, rho=0.0)) as attachment:
        assert torch.equal(plain(model, inputs), before)
        with attachment.record():
            assert torch.equal(plain(model, inputs), before)
    assert torch.equal(plain(model, inputs), before)


def test_the_very_tensor_comes_back_while_nobody_listens(model, prior_map):
    head = model.backbone.probe_head()
    h = torch.randn(2, 3, head.hidden_size, generator=torch.Generator().manual_seed(0))
    output, tap = head.product(h).detach(), Tap()
    assert Removal(prior_map, head, mgap.PredictedPrior(prior_map, rho=0.0).settings, tap)(head.module, (h,), output) is output


@pytest.mark.parametrize(("gate", "protect"), SWITCHES)
def test_nothing_moves_outside_of_the_subspace(model, prior_map, gate, protect):
    head, V = model.backbone.probe_head(), prior_map.prior.basis.float()
    h = torch.randn(9, head.hidden_size, generator=torch.Generator().manual_seed(0))
    method = mgap.PredictedPrior(prior_map, gate=gate, protect=protect)
    moved = method.effective_states(head, HeadInputs(h), 3.0)
    torch.testing.assert_close(moved - (moved @ V) @ V.T, h - (h @ V) @ V.T, rtol=1e-4, atol=1e-4)
    assert ((moved - h) @ V).abs().amax(-1).min() > 0.01


def test_a_perfect_map_leaves_the_state_without_its_prompts_prior(model, prior):
    """With c_hat = V'(h_blind - mean) itself, a rho of 1 takes it out to the last digit."""
    head, blind = model.backbone.probe_head(), torch.randn(1, prior.hidden_size, dtype=torch.float64)
    coordinates = ((blind - prior.mean) @ prior.basis)[0]
    found = replace(own_part(prior), weight=torch.zeros_like(prior.basis.T), offset=coordinates)
    h = torch.randn(4, prior.hidden_size)
    expected = h.double() - (prior.basis @ coordinates)
    moved = mgap.PredictedPrior(found).effective_states(head, HeadInputs(h), 1.0)
    torch.testing.assert_close(moved.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("gate", "protect"), SWITCHES)
def test_the_logits_path_agrees_with_the_head_on_the_moved_state(model, prior_map, inputs, gate, protect):
    method, head = mgap.PredictedPrior(prior_map, rho=2.0, gate=gate, protect=protect), model.backbone.probe_head()
    with catch_states(model.backbone, last=False) as caught:
        plain(model, inputs)
    h, found = caught[0], []
    for way in (head, replace(head, linear=False)):
        with torch.no_grad():
            found.append(Removal(prior_map, way, method.settings, Tap())(head.module, (h,), head.product(h)))
    assert not torch.allclose(found[0], head.product(h), atol=1e-2)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    states = method.effective_states(head, HeadInputs(h[:, -1]), 2.0)
    torch.testing.assert_close(head.product(states), found[0][:, -1], rtol=1e-4, atol=1e-4)


def test_a_bias_of_the_head_stays_and_a_capped_one_is_read_through_its_cap(prior_map):
    module = torch.nn.Linear(prior_map.prior.hidden_size, 50).requires_grad_(False)
    h = torch.randn(2, 3, prior_map.prior.hidden_size, generator=torch.Generator().manual_seed(0))
    head = Head.measure(module, h, scale=0.5, cap=3.0)
    assert head.bias is not None
    removal = Removal(prior_map, head, mgap.PredictedPrior(prior_map, gate=True, lam=0.2).settings, tap := Tap())
    told = []
    tap.listener = told.append
    found = removal(module, (h,), module(h))
    gate = removal.gate(h, module(h))
    torch.testing.assert_close(found, module(removal.move(h, removal.predict(h), gate)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(told[0].before, 3.0 * torch.tanh(0.5 * module(h) / 3.0))
    torch.testing.assert_close(told[0].after, 3.0 * torch.tanh(0.5 * found / 3.0))
    entropy = torch.distributions.Categorical(logits=told[0].before).entropy()
    torch.testing.assert_close(told[0].values["gamma"], torch.tanh(0.2 * entropy), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("gate", "protect"), SWITCHES)
def test_the_trace_shows_what_was_used(model, prior_map, inputs, gate, protect):
    method = mgap.PredictedPrior(prior_map, rho=0.7, lam=0.3, gate=gate, protect=protect)
    with catch_states(model.backbone) as caught, model.using(method) as attachment, attachment.record() as recorder:
        caught.clear()
        after = plain(model, inputs)[:, -1].float()
    before, values, h = plain(model, inputs)[:, -1].float(), recorder.steps[0].values, caught[0].float()
    V = prior_map.prior.basis.float()
    predicted = h @ prior_map.weight.float().T + prior_map.offset.float()
    entropy = torch.distributions.Categorical(logits=before).entropy()
    cosine = torch.nn.functional.cosine_similarity(h, h @ V @ V.T, dim=-1)
    expected = {
        "entropy": entropy,
        "cosine": cosine,
        "gamma": torch.tanh(0.3 * entropy) if gate else torch.ones_like(entropy),
        "delta": 1 - cosine if protect else torch.ones_like(cosine),
        "size": predicted.norm(dim=-1),
    }
    expected["strength"] = 0.7 * expected["gamma"] * expected["delta"]
    assert set(values) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(values[name], value, rtol=1e-4, atol=1e-4)
    moved = before - (expected["strength"][:, None] * predicted) @ V.T @ model.backbone.head_module.weight.float().T
    torch.testing.assert_close(after, moved, rtol=1e-4, atol=1e-4)


def test_it_acts_on_the_main_rows_of_a_method_with_a_branch(model, prior_map, picture):
    told = []
    for methods in ([mgap.VCD(alpha=0.0, beta=0.0), mgap.PredictedPrior(prior_map)], [mgap.PredictedPrior(prior_map)]):
        with model.using(*methods):
            told.append(model.answer(picture, "What is this?", max_new_tokens=6).token_ids)
    assert told[0] == told[1] != model.answer(picture, "What is this?", max_new_tokens=6).token_ids


def test_a_saved_map_is_named_by_its_folder(model, prior_map, picture, tmp_path):
    prior_map.save(tmp_path)
    told = []
    for given in (prior_map, str(tmp_path), tmp_path):
        with model.using(mgap.PredictedPrior(given)):
            told.append(model.answer(picture, "What is this?", max_new_tokens=6).token_ids)
    assert told[0] == told[1] == told[2]


def test_a_run_names_the_folder_in_yaml(prior_map, tmp_path):
    prior_map.save(tmp_path)
    text = f"benchmark: pope\nmodel: pocket/llava\nmethods:\n- {{method: predicted-prior, prior_map: {tmp_path}, rho: 0.5}}\n"
    (plan,) = Config.of(yaml.safe_load(text)).methods
    method = build_method(plan, None, Priors(tmp_path))
    assert torch.equal(method.prior_map.weight, prior_map.weight)
    assert method.rho == 0.5
    with pytest.raises(SettingError, match="uses no prior"):
        MethodPlan.of({"method": "predicted-prior", "prior_map": str(tmp_path), "prior": {"rank": 5}})


def test_the_command_line_takes_the_folder(run, family, checkpoints, prior_map, picture_file, tmp_path):
    prior_map.save(tmp_path)
    words = ("ask", picture_file, "What is this?", "-m", checkpoints[family], "--max-new-tokens", 4, "--method")
    status, out, _ = run(*words, "predicted-prior", "--set", f"prior_map={tmp_path}", "--set", "rho=0", "--trace")
    assert status == 0
    assert "strength" in out
    status, _, err = run(*words, "predicted-prior")
    assert status == 2
    assert "prior_map" in err


def test_a_map_of_another_model_is_refused_and_leaves_no_hook(family, checkpoints, model, prior_map):
    (other,) = (mgap.load(str(folder)) for name, folder in checkpoints.items() if name != family)
    with pytest.raises(BackboneMismatch, match="was made with"), other.using(mgap.PredictedPrior(prior_map)):
        pass
    assert not other.backbone.head_module._forward_hooks


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"rho": -1}, "rho"), ({"rho": math.nan}, "rho"), ({"lam": math.inf}, "lam"), ({"gate": 1}, "gate"),
     ({"protect": "yes"}, "protect"), ({"prior_map": 3}, "prior_map must be a PriorMap or its folder, not int")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(prior_map, settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.PredictedPrior(**{"prior_map": prior_map, **settings})


def test_the_map_is_asked_for_by_name():
    with pytest.raises(SettingError, match="prior_map"):
        mgap.PredictedPrior.of(rho=1.0)
