"""Steering vectors (ASD, section on calibration): for each block, from hallucinated towards factual states.

    v_i = mean(F_i) - mean(N_i)      i = 1..L, F_i and N_i the block outputs at the positions that hold the tokens

Each caption takes one forward, and only two running sums are kept. Means need no balancing of the two sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

import mgap
from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.identity import Identity
from mgap.errors import BackboneMismatch, CorruptFile, NonFiniteStates, PromptError, one_line
from mgap.io import tensor_files
from mgap.io.images import ImageSource
from mgap.io.typed_json import typed
from mgap.priors.saved_checks import UNREADABLE, finite, model_of, name_of, warn_if_nameless


@dataclass(frozen=True)
class Caption:
    """A caption in pieces, each labelled true, hallucinated (False), or None for neither.

    Pieces may be sentences or single words: the method has been reimplemented in both ways.
    """

    image: ImageSource
    prompt: str
    pieces: Sequence[tuple[str, bool | None]]  # (text, is true); together they are the caption


@dataclass(frozen=True)
class Steering:
    """One vector per block, from hallucinated to factual states, and where they came from. Immutable."""

    vectors: Tensor  # [L, d] float64
    counts: tuple[int, int]  # factual and hallucinated tokens
    identity: Identity | None = None  # the model; None if made from bare states
    origin: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        (blocks, width), (factual, hallucinated) = self.vectors.shape, self.counts
        tokens = f"{factual} factual and {hallucinated} hallucinated tokens"
        return f"<Steering of {name_of(self.identity)}: {blocks} blocks of width {width}, {tokens}>"

    @property
    def units(self) -> Tensor:
        """The vectors, scaled to length 1."""
        lengths: Tensor = torch.linalg.vector_norm(self.vectors, dim=-1, keepdim=True)
        return self.vectors / (lengths + 1e-12)

    @classmethod
    def fit(
        cls, model: Backbone | HasBackbone, captions: Iterable[Caption], *, progress: Callable[[int], None] | None = None
    ) -> Steering:
        """Fit on labelled captions, one forward each; `captions` may be a generator."""
        backbone = Backbone.of(model)
        sums = torch.zeros(2, len(backbone.layers), backbone.hidden_size, dtype=torch.float64)
        counts, done = [0, 0], 0
        for done, caption in enumerate(captions, start=1):
            inputs, labels = read_caption(backbone, caption)
            with catch_blocks(backbone) as caught, torch.no_grad():
                backbone.model(**inputs, use_cache=False, logits_to_keep=1)
            states = torch.stack([state[0, -len(labels) :].double().cpu() for state in caught])  # [L, tokens, d]
            for side, wanted in enumerate((True, False)):
                positions = [position for position, label in enumerate(labels) if label is wanted]
                sums[side] += states[:, positions].sum(1)
                counts[side] += len(positions)
            if progress is not None:
                progress(done)
        origin = {"captions": done, "template_sha256": backbone.template_hash(), "mgap": mgap.__version__}
        return cls(_difference(sums, counts), (counts[0], counts[1]), backbone.identity, origin)

    @classmethod
    def from_states(cls, factual: Tensor, hallucinated: Tensor) -> Steering:
        """Fit on given block outputs, two [n, L, d]."""
        sums = torch.stack([factual.double().sum(0), hallucinated.double().sum(0)])
        counts = len(factual), len(hallucinated)
        return cls(_difference(sums, counts), counts)

    def require(self, backbone: Backbone) -> None:
        """Refuse a model that these vectors were not fitted on."""
        if self.identity is not None:
            self.identity.require(backbone.identity, "the steering")
        shape = len(backbone.layers), backbone.hidden_size
        if tuple(self.vectors.shape) != shape:
            raise BackboneMismatch(
                f"the steering is {tuple(self.vectors.shape)} (blocks, width), the model {shape}: fit one for it"
            )

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `steering.json` and its tensors; a reader sees either the old version or the new one."""
        about = {
            "counts": list(self.counts),
            "model": None if self.identity is None else self.identity.to_json(),
            "origin": self.origin,
        }
        tensor_files.save("steering", folder, {"vectors": self.vectors}, about)

    @classmethod
    def load(cls, folder_or_repo: str | PathLike[str], *, revision: str | None = None) -> Steering:
        """Load saved vectors from a folder or a hub repository. Warns if they name no model, such as those of bare states."""
        folder = tensor_files.find("steering", folder_or_repo, revision)
        tensors, about = tensor_files.load("steering", folder)
        try:
            vectors, counts = finite(tensors, "vectors", (None, None)), typed(tuple[int, int], about["counts"], "counts")
            if min(counts) < 1:
                raise ValueError(f"counts are {counts!r:.40}, not of at least 1")
            identity = model_of(about, vectors.shape[1])
            loaded = cls(vectors, counts, identity, typed(dict[str, Any], about["origin"], "origin"))
        except UNREADABLE as error:
            raise CorruptFile(f"{folder}: not saved steering vectors ({one_line(error)}); fit them again") from error
        warn_if_nameless(folder, identity)
        return loaded


def _difference(sums: Tensor, counts: Sequence[int]) -> Tensor:
    """mean(F) - mean(N) from sums [2, L, d]."""
    for kind, count in zip(("true", "invented"), counts, strict=True):
        if count == 0:
            raise PromptError(f"no token is labelled {kind}: steering needs captions with true and with invented pieces")
    if not sums.isfinite().all():
        raise NonFiniteStates("the model gave NaN or infinite states: load it with dtype float32")
    return sums[0] / counts[0] - sums[1] / counts[1]


def read_caption(backbone: Backbone, caption: Caption) -> tuple[dict[str, Tensor], list[bool | None]]:
    """Model inputs of the prompt followed by the caption's tokens as its answer, and a label for each of these tokens."""
    text = "".join(piece for piece, _ in caption.pieces)
    encoding = backbone.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    by_character = [label for piece, label in caption.pieces for _ in piece]
    labels = [by_character[end - 1] if end > start else None for start, end in encoding["offset_mapping"]]
    if not labels:
        raise PromptError("a caption has no text: leave it out")
    inputs = backbone.encode([caption.image], [caption.prompt])
    ids = torch.tensor([encoding["input_ids"]], device=backbone.device)
    appended = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": torch.zeros_like(ids)}
    return {key: torch.cat([value, appended[key]], 1) if key in appended else value for key, value in inputs.items()}, labels


@contextmanager
def catch_blocks(backbone: Backbone, *, last: bool = False) -> Iterator[list[Tensor]]:
    """While active, collect the output of every decoder block, in order: all of it [B, T, d], or its last column [B, d]."""
    caught: list[Tensor] = []

    def catch(_block: nn.Module, _args: Any, output: Any) -> None:
        states = (output[0] if isinstance(output, tuple) else output).detach()
        caught.append(states[:, -1].clone() if last else states)  # a view would keep the whole tensor alive

    handles = [block.register_forward_hook(catch) for block in backbone.layers]
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()
