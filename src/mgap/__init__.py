"""Make multimodal language models invent fewer things about a picture, without training, while they decode.

    model = mgap.load("Qwen/Qwen3-VL-8B-Instruct")
    prior = mgap.Subspace.fit(model, mgap.default_prompts(), rank=5)
    with model.using(mgap.MGAP(prior)):
        print(model.answer("street.jpg", "Is there a dog in the image?"))

Names are imported on first use, so that `import mgap` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "load": "mgap.decoding.model",
    "wrap": "mgap.decoding.model",
    "Model": "mgap.decoding.model",
    "attach": "mgap.decoding.attach",
    "Bank": "mgap.priors.bank",
    "fit_prior_map": "mgap.decoding.prior_pairs",
    "NullSpace": "mgap.priors.null_space",
    "PriorMap": "mgap.priors.prior_map",
    "Steering": "mgap.priors.steering",
    "Subspace": "mgap.priors.subspace",
    "MGAP": "mgap.methods.mgap",
    "PredictedPrior": "mgap.methods.predicted_prior",
    "ASD": "mgap.methods.asd",
    "AvisC": "mgap.methods.avisc",
    "Blind": "mgap.methods.blind",
    "CODE": "mgap.methods.code",
    "ED": "mgap.methods.ed",
    "FastED": "mgap.methods.ed",
    "Given": "mgap.methods.given.given",
    "Evidence": "mgap.methods.given.evidence",
    "HalTrapper": "mgap.methods.haltrapper.haltrapper",
    "ICD": "mgap.methods.icd",
    "M3ID": "mgap.methods.m3id",
    "MoD": "mgap.methods.mod",
    "Nullu": "mgap.methods.nullu",
    "OPERA": "mgap.methods.opera.opera",
    "PAI": "mgap.methods.pai",
    "PromptPrior": "mgap.methods.prompt_prior",
    "RITUAL": "mgap.methods.ritual",
    "SID": "mgap.methods.sid",
    "Tether": "mgap.methods.tether",
    "VAF": "mgap.methods.vaf",
    "VCD": "mgap.methods.vcd",
    "VISTA": "mgap.methods.vista",
    "Bias": "mgap.methods.bias",
    "YesIfClose": "mgap.methods.yes_if_close",
    "DeCo": "mgap.methods.deco",
    "DoLa": "mgap.methods.dola",
    "Answer": "mgap.types",
    "Decoding": "mgap.types",
    "default_prompts": "mgap.priors.prompts",
    "read_prompts": "mgap.io.prompt_files",
    "MgapError": "mgap.errors",
}

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from mgap.decoding.attach import attach as attach
    from mgap.decoding.model import Model as Model
    from mgap.decoding.model import load as load
    from mgap.decoding.model import wrap as wrap
    from mgap.decoding.prior_pairs import fit_prior_map as fit_prior_map
    from mgap.errors import MgapError as MgapError
    from mgap.io.prompt_files import read_prompts as read_prompts
    from mgap.methods.asd import ASD as ASD
    from mgap.methods.avisc import AvisC as AvisC
    from mgap.methods.bias import Bias as Bias
    from mgap.methods.blind import Blind as Blind
    from mgap.methods.code import CODE as CODE
    from mgap.methods.deco import DeCo as DeCo
    from mgap.methods.dola import DoLa as DoLa
    from mgap.methods.ed import ED as ED
    from mgap.methods.ed import FastED as FastED
    from mgap.methods.given.evidence import Evidence as Evidence
    from mgap.methods.given.given import Given as Given
    from mgap.methods.haltrapper.haltrapper import HalTrapper as HalTrapper
    from mgap.methods.icd import ICD as ICD
    from mgap.methods.m3id import M3ID as M3ID
    from mgap.methods.mgap import MGAP as MGAP
    from mgap.methods.mod import MoD as MoD
    from mgap.methods.nullu import Nullu as Nullu
    from mgap.methods.opera.opera import OPERA as OPERA
    from mgap.methods.pai import PAI as PAI
    from mgap.methods.predicted_prior import PredictedPrior as PredictedPrior
    from mgap.methods.prompt_prior import PromptPrior as PromptPrior
    from mgap.methods.ritual import RITUAL as RITUAL
    from mgap.methods.sid import SID as SID
    from mgap.methods.tether import Tether as Tether
    from mgap.methods.vaf import VAF as VAF
    from mgap.methods.vcd import VCD as VCD
    from mgap.methods.vista import VISTA as VISTA
    from mgap.methods.yes_if_close import YesIfClose as YesIfClose
    from mgap.priors.bank import Bank as Bank
    from mgap.priors.null_space import NullSpace as NullSpace
    from mgap.priors.prior_map import PriorMap as PriorMap
    from mgap.priors.prompts import default_prompts as default_prompts
    from mgap.priors.steering import Steering as Steering
    from mgap.priors.subspace import Subspace as Subspace
    from mgap.types import Answer as Answer
    from mgap.types import Decoding as Decoding


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mgap' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
