"""The development set that settings are chosen on, and its states from one pass through the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from mgap.benchmarks.base import Benchmark, distinct_questions, split_by_picture
from mgap.decoding.model import Model
from mgap.diagnosis.departure import rows_sha256
from mgap.io.images import open_in_turn
from mgap.io.progress import Progress
from mgap.priors.bank import Bank
from mgap.types import Sample


@dataclass(frozen=True)
class Development:
    """A development set: the questions about some pictures give the bank of plain states, the others are judged."""

    benchmark: Benchmark
    bank: tuple[Sample, ...]
    judged: tuple[Sample, ...]
    has_labels: bool

    @classmethod
    def of(cls, benchmark: Benchmark, share: float = 0.5, *, has_labels: bool = True) -> Development:
        """`share` of the pictures go to the bank. A question that occurs twice, as in several splits, is one state."""
        bank, judged = split_by_picture(benchmark.samples, share)
        return cls(benchmark, tuple(bank), tuple(judged), has_labels)

    @cached_property
    def bank_rows(self) -> list[Sample]:
        return distinct_questions(self.bank)

    @cached_property
    def rows(self) -> list[Sample]:
        """The judged questions without repetitions, grouped by picture."""
        return distinct_questions(self.judged)

    @cached_property
    def row_of(self) -> list[int]:
        """For each judged sample, the index of its row."""
        indices = {(row.image, row.prompt): index for index, row in enumerate(self.rows)}
        return [indices[sample.image, sample.prompt] for sample in self.judged]

    def to_json(self) -> dict[str, Any]:
        """Counts and hashes: enough to recognise the same data."""
        return {
            "name": self.benchmark.name,
            "sources": dict(self.benchmark.sources),
            "labels": self.has_labels,
            "groups": list(dict.fromkeys(sample.group for sample in self.judged)),
            "judged": {"questions": len(self.judged), "states": len(self.rows), **_pictures(self.judged)},
            "bank": {"questions": len(self.bank), "states": len(self.bank_rows), **_pictures(self.bank)},
        }


def pocket_questions(
    scenes: int = 300, splits: Sequence[str] | None = None, share: float = 0.5, *, has_labels: bool = True
) -> Development:
    """Questions about the pocket world's development scenes, never about its test scenes."""
    from mgap.benchmarks.pope.questions import SPLITS
    from mgap.pocket.benchmark import DEVELOPMENT
    from mgap.pocket.samples import pope_samples

    benchmark = pope_samples(splits or SPLITS, scenes, first=DEVELOPMENT)
    return Development.of(replace(benchmark, name="pocket-pope, development scenes"), share, has_labels=has_labels)


def own_questions(path: str, images: str | None = None, share: float = 0.5, *, has_labels: bool = True) -> Development:
    """Questions from a user's own file; with `has_labels=False` labels are neither needed nor read."""
    from mgap.benchmarks.own import read_own

    return Development.of(read_own(path, images, has_labels=has_labels), share, has_labels=has_labels)


@dataclass(frozen=True)
class States:
    """Plain head inputs of a development set, one per row."""

    bank: Tensor  # [m, d] float32 on the CPU
    judged: Tensor  # [n, d]
    batch_size: int  # used to read them, and to run them through the head again: rounding depends on it


def read_states(model: Model, development: Development, *, batch_size: int = 32, progress: Progress | None = None) -> States:
    """Read the states of the bank and the judged rows: the one pass through the model, as in greedy decoding."""
    bank, judged = development.bank_rows, development.rows

    def report(before: int, done: int) -> None:
        if progress is not None:
            progress("states", before + done, len(bank) + len(judged))

    bank_states = read_rows(model, bank, development.benchmark, batch_size, partial(report, 0))
    judged_states = read_rows(model, judged, development.benchmark, batch_size, partial(report, len(bank)))
    return States(bank_states, judged_states, batch_size)


def read_rows(
    model: Model, rows: Sequence[Sample], benchmark: Benchmark, batch_size: int, progress: Callable[[int], None] | None = None
) -> Tensor:
    """Head inputs [n, d] at the first token; `progress` is called with the number of rows done."""
    images, prompts = open_in_turn((row.image for row in rows), benchmark.picture), [row.prompt for row in rows]
    return Bank.collect(model, images, prompts, batch_size=batch_size, progress=progress).states


def _pictures(samples: Sequence[Sample]) -> dict[str, Any]:
    return {"pictures": len({sample.image for sample in samples}), "rows_sha256": rows_sha256(samples)}
