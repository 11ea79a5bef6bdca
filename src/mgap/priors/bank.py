"""The bank (paper, section 3.2): head-input states of normal decoding, which everything else is measured against.

A state is taken where a word of an answer is chosen: the first one, or each. Nothing acts on the model meanwhile: no method, no
sampling. States keep the dtype that the model gave them in. A bank in a folder may be larger than memory: go through `parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mgap
from mgap.backbones.base import Backbone, HasBackbone, Identity
from mgap.errors import BackboneMismatch, PromptError, SettingError
from mgap.io.images import ImageSource
from mgap.priors.bank_files import INDEX, BankWriter, Chunk, Folder, check_chunk, map_parts, read_index
from mgap.priors.plain_answers import Questions, plain_states


@dataclass(frozen=True, eq=False)
class Bank:
    """States of one model and where they came from. A value: nothing changes it."""

    parts: tuple[Tensor, ...]  # each [n_i, d] on the CPU; from a folder: mapped, read when looked at
    rows: Tensor  # [n] int32: which sample a state is of, counted from 0
    steps: Tensor  # [n] int32: where in its answer, 0 for the first token
    tokens: Tensor  # [n] int32: which token was chosen there; -1 where nobody knows
    identity: Identity | None = None  # the model; None when it was made from bare states
    origin: dict[str, Any] = field(default_factory=dict)  # template, hash of what was asked, dtype, version

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        return self.parts[0].shape[1]

    @property
    def states(self) -> Tensor:
        """All of them [n, d], in float32 and in memory: for banks that fit there."""
        return torch.cat([part.float() for part in self.parts])

    def chunks(self) -> Iterator[Chunk]:
        """Part by part, with what is known of its states."""
        sizes = [len(part) for part in self.parts]
        columns = (self.rows.split(sizes), self.steps.split(sizes), self.tokens.split(sizes))
        for states, rows, steps, tokens in zip(self.parts, *columns, strict=True):
            yield Chunk(states, rows, steps, tokens)

    @classmethod
    def of(
        cls,
        states: Tensor,
        *,
        rows: Tensor | None = None,
        steps: Tensor | None = None,
        tokens: Tensor | None = None,
        identity: Identity | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> Bank:
        """From states in hand [n, d]: each of a row of its own, at the first step, unless it is said otherwise."""
        count = len(states) if states.ndim else 0
        chunk = Chunk(
            states=states.detach().cpu(),
            rows=torch.arange(count, dtype=torch.int32) if rows is None else rows.int().cpu(),
            steps=torch.zeros(count, dtype=torch.int32) if steps is None else steps.int().cpu(),
            tokens=torch.full((count,), -1, dtype=torch.int32) if tokens is None else tokens.int().cpu(),
        )
        check_chunk(chunk)
        return cls._of_parts([chunk], identity, dict(origin or {}))

    @classmethod
    def _of_parts(cls, parts: Sequence[Chunk], identity: Identity | None, origin: dict[str, Any]) -> Bank:
        states, rows, steps, tokens, _ = zip(*parts, strict=True)
        return cls(states, torch.cat(rows), torch.cat(steps), torch.cat(tokens), identity, origin)

    @classmethod
    def gather(
        cls,
        chunks: Iterable[Chunk],
        *,
        identity: Identity | None = None,
        origin: Mapping[str, Any] | None = None,
        folder: str | PathLike[str] | None = None,
        per_part: int | None = None,
    ) -> Bank:
        """From chunks as they come, rows in ascending order, each row whole in one chunk; in memory, or streamed to a folder.

        In a folder, rows that an interrupted call has written there are passed over, and parts are of 64 MiB, or of `per_part`
        states. Refuses a folder of another identity or origin.
        """
        return cls._fill(_shelf(folder, identity, origin or {}, per_part), chunks)

    @classmethod
    def _fill(cls, shelf: BankWriter, chunks: Iterable[Chunk]) -> Bank:
        done = there = shelf.rows
        try:
            for chunk in chunks:
                fresh = chunk.cut(chunk.rows >= there) if there else chunk
                if not len(fresh.rows):
                    continue
                if (first := int(fresh.rows.min())) < done:
                    raise SettingError(
                        f"row {first} comes when row {done - 1} was there: give rows in order, each in one chunk"
                    )
                shelf.add(fresh)
                done = int(fresh.rows.max()) + 1
        finally:
            shelf.flush()  # what was collected before an interruption is not asked again
        return cls._of_parts(shelf.finish(), shelf.identity, shelf.origin)

    @classmethod
    def collect(
        cls,
        model: Backbone | HasBackbone,
        images: Iterable[ImageSource | None],
        prompts: Iterable[str],
        *,
        batch_size: int = 8,
        max_new_tokens: int = 1,
        folder: str | PathLike[str] | None = None,
        per_part: int | None = None,
        origin: Mapping[str, Any] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Bank:
        """Ask each prompt about its picture and keep the state of every token of the plain greedy answer; here, of the first.

        Pictures and prompts may be generators: they are read once. With a folder, states go to disk part by part, and a call
        that was interrupted goes on when it is made again: rows whose states are there are read to see that they are the same,
        and not asked again; rows that come after those of a whole bank are added to it. `origin` is kept with the bank and must
        be the same too. `progress` is called with the number of rows done so far.
        """
        for name, value in (("batch_size", batch_size), ("max_new_tokens", max_new_tokens)):
            if value < 1:
                raise SettingError(f"{name}={value} must be at least 1")
        backbone, questions = Backbone.of(model), Questions(images, prompts)
        facts = {
            "template_sha256": backbone.template_hash(),
            "dtype": backbone.dtype_name,
            "max_new_tokens": max_new_tokens,
            "mgap": mgap.__version__,
        }
        shelf = _shelf(folder, backbone.identity, {**(origin or {}), **facts}, per_part)
        _pass_over(questions, shelf, folder)

        def answered() -> Iterator[Chunk]:
            for chunk in plain_states(backbone, questions, batch_size=batch_size, max_new_tokens=max_new_tokens):
                yield chunk
                if progress is not None:
                    progress(questions.count)

        return cls._fill(shelf, answered())

    def only(self, chosen: Tensor) -> Bank:
        """The states that a mask [n] names, in their order: a bank in memory."""
        inside = chosen.split([len(part) for part in self.parts])
        states = torch.cat([part[places] for part, places in zip(self.parts, inside, strict=True)])
        return replace(self, parts=(states,), rows=self.rows[chosen], steps=self.steps[chosen], tokens=self.tokens[chosen])

    def sample(self, count: int, seed: int = 0) -> Bank:
        """So many of the states, drawn without replacement and in their order: a bank in memory, for what needs no more."""
        if not 1 <= count <= len(self):
            raise SettingError(f"count={count} must be from 1 to {len(self)}, the states in the bank")
        drawn = torch.zeros(len(self), dtype=torch.bool)
        drawn[torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:count]] = True
        return replace(self.only(drawn), origin={**self.origin, "sample": {"count": count, "of": len(self), "seed": seed}})

    def require(self, backbone: Backbone) -> None:
        """Refuse a model that these states are not of."""
        if self.identity is not None:
            self.identity.require(backbone.identity, "the bank")
        elif backbone.identity.hidden_size != self.width:
            width = backbone.identity.hidden_size
            raise BackboneMismatch(f"the bank has width {self.width}, the model {width}: collect one for it")

    def save(self, folder: str | PathLike[str], *, per_part: int | None = None) -> None:
        """Write `bank.json` and its parts; a reader sees the old one or the new one, never half."""
        shelf = Folder(Path(folder), self.identity, self.origin, per_part, goes_on=False)
        for chunk in self.chunks():
            shelf.add(chunk)
        shelf.finish()

    @classmethod
    def load(cls, folder: str | PathLike[str], *, check: bool | None = None) -> Bank:
        """Open a saved bank. Sizes and shapes are always checked; checksums with `check`, or by default up to 256 MiB."""
        index = read_index(Path(folder) / INDEX)
        identity = None if index["model"] is None else Identity.from_json(index["model"])
        return cls._of_parts(map_parts(Path(folder), index, check=check), identity, dict(index["origin"]))


def _shelf(
    folder: str | PathLike[str] | None, identity: Identity | None, origin: Mapping[str, Any], per_part: int | None
) -> BankWriter:
    if folder is None:
        return BankWriter(identity, origin, per_part)
    return Folder(Path(folder), identity, origin, per_part, goes_on=True)


def _pass_over(questions: Questions, shelf: BankWriter, folder: str | PathLike[str] | None) -> None:
    """Read the questions whose states are there already; refuses others."""
    while questions.count < shelf.rows and questions.take(1):
        pass
    if questions.count < shelf.rows:
        raise PromptError(
            f"{folder}: holds states of {shelf.rows} rows, more than the {questions.count} given; name another folder"
        )
    if shelf.rows and questions.sha256 != shelf.asked:
        raise PromptError(
            f"{folder}: its first {shelf.rows} rows are of other pictures or prompts than those given now; "
            "name another folder, or remove it"
        )
