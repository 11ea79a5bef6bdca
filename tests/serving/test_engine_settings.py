"""What an engine and a request may ask for; read without vLLM."""

from types import SimpleNamespace

import pytest
import torch

import mgap
from mgap.errors import SettingError
from mgap.serving.engine_settings import LOG_EVERY, Serving, own_alpha


@pytest.mark.filterwarnings("ignore:.* names no model")
def test_the_keys_are_those_of_the_method_and_how_often_to_tell(tmp_path):
    mgap.Subspace.from_states(torch.randn(20, 8), 3).save(tmp_path)
    wanted = Serving.of({"prior": str(tmp_path), "alpha": 0.5, "rank": 2, "log_every": 5})
    method = wanted.method()
    assert (method.alpha, method.lam, method.subspace.rank, wanted.log_every) == (0.5, 0.5, 2, 5.0)
    assert Serving.of({"prior": str(tmp_path)}).log_every == LOG_EVERY


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("priors/my", "must hold keys and values"),
        ({}, "prior is missing; fit one with `mgap fit --model MODEL --out DIR`"),
        ({"prior": 3}, "prior is missing"),
        ({"prior": "p", "aplha": 1}, "unknown key 'aplha'; choose from prior, alpha"),
        ({"prior": "p", "log_every": -1}, "log_every=-1 must be a finite number"),
        ({"prior": "p", "method": "vcd"}, "additional_config mgap: method='vcd': choose from mgap, predicted-prior"),
        ({"prior": "p", "method": "predicted-prior"}, "unknown key 'prior'; choose from prior_map, rho"),
        ({"method": "predicted-prior"}, "prior_map is missing; fit one with `mgap fit .* --for predicted-prior`"),
    ],
)
def test_other_keys_are_named(given, why):
    with pytest.raises(SettingError, match=why):
        Serving.of(given)


@pytest.mark.filterwarnings("ignore:.* names no model")
def test_a_predicted_prior_has_a_map_and_settings_of_its_own(tmp_path):
    states = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    prior = mgap.Subspace.from_states(states, 3)
    fitted = mgap.PriorMap.from_states(states, states + 0.1 * states.roll(1, 0), prior)
    fitted.save(tmp_path)
    wanted = Serving.of({"method": "predicted-prior", "prior_map": str(tmp_path), "rho": 2, "gate": True})
    method = wanted.method()
    assert isinstance(method, mgap.PredictedPrior)
    assert (method.settings.alpha, method.settings.gate, method.subspace.rank) == (2, True, 3)
    assert method.learnt.digest == fitted.digest != prior.digest
    assert Serving.of(wanted.to_json()) == wanted


@pytest.mark.parametrize("more", [None, {}, {"other": 1}, "text"])
def test_an_engine_that_does_not_ask_gets_nothing(more):
    assert Serving.of_engine(SimpleNamespace(additional_config=more)) is None


def test_a_requests_own_strength():
    assert own_alpha(None) is own_alpha({}) is own_alpha({"other": 1}) is None
    assert own_alpha({"mgap_alpha": 0}) == 0.0
    assert own_alpha({"mgap_alpha": 2.5, "other": "x"}) == 2.5
    for value in (-1, float("nan"), float("inf"), "1", None, True, [1]):
        with pytest.raises(SettingError, match="must be a finite number of at least 0"):
            own_alpha({"mgap_alpha": value})
    with pytest.raises(SettingError, match="unknown 'mgap_alfa' in vllm_xargs"):
        own_alpha({"mgap_alfa": 1})
    with pytest.raises(SettingError, match="unknown 'mgap_pair' in custom_params"):
        own_alpha({"mgap_pair": {}}, "custom_params")
    assert own_alpha({"mgap_pair": {}}, others=("mgap_pair",)) is None
