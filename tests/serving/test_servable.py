import pytest

from mgap.errors import SettingError
from mgap.methods.base import Method, Seam
from mgap.registry import METHODS
from mgap.serving.servable import refuse_method, why_not

REASONS = {  # a word of each seam's reason
    Seam.HEAD: "hooks",
    Seam.BRANCH: "second context",
    Seam.LAYERS: "earlier layers",
    Seam.ATTENTION: "attention weights",
    Seam.SEARCH: "beams",
}


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_is_possible_in_vllm_or_refused_by_name_with_the_reason_of_its_seam(name):
    method = METHODS.get(name)
    if name in ("mgap", "bias", "predicted-prior"):
        assert why_not(method) == ""
        refuse_method(name)
        return
    assert REASONS[method.seam] in why_not(method)
    others = "vanilla, bias, mgap, predicted-prior, or engine transformers"
    with pytest.raises(SettingError, match=rf"cannot do {name}: .*; use {others}"):
        refuse_method(name)


def test_a_run_against_servers_has_no_predicted_prior_since_they_tell_of_priors_only():
    with pytest.raises(SettingError, match=r"server cannot do predicted-prior: .*; use vanilla, bias, mgap, or engine"):
        refuse_method("predicted-prior", "server")


def test_a_method_of_another_package_is_refused_although_it_acts_at_the_head():
    class Other(Method):
        seam = Seam.HEAD

    assert "hooks" in why_not(Other)
