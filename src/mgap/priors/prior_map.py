"""The prior map: predicts the prompt's own prior, V'(h_blind - mean), as a linear function of the state h with the picture.

    c_hat = A h + a   [K],      min over A, a of  sum_i |V'(h_blind_i - mean) - A h_i - a|^2 + ridge s |A|^2

h and h_blind are the head's inputs for one prompt and one answer so far, with the picture and with a null image. V and mean
come from a fitted `Subspace`. s = sum_i |h_i - mean of h|^2 makes the ridge a share, whatever the states' scale and number.
Fitting needs pairs, but no labels. Cross-validation leaves out whole pictures, because states of one picture resemble each
other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.identity import Identity
from mgap.errors import CorruptFile, DegenerateSubspace, NonFiniteStates, PromptError, SettingError, one_line
from mgap.io import tensor_files
from mgap.io.typed_json import typed
from mgap.priors.saved_checks import UNREADABLE, finite, model_of, name_of, real, warn_if_nameless, whole
from mgap.priors.subspace import Subspace

RIDGES = tuple(10.0**power for power in range(-8, 1))
FOLDS = 5
_NO_VARIATION = 1e-24  # below this share of the sum of squares, the squared deviations are rounding
_PRIOR = "prior."  # prefix of the subspace's tensors in the file

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class PriorMap:
    """A linear map from a state to the prior coordinates of its blind state, and where it came from. Immutable."""

    weight: Tensor  # A [K, d] float64
    offset: Tensor  # a [K] float64
    prior: Subspace  # gives V and the mean of the coordinates
    count: int  # pairs it was fitted on
    r2: float  # share of the coordinates' variance explained on held-out pictures; below 0, the mean does better
    ridge: float  # the one of RIDGES that was best on held-out pictures
    identity: Identity | None = None  # the model of the pairs; None if made from bare states
    origin: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<PriorMap of {name_of(self.identity)}: {self.count} pairs of states, r2 {self.r2:.3f}, to {self.prior!r}>"

    def __post_init__(self) -> None:
        shape = self.prior.rank, self.prior.hidden_size
        if tuple(self.weight.shape) != shape or tuple(self.offset.shape) != shape[:1]:
            given = f"{list(self.weight.shape)} and {list(self.offset.shape)}"
            raise SettingError(f"a map to this prior has a weight {list(shape)} and an offset {list(shape[:1])}, not {given}")
        if not (self.weight.isfinite().all() and self.offset.isfinite().all()):
            raise SettingError("the map's numbers must be finite: fit it again")

    @classmethod
    def from_states(cls, h: Tensor, blind: Tensor, prior: Subspace, rows: Tensor | Sequence[int] | None = None) -> PriorMap:
        """Fit on pairs of states, two [n, d]; `rows` [n] is the picture of each pair, None: each has its own."""
        h, blind = _checked(h, blind, prior)
        target = (blind - prior.mean) @ prior.basis  # [n, K]
        fold = _folds(rows, len(h))
        errors, total = torch.zeros(len(RIDGES), dtype=torch.float64), 0.0
        for out in (fold == k for k in range(FOLDS)):  # [n], held out
            for index, (weight, offset) in enumerate(_ridge_maps(h[~out], target[~out], RIDGES)):
                errors[index] += (target[out] - h[out] @ weight.T - offset).square().sum()
            total += float((target[out] - target[~out].mean(0)).square().sum())
        best = int(errors.argmin())
        ((weight, offset),) = _ridge_maps(h, target, RIDGES[best : best + 1])
        r2 = 1 - float(errors[best]) / total if total > 0 else 0.0
        return cls(weight, offset, prior, len(h), r2, RIDGES[best])

    def require(self, backbone: Backbone) -> None:
        """Refuse a model that this map or its prior was not fitted on."""
        self.require_identity(backbone.identity)

    def require_identity(self, model: Identity, what: str = "the prior map") -> None:
        """The same, for a model of which only the identity is known."""
        self.prior.require_identity(model)
        if self.identity is not None:
            self.identity.require(model, what)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the map and of its prior: two processes, or two machines, have the same."""
        numbers = (tensor.contiguous().numpy().tobytes() for tensor in (self.weight, self.offset))
        return hashlib.sha256(b"".join([self.prior.digest.encode(), *numbers])).hexdigest()

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `prior_map.json` and its tensors, with the prior's; a reader sees either the old version or the new one."""
        tensors, prior = self.prior.described()
        about = {
            "count": self.count,
            "r2": self.r2,
            "ridge": self.ridge,
            "model": None if self.identity is None else self.identity.to_json(),
            "origin": self.origin,
            "prior": prior,
        }
        own = {"weight": self.weight, "offset": self.offset}
        tensor_files.save("prior_map", folder, own | {_PRIOR + name: tensor for name, tensor in tensors.items()}, about)

    @classmethod
    def load(cls, folder_or_repo: str | PathLike[str], *, revision: str | None = None) -> PriorMap:
        """Load a saved map from a folder or a hub repository. Warns if it and its prior name no model."""
        folder = tensor_files.find("prior_map", folder_or_repo, revision)
        tensors, about = tensor_files.load("prior_map", folder)
        try:
            of_prior = {name.removeprefix(_PRIOR): tensor for name, tensor in tensors.items() if name.startswith(_PRIOR)}
            prior = Subspace.from_described(of_prior, about["prior"], folder)
            loaded = cls(
                weight=finite(tensors, "weight", (prior.rank, prior.hidden_size)),
                offset=finite(tensors, "offset", (prior.rank,)),
                prior=prior,
                count=whole(about, "count", 0),
                r2=real(about, "r2", most=1),
                ridge=real(about, "ridge", 0),
                identity=model_of(about, prior.hidden_size),
                origin=typed(dict[str, Any], about["origin"], "origin"),
            )
        except UNREADABLE as error:
            raise CorruptFile(f"{folder}: not a saved prior map ({one_line(error)}); fit it again") from error
        warn_if_nameless(folder, loaded.identity or prior.identity)
        return loaded


def _checked(h: Tensor, blind: Tensor, prior: Subspace) -> Pair:
    """Both in float64 on the CPU, like the prior."""
    if h.shape != blind.shape or h.ndim != 2 or h.shape[1] != prior.hidden_size:
        shapes = f"{list(h.shape)} and {list(blind.shape)} with a prior of width {prior.hidden_size}"
        raise SettingError(f"states and blind states must be [n, d] alike, and d the prior's width: not {shapes}")
    if not (h.isfinite().all() and blind.isfinite().all()):
        raise NonFiniteStates("some states are NaN or infinite: load the model with dtype float32")
    return h.detach().to("cpu", torch.float64), blind.detach().to("cpu", torch.float64)


def _folds(rows: Tensor | Sequence[int] | None, count: int) -> Tensor:
    """The fold [n] in which each state is held out: whole pictures, dealt out in turn."""
    pictures = torch.arange(count) if rows is None else torch.as_tensor(rows).cpu()
    if tuple(pictures.shape) != (count,):
        raise SettingError(f"rows is {list(pictures.shape)}: give one picture's number for each of the {count} states")
    distinct, indices = torch.unique(pictures, return_inverse=True)
    if len(distinct) < FOLDS:
        raise PromptError(f"pairs of {len(distinct)} pictures are too few to fit a map and to judge it: give at least {FOLDS}")
    fold: Tensor = indices % FOLDS
    return fold


def _ridge_maps(h: Tensor, target: Tensor, ridges: Sequence[float]) -> Iterator[Pair]:
    """(A, a) for each ridge, from one eigendecomposition: of X'X, or of XX' if there are fewer states than dimensions."""
    h_mean, target_mean = h.mean(0), target.mean(0)
    X, Y = h - h_mean, target - target_mean  # [n, d], [n, K]
    s = X.square().sum()
    if s <= _NO_VARIATION * h.square().sum():
        raise DegenerateSubspace("the states do not vary, so nothing can be read off them: ask about different pictures")
    if len(X) < X.shape[1]:  # A' = X'(XX' + ridge s I)^-1 Y
        values, vectors = torch.linalg.eigh(X @ X.T)
        left, right = X.T @ vectors, vectors.T @ Y  # [d, n], [n, K]
    else:  # A' = (X'X + ridge s I)^-1 X'Y
        values, left = torch.linalg.eigh(X.T @ X)
        right = left.T @ (X.T @ Y)  # [d, K]
    for ridge in ridges:
        weight = ((left / (values + ridge * s)) @ right).T.contiguous()  # [K, d]
        yield weight, target_mean - weight @ h_mean
