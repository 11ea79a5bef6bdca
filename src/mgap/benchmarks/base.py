"""A benchmark in hand: what is asked, about which pictures, and the words that its scorer needs."""

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


@dataclass(frozen=True)
class Benchmark:
    """Samples of one task. Everything but `picture` is plain JSON, so that a run can keep it and be scored without this."""

    name: str  # such as "pope coco"
    task: str  # which scorer reads the answers: yesno, captions or amber
    samples: tuple[Sample, ...]
    picture: Callable[[str], ImageSource]  # from a sample's image name to the picture, or to the path of its file
    lexicon: Mapping[str, Any] = field(default_factory=dict)  # words that the scorer needs beside the samples' truths
    sources: Mapping[str, str] = field(default_factory=dict)  # files that were read, with their SHA-256
    notes: tuple[str, ...] = ()  # what was mended while reading, in a sentence each

    def __post_init__(self) -> None:
        if not self.samples:
            raise BenchmarkError(f"{self.name}: nothing to ask")
        twice = [name for name, count in Counter(sample.id for sample in self.samples).items() if count > 1]
        if twice:
            raise BenchmarkError(
                f"{self.name}: {len(twice)} ids stand for several samples, {twice[0]!r} first; make them unique"
            )


class RunKeys(Protocol):
    """What a run says about its samples: the keys of `mgap.run.config.Config` that a benchmark may read."""

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
    def image_set(self) -> str | None: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def missing(self) -> str: ...
    @property
    def scenes(self) -> int: ...
    @property
    def held_out(self) -> bool: ...
    @property
    def scoring(self) -> Mapping[str, Any]: ...
    @property
    def data_set(self) -> str: ...
    @property
    def asks(self) -> str: ...


class BenchmarkSource(Protocol):
    """What `mgap run NAME` asks. A package registers its own under the entry point `mgap.benchmarks`."""

    keys: ClassVar[frozenset[str]]  # of those keys that mean nothing to other benchmarks, the ones that it reads
    datasets: ClassVar[tuple[str, ...]]  # where its pictures can come from; the first is the default
    max_new_tokens: ClassVar[int]  # of an answer, unless a run says otherwise

    @staticmethod
    def read(keys: RunKeys, /) -> Benchmark:
        """The samples; refuses missing files and pictures with names and counts. Needs no model."""
        ...


class DrawnWorld(Protocol):
    """Pictures that are drawn, with questions of several benchmarks about them. Nothing has to be fetched."""

    @staticmethod
    def read(keys: RunKeys, /) -> Benchmark:
        """The samples of the benchmark that the run asks, about scenes that methods are judged on."""
        ...

    @staticmethod
    def development(keys: RunKeys, count: int, /) -> Benchmark:
        """The same about `count` scenes that methods are not judged on."""
        ...

    @staticmethod
    def captions(count: int, *, held_out: bool) -> tuple[Benchmark, dict[str, list[str]]]:
        """Requests to describe so many scenes, and for each what could truly be said."""
        ...


def open_pictures(samples: Sequence[Sample], picture: Callable[[str], ImageSource]) -> list[Image.Image]:
    """The picture of every sample, each opened once however many ask about it."""
    opened = {name: open_image(picture(name)) for name in dict.fromkeys(sample.image for sample in samples)}
    return [opened[sample.image] for sample in samples]


def set_aside(samples: Sequence[Sample], share: float = 0.5, seed: int = 0) -> tuple[list[Sample], list[Sample]]:
    """Samples for the bank and samples to judge; a picture is in one of them, and this share of the pictures in the first."""
    check_share("share", share)
    pictures = list(dict.fromkeys(sample.image for sample in samples))
    count = round(share * len(pictures))
    if not 0 < count < len(pictures):
        raise SettingError(f"share={share} of {len(pictures)} pictures leaves none for the bank or none to judge: give another")
    chosen = set(random.Random(seed).sample(pictures, count))
    return [s for s in samples if s.image in chosen], [s for s in samples if s.image not in chosen]


def asked_once(samples: Sequence[Sample]) -> list[Sample]:
    """What several splits ask alike, once, pictures together: in a bank the same state twice would be its own neighbour."""
    found: dict[tuple[str, str], Sample] = {}
    for sample in samples:
        found.setdefault((sample.image, sample.prompt), sample)
    pictures = {name: place for place, name in enumerate(dict.fromkeys(sample.image for sample in samples))}
    return sorted(found.values(), key=lambda sample: pictures[sample.image])
