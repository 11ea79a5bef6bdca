"""The questions that settings are chosen on, and their states for one pass through the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

from torch import Tensor

from mgap.benchmarks.base import Benchmark, asked_once, set_aside
from mgap.decoding.model import Model
from mgap.io.progress import Progress
from mgap.priors.bank import Bank
from mgap.types import Sample


@dataclass(frozen=True)
class Development:
    """What settings are chosen on: some pictures' questions give the bank of plain states, those about others are judged."""

    benchmark: Benchmark
    bank: tuple[Sample, ...]
    judged: tuple[Sample, ...]
    has_labels: bool

    @classmethod
    def of(cls, benchmark: Benchmark, share: float = 0.5, *, has_labels: bool = True) -> Development:
        """`share` of the pictures go to the bank. What is asked twice of a picture, as in several splits, is one state."""
        bank, judged = set_aside(benchmark.samples, share)
        return cls(benchmark, tuple(bank), tuple(judged), has_labels)

    @cached_property
    def bank_rows(self) -> list[Sample]:
        return asked_once(self.bank)

    @cached_property
    def rows(self) -> list[Sample]:
        """Of what is judged, every question about every picture once; pictures stand together."""
        return asked_once(self.judged)

    @cached_property
    def row_of(self) -> list[int]:
        """For each judged sample, the place of its row."""
        places = {(row.image, row.prompt): place for place, row in enumerate(self.rows)}
        return [places[sample.image, sample.prompt] for sample in self.judged]

    def to_json(self) -> dict[str, Any]:
        """Counts and hashes: enough to see whether other data are the same."""
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
    """Of the pocket world's development scenes; never of those that methods are judged on."""
    from mgap.benchmarks.pope.questions import SPLITS
    from mgap.pocket.benchmark import DEVELOPMENT
    from mgap.pocket.samples import pope_samples

    found = pope_samples(splits or SPLITS, scenes, first=DEVELOPMENT)
    return Development.of(replace(found, name="pocket-pope, development scenes"), share, has_labels=has_labels)


def own_questions(path: str, images: str | None = None, share: float = 0.5, *, has_labels: bool = True) -> Development:
    """A user's own file; with `has_labels=False` its labels are not read, and need not be there."""
    from mgap.benchmarks.own import read_own

    return Development.of(read_own(path, images, has_labels=has_labels), share, has_labels=has_labels)


@dataclass(frozen=True)
class States:
    """Plain head inputs of a development set, row for row."""

    bank: Tensor  # [m, d] float32 on the CPU
    judged: Tensor  # [n, d]
    batch_size: int  # how they were read, and are put through the head again: rounding depends on it


def read_states(model: Model, development: Development, *, batch_size: int = 32, progress: Progress | None = None) -> States:
    """The one pass through the model, as greedy decoding makes it."""
    bank, judged = development.bank_rows, development.rows

    def tell(before: int, done: int) -> None:
        if progress is not None:
            progress("states", before + done, len(bank) + len(judged))

    known = read_rows(model, bank, development.benchmark, batch_size, partial(tell, 0))
    asked = read_rows(model, judged, development.benchmark, batch_size, partial(tell, len(bank)))
    return States(known, asked, batch_size)


def read_rows(
    model: Model, rows: Sequence[Sample], benchmark: Benchmark, batch_size: int, tell: Callable[[int], None] | None = None
) -> Tensor:
    """Head inputs [n, d] at the first token; `tell` hears how many are done."""
    opened = lru_cache(maxsize=1)(benchmark.picture)  # a picture's rows stand together
    images, prompts = (opened(row.image) for row in rows), [row.prompt for row in rows]
    return Bank.collect(model, images, prompts, batch_size=batch_size, progress=tell).states


def _pictures(samples: Sequence[Sample]) -> dict[str, Any]:
    asked = "".join(json.dumps([s.id, s.image, s.prompt]) + "\n" for s in samples)
    return {
        "pictures": len({sample.image for sample in samples}),
        "rows_sha256": hashlib.sha256(asked.encode()).hexdigest(),
    }
