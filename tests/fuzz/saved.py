"""One of each kind of object that is saved as tensors with a description, made from random states."""

import torch

from mgap.backbones.base import Identity
from mgap.priors.bank import Bank
from mgap.priors.prior_map import PriorMap
from mgap.priors.steering import Steering
from mgap.priors.subspace import Subspace

IDENTITY = Identity("org/model", None, "Llava", 6, 100, (0.5, -0.25))


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def subspace(seed=0, rank=2, identity=IDENTITY):
    found = Subspace.from_states(draws(12, 6, seed=seed), rank)
    tuning = {"settings": {"alpha": 0.5}, "rule": {"name": "labels"}}
    return Subspace(**{**vars(found), "identity": identity, "origin": {"null_image": "black336"}, "tuning": tuning})


def steering(seed=0):
    found = Steering.from_states(draws(4, 3, 6, seed=seed), draws(5, 3, 6, seed=seed + 1))
    return Steering(found.vectors, found.counts, IDENTITY, {"captions": 9})


def prior_map(seed=0):
    h = draws(20, 6, seed=seed)
    return PriorMap.from_states(h, h @ draws(6, 6, seed=seed + 1), subspace(seed))


def bank(seed=0, dtype=torch.bfloat16):
    rows = torch.arange(9) // 2
    return Bank.of(draws(9, 6, seed=seed).to(dtype), rows=rows, steps=torch.arange(9) % 2, tokens=rows + 40, identity=IDENTITY)


MADE = {
    "subspace": (subspace, Subspace),
    "steering": (steering, Steering),
    "prior_map": (prior_map, PriorMap),
    "bank": (bank, Bank),
}


def tensors(found):
    """Every number of it that a method or a measure uses."""
    match found:
        case Subspace():
            return [found.basis, found.singular_values, found.mean]
        case Steering():
            return [found.vectors]
        case PriorMap():
            return [found.weight, found.offset, *tensors(found.prior)]
        case Bank():
            return [found.states, found.rows, found.steps, found.tokens]


def same(one, other):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors(one), tensors(other), strict=True))
