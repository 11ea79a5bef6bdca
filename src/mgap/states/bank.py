"""The bank (paper, section 3.2): head-input states of normal decoding, which everything else is measured against.

A state is taken where the first word of an answer is chosen. Nothing acts on the model meanwhile: no method, no sampling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mgap
from mgap.backbones.base import Backbone, HasBackbone, Identity
from mgap.backbones.sharing import shared_pictures
from mgap.data.images import ImageSource
from mgap.errors import BackboneMismatch, CorruptFile, NonFiniteStates, PromptError, SettingError
from mgap.states import storage
from mgap.states.collect import last_states

Row = tuple[ImageSource | None, str]


@dataclass(frozen=True)
class Bank:
    """States of one model and where they came from. A value: nothing changes it."""

    states: Tensor  # [n, d] float32 on the CPU
    identity: Identity | None = None  # the model; None when it was made from bare states
    origin: dict[str, Any] = field(default_factory=dict)  # template, prompts' hash, dtype, version

    def __post_init__(self) -> None:
        if self.states.ndim != 2 or 0 in self.states.shape:
            raise SettingError(f"a bank is a matrix of states [n, d], not {list(self.states.shape)}: give some rows")
        if not self.states.isfinite().all():
            raise NonFiniteStates("the model gave NaN or infinite states: load it with dtype float32")

    def __len__(self) -> int:
        return len(self.states)

    @classmethod
    def collect(
        cls,
        model: Backbone | HasBackbone,
        images: Iterable[ImageSource | None],
        prompts: Iterable[str],
        *,
        batch_size: int = 8,
        progress: Callable[[int], None] | None = None,
    ) -> Bank:
        """Ask each prompt about its picture and keep the state of the first answer token; no token is made.

        Both may be generators: they are read once. A picture that rows of a batch share is encoded once. `progress` is called
        with the number of rows done so far.
        """
        if batch_size < 1:
            raise SettingError(f"batch_size={batch_size} must be at least 1")
        backbone, digest, chunks, done = Backbone.of(model), hashlib.sha256(), list[Tensor](), 0
        rows = _rows(images, prompts)
        while batch := list(islice(rows, batch_size)):
            digest.update("".join(f"{prompt}\n" for _, prompt in batch).encode())
            with shared_pictures(backbone):
                chunks.append(last_states(backbone, backbone.encode(*map(list, zip(*batch, strict=True)))))
            done += len(batch)
            if progress is not None:
                progress(done)
        if not chunks:
            raise PromptError("a bank needs rows: give pictures and a prompt for each")
        origin = {
            "template_sha256": backbone.template_hash(),
            "prompts_sha256": digest.hexdigest(),
            "dtype": str(next(backbone.model.parameters()).dtype).removeprefix("torch."),
            "mgap": mgap.__version__,
        }
        return cls(torch.cat(chunks), backbone.identity, origin)

    def require(self, backbone: Backbone) -> None:
        """Refuse a model that these states are not of."""
        if self.identity is not None:
            self.identity.require(backbone.identity, "the bank")
        elif backbone.identity.hidden_size != self.states.shape[1]:
            width = backbone.identity.hidden_size
            raise BackboneMismatch(f"the bank has width {self.states.shape[1]}, the model {width}: collect one for it")

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `bank.json` and its tensors; a reader sees the old one or the new one, never half."""
        about = {
            "count": len(self),
            "model": None if self.identity is None else self.identity.to_json(),
            "origin": self.origin,
        }
        storage.save("bank", folder, {"states": self.states}, about)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Bank:
        """Read a saved bank."""
        tensors, about = storage.load("bank", Path(folder))
        try:
            identity = None if about["model"] is None else Identity.from_json(about["model"])
            return cls(tensors["states"].float(), identity, dict(about["origin"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"{folder}: not a saved bank ({error!r}); collect it again") from error


def _rows(images: Iterable[ImageSource | None], prompts: Iterable[str]) -> Iterator[Row]:
    missing = object()
    for image, prompt in zip_longest(images, prompts, fillvalue=missing):
        if image is missing or prompt is missing:
            raise PromptError(f"more {'prompts than images' if image is missing else 'images than prompts'}: give one a prompt")
        yield image, prompt  # type: ignore[misc]  # neither is missing
