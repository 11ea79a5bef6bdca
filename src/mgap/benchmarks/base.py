"""A loaded benchmark (its samples, its pictures, the words that its scorer needs), and the protocols of benchmarks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from PIL import Image

from mgap.errors import BenchmarkError, SettingError
from mgap.io.images import ImageSource, open_image
from mgap.settings import check_share
from mgap.types import Sample

YES_NO = "yesno"  # the task of questions whose truth is yes or no


@dataclass(frozen=True)
class Benchmark:
    """The samples of one task. All but `picture` is plain JSON: a run saves it and can be scored without the benchmark."""

    name: str  # such as "pope coco"
    task: str  # which scorer reads the answers: yesno, captions, amber or mme
    samples: tuple[Sample, ...]
    picture: Callable[[str], ImageSource]  # from a sample's image name to the picture or its path
    lexicon: Mapping[str, Any] = field(default_factory=dict)  # words that the scorer needs besides the samples' truths
    sources: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the files read, by path
    notes: tuple[str, ...] = ()  # what was corrected while reading, one sentence each

    def __post_init__(self) -> None:
        if not self.samples:
            raise BenchmarkError(f"{self.name}: nothing to ask")
        twice = [name for name, count in Counter(sample.id for sample in self.samples).items() if count > 1]
        if twice:
            raise BenchmarkError(
                f"{self.name}: {len(twice)} ids stand for several samples, {twice[0]!r} first; make them unique"
            )


class RunKeys(Protocol):
    """The keys of `mgap.run.config.Config` that a benchmark may read."""

    @property
    def images(self) -> str | None: ...
    @property
    def data(self) -> str | None: ...
    @property
    def questions(self) -> str | None: ...
    @property
    def splits(self) -> tuple[str, ...]: ...
    @property
    def kinds(self) -> str: ...
    @property
    def tasks(self) -> str: ...
    @property
    def image_set(self) -> str | None: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def pictures(self) -> str: ...
    @property
    def missing(self) -> str: ...
    @property
    def scenes(self) -> int: ...
    @property
    def held_out(self) -> bool: ...
    @property
    def difficulty(self) -> Mapping[str, Any]: ...
    @property
    def scoring(self) -> Mapping[str, Any]: ...
    @property
    def data_set(self) -> str: ...
    @property
    def asks(self) -> str: ...


class BenchmarkSource(Protocol):
    """Reads the benchmark of `mgap run NAME`. Other packages register theirs under the entry point `mgap.benchmarks`."""

    keys: ClassVar[frozenset[str]]  # the benchmark-specific keys that it reads
    datasets: ClassVar[tuple[str, ...]]  # where its pictures can come from; the first is the default
    max_new_tokens: ClassVar[int]  # default length of an answer

    @staticmethod
    def read(keys: RunKeys, /) -> Benchmark:
        """Read the samples, without a model; refuses missing files and pictures with names and counts."""
        ...


class DrawnWorld(Protocol):
    """A world of drawn pictures, with several benchmarks' questions about them. Nothing is downloaded."""

    @staticmethod
    def read(keys: RunKeys, /) -> Benchmark:
        """The samples of the run's benchmark, about test scenes."""
        ...

    @staticmethod
    def development(keys: RunKeys, count: int, /) -> Benchmark:
        """The same about `count` development scenes, on which methods are not judged."""
        ...

    @staticmethod
    def picture(name: str, *, held_out: bool, difficulty: Mapping[str, Any]) -> Image.Image:
        """The picture of a sample, drawn again after the run, for its report."""
        ...

    @staticmethod
    def captions(keys: RunKeys, count: int, /) -> tuple[Benchmark, dict[str, list[str]]]:
        """Requests to describe `count` test scenes, and the true statements about each."""
        ...


def open_pictures(samples: Sequence[Sample], picture: Callable[[str], ImageSource]) -> list[Image.Image]:
    """The picture of every sample; a picture that samples share is opened once."""
    opened = {name: open_image(picture(name)) for name in dict.fromkeys(sample.image for sample in samples)}
    return [opened[sample.image] for sample in samples]


def split_by_picture(samples: Sequence[Sample], share: float = 0.5, seed: int = 0) -> tuple[list[Sample], list[Sample]]:
    """Split samples by picture: `share` of the pictures for the bank, the rest to judge."""
    check_share("share", share)
    pictures = list(dict.fromkeys(sample.image for sample in samples))
    count = round(share * len(pictures))
    if not 0 < count < len(pictures):
        raise SettingError(f"share={share} of {len(pictures)} pictures leaves none for the bank or none to judge: give another")
    chosen = set(random.Random(seed).sample(pictures, count))
    return [s for s in samples if s.image in chosen], [s for s in samples if s.image not in chosen]


def distinct_questions(samples: Sequence[Sample]) -> list[Sample]:
    """Drop repeated questions and order by picture. In a bank, a repeated question's state would be its own neighbour."""
    distinct: dict[tuple[str, str], Sample] = {}
    for sample in samples:
        distinct.setdefault((sample.image, sample.prompt), sample)
    order = {name: index for index, name in enumerate(dict.fromkeys(sample.image for sample in samples))}
    return sorted(distinct.values(), key=lambda sample: order[sample.image])
