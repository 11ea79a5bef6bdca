"""The bank (paper, section 3.2): head-input states of normal decoding, the reference for distances.

A state is taken where a token of an answer is chosen: the first one, or each. The model decodes greedily, without a method.
States keep the model's dtype. A bank in a folder may be larger than memory: iterate over `parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mgap
from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.identity import Identity
from mgap.errors import BackboneMismatch, PromptError, SettingError
from mgap.io.images import ImageSource, Opener, open_in_turn
from mgap.io.tensor_files import settled
from mgap.priors.bank_files import INDEX, BankWriter, Chunk, check_chunk, map_parts, read_index, writing
from mgap.priors.plain_answers import Questions, plain_states
from mgap.priors.saved_checks import name_of, warn_if_nameless


@dataclass(frozen=True, eq=False)
class Bank:
    """States of one model and where they came from. Immutable."""

    parts: tuple[Tensor, ...]  # each [n_i, d] on the CPU; memory-mapped if they come from a folder
    rows: Tensor  # [n] int32: the sample of each state, from 0
    steps: Tensor  # [n] int32: the position in its answer, 0 for the first token
    tokens: Tensor  # [n] int32: the token chosen there; -1 if unknown
    identity: Identity | None = None  # the model; None if made from bare states
    origin: dict[str, Any] = field(default_factory=dict)  # template, hash of the questions, dtype, version

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<Bank of {name_of(self.identity)}: {len(self)} states of width {self.width}>"

    @property
    def width(self) -> int:
        return self.parts[0].shape[1]

    @property
    def states(self) -> Tensor:
        """All states [n, d] in float32, in memory."""
        return torch.cat([part.float() for part in self.parts])

    def chunks(self) -> Iterator[Chunk]:
        """The parts, each with the rows, steps and tokens of its states."""
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
        """From given states [n, d]; by default each is the first step of a row of its own."""
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
        """From an iterable of chunks, in memory or streamed to a folder. Rows must ascend, each row within one chunk.

        In a folder, rows that an interrupted call has written are skipped, and parts have 64 MiB, or `per_part` states.
        Refuses a folder with another identity or origin, and one that another process collects into.
        """
        with _writer(folder, identity, origin or {}, per_part) as writer:
            return cls._fill(writer, chunks)

    @classmethod
    def _fill(cls, writer: BankWriter, chunks: Iterable[Chunk]) -> Bank:
        done = stored = writer.rows
        try:
            for chunk in chunks:
                new = chunk.select(chunk.rows >= stored) if stored else chunk
                if not len(new.rows):
                    continue
                if (first := int(new.rows.min())) < done:
                    raise SettingError(
                        f"row {first} comes when row {done - 1} was there: give rows in order, each in one chunk"
                    )
                writer.add(new)
                done = int(new.rows.max()) + 1
        finally:
            writer.flush()  # so that an interrupted collection need not repeat these rows
        return cls._of_parts(writer.finish(), writer.identity, writer.origin)

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
        """Ask each prompt about its picture and keep the state of every token of the plain greedy answer; by default the first.

        Pictures and prompts may be generators: they are read once. With a folder, states go to disk part by part, and the same
        call resumes after an interruption: rows with stored states are compared by checksum and not asked again; rows beyond
        those of a complete bank are added to it. `origin` is saved with the bank and must be the same too. `progress` is called
        with the number of rows done so far.
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

        def answer() -> Iterator[Chunk]:
            for chunk in plain_states(backbone, questions, batch_size=batch_size, max_new_tokens=max_new_tokens):
                yield chunk
                if progress is not None:
                    progress(questions.count)

        with _writer(folder, backbone.identity, {**(origin or {}), **facts}, per_part) as writer:
            _skip_stored(questions, writer, folder)
            return cls._fill(writer, answer())

    @classmethod
    def collect_by_picture(
        cls,
        model: Backbone | HasBackbone,
        questions: Sequence[tuple[Hashable, str]],
        picture: Opener,
        *,
        batch_size: int = 8,
        max_new_tokens: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> Bank:
        """As `collect`, from names of pictures and prompts; `rows` count pictures: other answers about one are too near."""
        names, prompts = [name for name, _ in questions], [prompt for _, prompt in questions]
        how: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, "progress": progress}
        bank = cls.collect(model, open_in_turn(names, picture), prompts, **how)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        pictures = torch.tensor([numbers[name] for name in names], dtype=torch.int32)
        return replace(bank, rows=pictures[bank.rows.long()])

    def only(self, chosen: Tensor) -> Bank:
        """The states that a mask [n] selects, in their order: a bank in memory."""
        masks = chosen.split([len(part) for part in self.parts])
        states = torch.cat([part[mask] for part, mask in zip(self.parts, masks, strict=True)])
        return replace(self, parts=(states,), rows=self.rows[chosen], steps=self.steps[chosen], tokens=self.tokens[chosen])

    def sample(self, count: int, seed: int = 0) -> Bank:
        """`count` states, drawn without replacement, in their order: a bank in memory."""
        if not 1 <= count <= len(self):
            raise SettingError(f"count={count} must be from 1 to {len(self)}, the states in the bank")
        drawn = torch.zeros(len(self), dtype=torch.bool)
        drawn[torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:count]] = True
        return replace(self.only(drawn), origin={**self.origin, "sample": {"count": count, "of": len(self), "seed": seed}})

    def require(self, backbone: Backbone) -> None:
        """Refuse a model that these states do not come from."""
        if self.identity is not None:
            self.identity.require(backbone.identity, "the bank")
        elif backbone.hidden_size != self.width:
            raise BackboneMismatch(f"the bank has width {self.width}, the model {backbone.hidden_size}: collect one for it")

    def save(self, folder: str | PathLike[str], *, per_part: int | None = None) -> None:
        """Write `bank.json` and its parts; a reader sees either the old bank or the new one."""
        with writing(Path(folder), self.identity, self.origin, per_part, resume=False) as writer:
            for chunk in self.chunks():
                writer.add(chunk)
            writer.finish()

    @classmethod
    def load(cls, folder: str | PathLike[str], *, check: bool | None = None) -> Bank:
        """Open a saved bank. Warns of one that names no model.

        Sizes and shapes are always checked; checksums, and that all states are finite, with `check`, by default up to 256 MiB.
        """

        def read() -> Bank:
            index = read_index(Path(folder) / INDEX)
            identity = None if index["model"] is None else Identity.from_json(index["model"])
            return cls._of_parts(map_parts(Path(folder), index, check=check), identity, dict(index["origin"]))

        bank = settled(read)
        warn_if_nameless(folder, bank.identity)
        return bank


def _writer(
    folder: str | PathLike[str] | None, identity: Identity | None, origin: Mapping[str, Any], per_part: int | None
) -> AbstractContextManager[BankWriter]:
    if folder is None:
        return nullcontext(BankWriter(identity, origin, per_part))
    return writing(Path(folder), identity, origin, per_part, resume=True)


def _skip_stored(questions: Questions, writer: BankWriter, folder: str | PathLike[str] | None) -> None:
    """Skip the questions whose states are stored already; refuses different ones."""
    while questions.count < writer.rows and questions.take(1):
        pass
    if questions.count < writer.rows:
        raise PromptError(
            f"{folder}: holds states of {writer.rows} rows, more than the {questions.count} given; name another folder"
        )
    if writer.rows and questions.sha256 != writer.questions_sha256:
        raise PromptError(
            f"{folder}: its first {writer.rows} rows are of other pictures or prompts than those given now; "
            "name another folder, or remove it"
        )
