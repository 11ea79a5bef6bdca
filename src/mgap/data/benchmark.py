"""A benchmark in hand: what is asked, about which pictures, and the words that its scorer needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from mgap.data.images import ImageSource, open_image
from mgap.errors import BenchmarkError
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


def open_pictures(samples: Sequence[Sample], picture: Callable[[str], ImageSource]) -> list[Image.Image]:
    """The picture of every sample, each opened once however many ask about it."""
    opened = {name: open_image(picture(name)) for name in dict.fromkeys(sample.image for sample in samples)}
    return [opened[sample.image] for sample in samples]
