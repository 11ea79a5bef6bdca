"""One of each kind of object that is saved as tensors with a description, made from random states."""

import hashlib
import json

import torch
from safetensors.torch import load_file
from safetensors.torch import save as dump_tensors

from mgap.backbones.identity import Identity
from mgap.io import tensor_files
from mgap.priors.bank import Bank
from mgap.priors.null_space import NullSpace
from mgap.priors.prior_map import PriorMap
from mgap.priors.steering import Steering
from mgap.priors.subspace import Subspace

WEIGHTS = {"embed_tokens.weight": "100x6 0.5 0.1 -0.2 0.3 -0.4", "lm_head.weight": "100x6 0.25 0 0.1 -0.1 0.05"}
IDENTITY = Identity("org/model", None, "Llava", 6, 100, (0.5, -0.25), WEIGHTS)


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def subspace(seed=0, rank=2, identity=IDENTITY):
    found = Subspace.from_states(draws(12, 6, seed=seed), rank)
    tuning = {"settings": {"alpha": 0.5}, "rule": {"name": "labels"}}
    return Subspace(**{**vars(found), "identity": identity, "origin": {"null_image": "black336"}, "tuning": tuning})


def steering(seed=0):
    found = Steering.from_states(draws(4, 3, 6, seed=seed), draws(5, 3, 6, seed=seed + 1))
    return Steering(found.vectors, found.counts, IDENTITY, {"captions": 9})


def null_space(seed=0):
    found = NullSpace.from_states(draws(7, 4, 6, seed=seed), draws(7, 4, 6, seed=seed + 1), 2)
    return NullSpace(**{**vars(found), "identity": IDENTITY, "origin": {"preset": "paper"}})


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
    "null_space": (null_space, NullSpace),
}


def tensors(found):
    """Every number of it that a method or a measure uses."""
    match found:
        case Subspace():
            return [found.basis, found.singular_values, found.mean]
        case Steering():
            return [found.vectors]
        case NullSpace():
            return [found.bases, found.singular_values]
        case PriorMap():
            return [found.weight, found.offset, *tensors(found.prior)]
        case Bank():
            return [found.states, found.rows, found.steps, found.tokens]


def change_tensor(folder, kind, name, change):
    """Change one tensor of a saved object, and write it as its owner would: checksums and names fit."""
    index = json.loads((folder / f"{kind}.json").read_text())
    part = index["parts"][-1] if kind == "bank" else {"file": index["tensors"]}
    held = load_file(folder / part["file"])
    changed = {**held, name: change(held[name]).contiguous()}
    if kind != "bank":
        about = {key: value for key, value in index.items() if key not in ("format", "tensors", "sha256")}
        return tensor_files.save(kind, folder, changed, about)
    data = dump_tensors(changed)
    digest = hashlib.sha256(data).hexdigest()
    part.update(file=f"bank-{digest[:12]}.safetensors", bytes=len(data), sha256=digest)
    (folder / part["file"]).write_bytes(data)
    return (folder / "bank.json").write_text(json.dumps(index))


def is_valid(found):
    """Whether it is what such an object may be."""
    match found:
        case Subspace():
            gram, K = found.basis.T @ found.basis, found.rank
            fit = found.mean.shape == (len(found.basis),) and 1 <= K <= len(found.singular_values)
            in_range = found.count > 0 and found.total_variance >= 0
            return fit and in_range and torch.allclose(gram, torch.eye(K).double(), atol=1e-6)
        case Steering():
            return found.vectors.ndim == 2 and min(found.counts) > 0
        case NullSpace():
            gram, K = found.bases @ found.bases.mT, found.rank
            fit = len(found.singular_values) == len(found.bases) and 0 <= found.start < found.blocks.stop <= found.depth
            in_range = found.count > 0 <= found.dropped and found.singular_values.shape[1] >= K
            return fit and in_range and torch.allclose(gram, torch.eye(K).double(), atol=1e-6)
        case PriorMap():
            return (
                is_valid(found.prior) and found.weight.shape == found.prior.basis.T.shape and found.r2 <= 1 <= found.count + 1
            )
        case Bank():
            return len(found.states) == len(found) == len(found.tokens) > 0 and int(found.rows.min()) >= 0


def same(one, other):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors(one), tensors(other), strict=True))
