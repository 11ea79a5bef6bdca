"""Which registered methods vLLM can decode with, and why not the others."""

from __future__ import annotations

from mgap.errors import SettingError
from mgap.methods.base import Method, Seam
from mgap.methods.bias import Bias
from mgap.methods.mgap import MGAP
from mgap.methods.predicted_prior import PredictedPrior
from mgap.registry import METHODS

REASONS = {
    Seam.HEAD: "the plugin has no form of it: vLLM runs no hooks of transformers models",
    Seam.BRANCH: "it decodes every answer in a second context as well, and a request of vLLM has one",
    Seam.LAYERS: "it reads or moves states of earlier layers, and vLLM shows those of the last one only",
    Seam.ATTENTION: "it reads or changes attention weights, which vLLM's fused kernels never write down",
    Seam.SEARCH: "it goes back in a search among beams, and a request of vLLM only goes forward",
}


def why_not(method: type[Method], engine: str = "vllm") -> str:
    """Why vLLM cannot decode with a method; empty if it can."""
    if engine == "server" and issubclass(method, PredictedPrior):
        return "a server tells a run of MGAP's prior only"
    if issubclass(method, MGAP | PredictedPrior | Bias):  # our plugin, and vLLM's own logit_bias
        return ""
    return REASONS[method.seam]


def refuse_method(name: str, engine: str = "vllm") -> None:
    """Raise if vLLM cannot decode with the named method."""
    if reason := why_not(METHODS.get(name), engine):
        possible = ", ".join(
            ["vanilla", *sorted(other for other, method in METHODS.loaded().items() if not why_not(method, engine))]
        )
        raise SettingError(f"engine {engine} cannot do {name}: {reason}; use {possible}, or engine transformers")
