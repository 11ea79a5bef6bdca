"""Every method of the registry, at a strength that shows on the tiny models; what it must have learnt follows from `needs`."""

import warnings

import numpy as np
import torch
from PIL import Image

import mgap
from mgap.methods.given.evidence import EvidenceLine, EvidenceTable
from mgap.registry import METHODS


def evidence():
    """Two other pictures for the tiny picture of conftest.py, one for each of its turned copies; found by their pixels."""
    tiny, *others = (Image.fromarray(np.random.default_rng(seed).integers(0, 256, (60, 80, 3), np.uint8)) for seed in range(3))
    upside_down = Image.fromarray(np.asarray(tiny)[::-1].copy())
    shown = {"tiny": tiny, "turned": tiny.rotate(90, expand=True), "upside down": upside_down}
    others = (others[0].crop((0, 0, 50, 60)), others[1])
    lines = [EvidenceLine(name, None, others[: 2 if name == "tiny" else 1], source=one) for name, one in shown.items()]
    return EvidenceTable(tuple(lines))


NEEDED = {"bias": {"shift": 1.0}, "given": {"evidence": evidence()}}  # settings without a default that nothing can learn

STRONG = {  # settings by method, or by a variant: without them a method has its defaults
    "mgap": {"alpha": 8.0},
    "predicted-prior": {"rho": 2.0},
    "asd": {"lam_pos": 1.0, "lam_neg": 1.0},
    "avisc": {"alpha": 30.0, "beta": 0.0},
    "bias": {"shift": 24.0, "up": ("is", "picture"), "down": ("the",)},
    "blind": {"rho": 3.0},
    "code": {"k": 2.0, "length": 6},
    "ed": {"alpha": 1.0, "beta": 0.0},
    "fast-ed": {"alpha": 1.0, "beta": 0.0},
    "given": {**NEEDED["given"], "alpha": 4.0, "missing": "plain"},
    "haltrapper": {"alpha": 4.0, "n": 3, "length": 6},
    "icd": {"alpha": 4.0},
    "icd with vcd": {"alpha": 4.0, "with_vcd": True, "noise_step": 999},
    "m3id": {"lam": 0.4},
    "mod": {"rho": 0.1, "theta": 0.0, "a2": 30.0, "beta": 0.0},
    "nullu": {},  # taking three quarters of all directions out of the upper blocks is strong as it is
    "opera": {"alpha": 60.0, "beams": 3, "candidates": 3},
    "pai": {"alpha": 2.0, "gamma": 2.0, "start": 0},
    "prompt-prior": {"rho": 8.0},
    "ritual": {"alpha": 9.0, "beta": 0.0, "transform": "vertical_flip"},
    "sid": {"alpha": 20.0, "beta": 0.0, "keep": 1},
    "tether": {"rho": 3.0},
    "vaf": {"enhance": 8.0, "suppress": 0.2, "start": 0, "end": 3},
    "vcd": {"alpha": 4.0, "noise_step": 999},
    "vista": {"lam": 1.0, "alpha": 0.5},
    "deco": {"alpha": 40.0, "layers": [1, 2]},
    "dola": {"layers": [1, 2]},
    "yes-if-close": {"mass": 0.0, "margin": 1.0, "up": ("is", "picture"), "down": ("the",)},  # at every token
}


def steering(prior):
    drawn = torch.randn(2, 4, 3, prior.hidden_size, generator=torch.Generator().manual_seed(0))  # the tiny models' 3 blocks
    return mgap.Steering.from_states(*drawn)


def bank(prior):
    return mgap.Bank.of(torch.randn(64, prior.hidden_size, generator=torch.Generator().manual_seed(0)))


def prior_map(prior):
    drawn = torch.randn(prior.rank, prior.hidden_size + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return mgap.PriorMap(drawn[:, 1:].contiguous(), drawn[:, 0].contiguous(), prior, count=0, r2=0.0, ridge=0.0)


def null_space(prior):
    drawn = torch.randn(2, 60, 3, prior.hidden_size, generator=torch.Generator().manual_seed(0))  # the tiny models' 3 blocks
    return mgap.NullSpace.from_states(*drawn, rank=48)


LEARNT = {
    "subspace": lambda prior: prior,
    "prior_map": prior_map,
    "steering": steering,
    "bank": bank,
    "null_space": null_space,
}


def build(name, prior):
    """A method at a strength that changes what a tiny model says."""
    return build_with(name, prior, STRONG.get(name, {}))


def build_at_zero(name, prior):
    """The same with the settings which it declares to be plain decoding."""
    return build_with(name, prior, {**STRONG.get(name, {}), **METHODS.get(name).zero})


def build_with(name, prior, settings):
    """With these settings, and with something of each kind that they make it need."""
    method = METHODS.get(name.partition(" with ")[0])
    learnt = {setting: LEARNT[need.kind](prior) for setting, need in method.learnt_settings(settings).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # alpha above 1
        return method.of(**learnt, **settings)
