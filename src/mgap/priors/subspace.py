"""The prior subspace (paper, section 4.1): the directions along which a model's last state varies without a picture."""

from __future__ import annotations

import hashlib
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import mgap
from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.identity import Identity
from mgap.backbones.null_images import check_null_image
from mgap.errors import BackboneMismatch, CorruptFile, PromptError, SettingError, one_line
from mgap.io import tensor_files
from mgap.io.typed_json import typed
from mgap.priors.collect_states import blind_states
from mgap.priors.saved_checks import UNREADABLE, finite, model_of, name_of, real, warn_if_nameless, whole
from mgap.priors.spectrum import check_solver, principal_directions

Progress = Callable[[int], None]  # called with the number of prompts done so far


@dataclass(frozen=True)
class Subspace:
    """An orthonormal basis V of the language prior, and where it came from. Immutable."""

    basis: Tensor  # [d, K] float64, V'V = I
    singular_values: Tensor  # [m >= K], descending
    mean: Tensor  # [d] of the states; decoding does not subtract it
    total_variance: float
    count: int  # N, states it was fitted on
    identity: Identity | None = None  # the model; None if made from bare states
    origin: dict[str, Any] = field(default_factory=dict)  # null image, template, hash of the prompts, versions, date
    tuning: dict[str, Any] | None = None  # plain JSON: what `mgap tune` chose, by which rule, on which data

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    @property
    def hidden_size(self) -> int:
        return self.basis.shape[0]

    @property
    def explained_variance(self) -> float:
        """Share (0..1) of the states' variance inside the subspace."""
        explained = float(self.singular_values[: self.rank].double().square().sum())
        return explained / self.total_variance if self.total_variance > 0 else 0.0

    @property
    def projector(self) -> Tensor:
        """V V' [d, d]. Compare subspaces by it, because the signs and order of V's columns are arbitrary."""
        return self.basis @ self.basis.T

    def __repr__(self) -> str:
        null_image, tuned = self.origin.get("null_image"), ", tuned" if self.tuning else ""
        asked = f"{self.count} prompts, {null_image}" if null_image else f"{self.count} states"
        share = f"{100 * self.explained_variance:.1f}% of their variance"
        return f"<Subspace of {name_of(self.identity)}: rank {self.rank} of {self.hidden_size}, {asked}, {share}{tuned}>"

    @classmethod
    def fit(
        cls,
        model: Backbone | HasBackbone,
        prompts: Iterable[str],
        rank: int | str = 5,
        *,
        null_image: str = "black336",
        size: tuple[int, int] | None = None,
        svd: str = "exact",
        batch_size: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Subspace:
        """Run the prompts with a null image and keep the top `rank` right singular vectors of the last states.

        `prompts` may be a generator: it is read once, and memory does not grow with its length. `rank="auto"` keeps
        the directions that stand out from noise (`priors.spectrum.auto_rank`). `svd` is exact, lanczos or randomized.
        The default `batch_size` is that of `priors.collect_states.blind_states`.
        """
        read = HashedPrompts(prompts, progress)
        check_solver(svd)
        check_null_image(null_image, size)
        backbone = Backbone.of(model)
        width = backbone.hidden_size
        if isinstance(rank, int) and not 1 <= rank <= width:
            raise SettingError(f"rank={rank} must be between 1 and the model's hidden size {width}")
        chunks = blind_states(backbone, read, null_image=null_image, size=size, batch_size=batch_size)
        device = backbone.device if backbone.device.type == "cuda" else "cpu"  # others may have no float64
        fitted = cls.from_states(chunks, rank, svd=svd, seed=seed, device=device)
        origin = origin_of(backbone, read, null_image=null_image, size=size, svd=svd, dtype=backbone.dtype_name)
        return replace(fitted, identity=backbone.identity, origin=origin)

    @classmethod
    def from_states(
        cls,
        chunks: Iterable[Tensor] | Tensor,
        rank: int | str = 5,
        *,
        svd: str = "exact",
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> Subspace:
        """Fit on given states: one [N, d] tensor, or an iterable of [n, d] chunks; `device` does the arithmetic."""
        spectrum = principal_directions([chunks] if isinstance(chunks, Tensor) else chunks, rank, svd, seed, device)
        return cls(
            basis=spectrum.basis,
            singular_values=spectrum.singular_values,
            mean=spectrum.mean,
            total_variance=spectrum.total_variance,
            count=spectrum.count,
        )

    def truncate(self, rank: int) -> Subspace:
        """The first `rank` directions."""
        if not 1 <= rank <= self.rank:
            raise SettingError(f"rank={rank} is not between 1 and {self.rank}, the rank of this subspace: fit a larger one")
        return replace(self, basis=self.basis[:, :rank].contiguous())

    def require(self, backbone: Backbone) -> None:
        """Refuse a model that this subspace was not fitted on."""
        self.require_identity(backbone.identity)

    def require_identity(self, model: Identity, what: str = "the subspace") -> None:
        """The same, for a model of which only the identity is known."""
        if self.identity is not None:
            self.identity.require(model, what)
        elif model.hidden_size != self.hidden_size:
            raise BackboneMismatch(f"{what} has width {self.hidden_size}, the model {model.hidden_size}: fit one for it")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the basis: two processes, or two machines, have the same prior."""
        return hashlib.sha256(self.basis.contiguous().numpy().tobytes()).hexdigest()

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `subspace.json` and its tensors; a reader sees either the old version or the new one."""
        tensor_files.save("subspace", folder, *self.described())

    def described(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors, and everything else as plain JSON, to be saved by itself or within another object."""
        about = {
            "rank": self.rank,
            "count": self.count,
            "spectrum": self.singular_values.tolist(),
            "total_variance": self.total_variance,
            "explained_variance": self.explained_variance,
            "model": None if self.identity is None else self.identity.to_json(),
            "origin": self.origin,
            **({} if self.tuning is None else {"tuning": self.tuning}),
        }
        return {name: getattr(self, name) for name in _TENSORS}, about

    @classmethod
    def load(cls, folder_or_repo: str | PathLike[str], *, revision: str | None = None) -> Subspace:
        """Load a saved subspace from a folder or a hub repository. Warns of one that names no model, such as of bare states."""
        folder = tensor_files.find("subspace", folder_or_repo, revision)
        loaded = cls.from_described(*tensor_files.load("subspace", folder), folder)
        warn_if_nameless(folder, loaded.identity)
        return loaded

    @classmethod
    def from_described(cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any], folder: Path) -> Subspace:
        """The inverse of `described`; error messages name `folder`."""
        try:
            basis, values = finite(tensors, "basis", (None, None)), finite(tensors, "singular_values", (None,))
            width, rank = basis.shape
            loaded = cls(
                basis=basis,
                singular_values=values,
                mean=finite(tensors, "mean", (width,)),
                total_variance=real(about, "total_variance", 0),
                count=whole(about, "count", 1),
                identity=model_of(about, width),
                origin=typed(dict[str, Any], about["origin"], "origin"),
                tuning=_read_tuning(about.get("tuning")),
            )
            if about.get("rank", rank) != rank:
                raise ValueError(f"rank is {about['rank']!r:.40}, and the basis has {rank} columns")
            if rank > min(width, len(values)) or float(values.min()) < 0:
                least = float(values.min())
                raise ValueError(f"{len(values)} singular values from {least:.6g} up do not belong to {rank} columns")
            gram = basis.T @ basis  # [K, K]
            if not torch.allclose(gram, torch.eye(rank, dtype=gram.dtype), atol=1e-6):
                raise ValueError("the basis is not orthonormal")
        except UNREADABLE as error:
            raise CorruptFile(f"{folder}: not a saved subspace ({one_line(error)}); fit it again") from error
        return loaded

    def push(self, repo: str, *, private: bool = False, custom_generate: bool = False) -> str:
        """Upload to a hub repository (created if needed) and return the commit's URL.

        With `custom_generate` it is also code that transformers alone decodes with, on machines without this package.
        """
        with tempfile.TemporaryDirectory() as folder:
            if custom_generate:
                from mgap.priors.custom_generate.repository import write_repository

                write_repository(self, folder, repo)
            else:
                self.save(folder)
            return tensor_files.push("subspace", repo, folder, private=private)


class HashedPrompts:
    """Prompts that can be read once; afterwards it knows the hash of what was read. `progress` gets the number read."""

    def __init__(self, prompts: Iterable[str], progress: Progress | None = None) -> None:
        if isinstance(prompts, str):
            raise PromptError("prompts must be several texts, not one: pass a list, or mgap.read_prompts(file)")
        self.prompts, self.progress, self.digest = prompts, progress, hashlib.sha256()

    def __iter__(self) -> Iterator[str]:
        for done, prompt in enumerate(self.prompts, start=1):
            self.digest.update(prompt.encode() + b"\n")
            yield prompt
            if self.progress is not None:
                self.progress(done)


def origin_of(
    backbone: Backbone,
    read: HashedPrompts,
    *,
    null_image: str,
    size: tuple[int, int] | None,
    svd: str,
    dtype: str,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """`Subspace.origin` of what was fitted just now; `versions` of other packages that took part."""
    return {
        "null_image": null_image,
        "size": list(size) if size else None,
        "template_sha256": backbone.template_hash(),
        "svd": svd,
        "dtype": dtype,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "mgap": mgap.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **(versions or {}),
            "python": platform.python_version(),
        },
        "prompts_sha256": read.digest.hexdigest(),
    }


_TENSORS = ("basis", "singular_values", "mean")


def _read_tuning(tuning: Any) -> dict[str, Any] | None:
    checked: dict[str, Any] | None = typed(dict[str, Any] | None, tuning, "tuning")
    if checked is not None:
        typed(dict[str, Any], checked["settings"], "the tuning's settings")
    return checked
