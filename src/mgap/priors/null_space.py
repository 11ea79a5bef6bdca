"""Null spaces (Nullu, the paper's HalluSpace): in each block, how the states of false captions differ from those of true ones.

    E_i = (mean x_i(true) - mean x_i(false)) / 2      x_i: output of block i at the caption's positions;  a row a pair, [N, d]
    E_i = U S V',   V_K: the first K right singular vectors, not centred

Each pair takes two forwards, and 2 d floats a block are kept of it. Nullu keeps MLPs from writing into these directions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor

import mgap
from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.identity import Identity
from mgap.errors import BackboneMismatch, CorruptFile, DegenerateSubspace, NonFiniteStates, PromptError, SettingError, one_line
from mgap.io import tensor_files
from mgap.io.images import ImageSource
from mgap.io.typed_json import typed
from mgap.priors.saved_checks import UNREADABLE, finite, model_of, name_of, warn_if_nameless, whole
from mgap.priors.spectrum import GramSpectrum
from mgap.priors.steering import Caption, catch_blocks, read_caption
from mgap.settings import check_choice, check_count, check_share

RANK = 4
PROMPT = "Please describe this image in detail."  # the authors'
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"positions": "answer", "final_norm": False},
    "reference-code": {"positions": "all", "final_norm": True},  # the last block's states as the head reads them
}
_ROUNDING = 1e-6  # singular values below _ROUNDING * S_1 are rounding, not directions


@dataclass(frozen=True)
class CaptionPair:
    """A true and a false caption of one picture, best alike in all but one thing."""

    image: ImageSource
    prompt: str
    true: str
    false: str


@dataclass(frozen=True)
class NullSpace:
    """Some directions for each of a range of blocks, and where they came from. Immutable."""

    bases: Tensor  # [blocks, K, d] float64, orthonormal rows
    singular_values: Tensor  # [blocks, m >= K], descending
    start: int  # the first of these blocks, from 0
    depth: int  # blocks of the model
    count: int  # N, pairs it was fitted on
    dropped: int = 0  # pairs that were left out: their captions are equal
    identity: Identity | None = None  # the model; None if made from bare states
    origin: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        blocks = f"blocks {self.blocks[0]} to {self.blocks[-1]} of {self.depth}"
        of = name_of(self.identity)
        return f"<NullSpace of {of}: rank {self.rank} of {self.bases.shape[-1]} in {blocks}, {self.count} pairs of captions>"

    @property
    def rank(self) -> int:
        return self.bases.shape[1]

    @property
    def blocks(self) -> range:
        """The blocks that it has directions of, from 0."""
        return range(self.start, self.start + len(self.bases))

    @property
    def projectors(self) -> Tensor:
        """V V' [blocks, d, d]. Compare null spaces by it, because signs are arbitrary."""
        return self.bases.mT @ self.bases

    @property
    def edges(self) -> list[tuple[float, float]]:
        """S_K and S_K+1 of every block: where they are close, other pairs would give other directions."""
        padded = torch.nn.functional.pad(self.singular_values, (0, 1))  # [blocks, m + 1]
        return [(float(row[self.rank - 1]), float(row[self.rank])) for row in padded]

    @classmethod
    def fit(
        cls,
        model: Backbone | HasBackbone,
        pairs: Iterable[CaptionPair],
        rank: int = RANK,
        *,
        start: int | None = None,
        end: int | None = None,
        preset: str = "paper",
        centring: float = 0.0,
        progress: Callable[[int], None] | None = None,
    ) -> NullSpace:
        """Fit on pairs of captions, two forwards each; `pairs` may be a generator.

        `start` and `end` bound the blocks, from 0; by default the upper half. `preset` says which positions are averaged:
        "paper" those of the caption, "reference-code" all, as the authors' code does. `centring` takes that share of the first
        singular direction of the true captions' states out of the differences.
        """
        how = PRESETS[check_choice("preset", preset, PRESETS)]
        check_count("rank", rank, 1)
        check_share("centring", centring)
        backbone = Backbone.of(model)
        depth = len(backbone.layers)
        blocks = upper_blocks(depth, start, end)
        digest, dropped, states = hashlib.sha256(), 0, list[Tensor]()
        for done, pair in enumerate(pairs, start=1):
            digest.update(repr((pair.prompt, pair.true, pair.false)).encode())
            if pair.true == pair.false:
                dropped += 1
            else:
                both = [_mean_states(backbone, pair, text, blocks, **how) for text in (pair.true, pair.false)]
                states.append(torch.stack(both))  # [2, blocks, d]
            if progress is not None:
                progress(done)
        _check_count(len(states), rank)
        device = backbone.device if backbone.device.type == "cuda" else torch.device("cpu")  # others may have no float64

        def of_block(i: int, side: int) -> Tensor:  # [N, d]
            return torch.stack([both[side, i] for both in states]).to(device)

        found = [directions(of_block(i, 0), of_block(i, 1), rank, centring) for i in range(len(blocks))]
        origin = {
            "preset": preset,
            "centring": float(centring),
            "pairs_sha256": digest.hexdigest(),
            "template_sha256": backbone.template_hash(),
            "dtype": backbone.dtype_name,
            "mgap": mgap.__version__,
        }
        made = cls._of(found, blocks, depth, len(states), dropped)
        return replace(made, identity=backbone.identity, origin=origin)

    @classmethod
    def from_states(
        cls,
        truthful: Tensor,
        hallucinated: Tensor,
        rank: int = RANK,
        *,
        start: int | None = None,
        end: int | None = None,
        centring: float = 0.0,
    ) -> NullSpace:
        """Fit on given states, one a caption and block: two [N, L, d], row by row of one pair."""
        if truthful.shape != hallucinated.shape or truthful.ndim != 3:
            raise SettingError(
                f"states of {list(truthful.shape)} and {list(hallucinated.shape)}: give two [pairs, blocks, width]"
            )
        check_count("rank", rank, 1)
        check_share("centring", centring)
        blocks = upper_blocks(truthful.shape[1], start, end)
        differ = (truthful != hallucinated).flatten(1).any(1)  # [N]
        true, false = truthful[differ], hallucinated[differ]
        _check_count(len(true), rank)
        found = [directions(true[:, i], false[:, i], rank, centring) for i in blocks]
        return cls._of(found, blocks, truthful.shape[1], len(true), len(truthful) - len(true))

    @classmethod
    def _of(cls, found: Sequence[tuple[Tensor, Tensor]], blocks: range, depth: int, count: int, dropped: int) -> NullSpace:
        bases, values = (torch.stack([pair[n].cpu() for pair in found]) for n in (0, 1))
        return cls(bases, values, blocks.start, depth, count, dropped)

    def truncate(self, rank: int) -> NullSpace:
        """The first `rank` directions of every block."""
        if not 1 <= rank <= self.rank:
            raise SettingError(f"rank={rank} is not between 1 and {self.rank}, the rank of this null space: fit a larger one")
        return replace(self, bases=self.bases[:, :rank].contiguous())

    def require(self, backbone: Backbone) -> None:
        """Refuse a model that this null space was not fitted on."""
        if self.identity is not None:
            self.identity.require(backbone.identity, "the null space")
        mine, theirs = (self.depth, self.bases.shape[2]), (len(backbone.layers), backbone.hidden_size)
        if mine != theirs:
            raise BackboneMismatch(f"the null space is of {mine} (blocks, width), the model has {theirs}: fit one for it")

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `null_space.json` and its tensors; a reader sees either the old version or the new one."""
        about = {
            "start": self.start,
            "depth": self.depth,
            "count": self.count,
            "dropped": self.dropped,
            "model": None if self.identity is None else self.identity.to_json(),
            "origin": self.origin,
        }
        tensor_files.save("null_space", folder, {"bases": self.bases, "singular_values": self.singular_values}, about)

    @classmethod
    def load(cls, folder_or_repo: str | PathLike[str], *, revision: str | None = None) -> NullSpace:
        """Load a saved null space from a folder or a hub repository. Warns of one that names no model."""
        folder = tensor_files.find("null_space", folder_or_repo, revision)
        tensors, about = tensor_files.load("null_space", folder)
        try:
            bases = finite(tensors, "bases", (None, None, None))
            blocks, rank, width = bases.shape
            values = finite(tensors, "singular_values", (blocks, None))
            start, depth = whole(about, "start", 0), whole(about, "depth", 1)
            if start + blocks > depth:
                raise ValueError(f"{blocks} blocks from {start} on are not among {depth}")
            if rank > min(width, values.shape[1]) or float(values.min()) < 0:
                least = float(values.min())
                raise ValueError(f"{values.shape[1]} singular values from {least:.6g} up do not belong to {rank} directions")
            if not torch.allclose(bases @ bases.mT, torch.eye(rank, dtype=bases.dtype), atol=1e-6):
                raise ValueError("the bases are not orthonormal")
            counts = whole(about, "count", 1), whole(about, "dropped", 0)
            identity = model_of(about, width)
            loaded = cls(bases, values, start, depth, *counts, identity, typed(dict[str, Any], about["origin"], "origin"))
        except UNREADABLE as error:
            raise CorruptFile(f"{folder}: not a saved null space ({one_line(error)}); fit it again") from error
        warn_if_nameless(folder, identity)
        return loaded


def upper_blocks(depth: int, start: int | None = None, end: int | None = None) -> range:
    """Blocks [start, end), from 0; by default the upper half, as the authors' 16 to 31 of 32."""
    start = 16 * depth // 32 if start is None else check_count("start", start, 0)
    end = depth if end is None else check_count("end", end, 1)
    if not start < end <= depth:
        raise SettingError(f"start={start}, end={end} must bound some of {depth} blocks, from 0")
    return range(start, end)


def difference(true: Tensor, false: Tensor) -> Tensor:
    """E in float64; the half of the authors' code changes the singular values, not the directions."""
    return (true.double() - false.double()) / 2


def directions(true: Tensor, false: Tensor, rank: int, centring: float = 0.0) -> tuple[Tensor, Tensor]:
    """The first right singular vectors [rank, d] of the differences of states [N, d], and all singular values."""
    rows = difference(true, false)
    if not rows.isfinite().all():
        raise NonFiniteStates("the model gave NaN or infinite states: load it with dtype float32")
    if centring:
        _, first = GramSpectrum.of(true.double()).top(1)  # [d, 1]
        rows = rows - centring * (rows @ first) @ first.T
    values, vectors = GramSpectrum.of(rows).top(min(rank + 1, *rows.shape))
    there = int((values > _ROUNDING * values[0]).sum())
    if there < rank:
        raise DegenerateSubspace(
            f"true and false captions differ in {there} directions, and rank {rank} was asked for: "
            "give pairs that differ in more ways, or lower the rank"
        )
    return vectors[:, :rank].T.contiguous(), values


def _check_count(pairs: int, rank: int) -> None:
    if pairs <= rank:
        raise PromptError(f"{pairs} pairs of captions that differ: rank {rank} needs at least {rank + 1}; give more pairs")


def _mean_states(
    backbone: Backbone, pair: CaptionPair, text: str, blocks: range, *, positions: str, final_norm: bool
) -> Tensor:
    """Mean output [blocks, d] of each block, with a caption read as the answer to its prompt."""
    inputs, labels = read_caption(backbone, Caption(pair.image, pair.prompt, [(text, None)]))
    with catch_blocks(backbone) as caught, torch.no_grad():
        backbone.model(**inputs, use_cache=False, logits_to_keep=1)
        if final_norm:
            caught[-1] = backbone.final_norm(caught[-1])
    first = -len(labels) if positions == "answer" else 0
    return torch.stack([caught[i][0, first:].cpu().double().mean(0) for i in blocks]).float()
