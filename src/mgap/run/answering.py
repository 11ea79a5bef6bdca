"""The worker that answers: a model, its methods one after another, and how they decode."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone

from PIL import Image

from mgap.backbones.sharing import shared_pictures
from mgap.data.benchmark import Benchmark
from mgap.data.images import open_image
from mgap.decoding.model import Model
from mgap.errors import ImageError
from mgap.methods.base import Method
from mgap.reports.records import Arm, Record
from mgap.run.worker import Work
from mgap.types import Answer, Decoding, Sample


class Answering:
    """Answers samples under the methods of a run. `methods` are by label; None is plain decoding."""

    def __init__(self, model: Model, benchmark: Benchmark, decoding: Decoding, methods: Mapping[str, Method | None]) -> None:
        self.model, self.benchmark, self.methods = model, benchmark, methods
        self.options = asdict(decoding)

    @contextmanager
    def using(self, arm: Arm) -> Iterator[Work]:
        method = self.methods[arm.label]
        with ExitStack() as stack:
            if method is not None:
                stack.enter_context(self.model.using(method))
            if arm.prefill == "own":
                stack.enter_context(shared_pictures(self.model.backbone))
            yield lambda samples: self._answer(samples, arm)

    def _answer(self, samples: Sequence[Sample], arm: Arm) -> list[Record]:
        pictures, failures = self._open(samples)
        asked = [sample for sample in samples if sample.image in pictures]
        records = {s.id: Record(s.id, failed=failures[s.image], at=_now()) for s in samples if s.image not in pictures}
        for sample, answer in self._decode(asked, pictures, arm):
            records[sample.id] = Record(
                id=sample.id,
                text=answer.text,
                prompt=answer.prompt,
                image=pictures[sample.image][1],
                tokens=len(answer.token_ids),
                stop=answer.stop,
                milliseconds=round(answer.milliseconds / len(asked), 3),
                rows=len(asked),
                at=_now(),
                extra={"alternatives": [other.text for other in answer.alternatives]} if answer.alternatives else {},
            )
        return [records[sample.id] for sample in samples]

    def _decode(
        self, asked: Sequence[Sample], pictures: Mapping[str, tuple[Image.Image, str]], arm: Arm
    ) -> Iterator[tuple[Sample, Answer]]:
        """Answers in order. What several samples ask of one picture is answered once, unless answers are drawn by lot."""
        drawn = bool(self.options["sample"])
        keys = [(sample.image, sample.prompt, sample.id if drawn else "") for sample in asked]
        rows = list(dict.fromkeys(keys))
        if not rows:
            return
        answers = self.model.answers(
            [pictures[image][0] for image, _, _ in rows],
            [prompt for _, prompt, _ in rows],
            batch_size=len(rows),
            prefill=arm.prefill,
            **self.options,
        )
        found = dict(zip(rows, answers, strict=True))
        yield from ((sample, found[key]) for sample, key in zip(asked, keys, strict=True))

    def _open(self, samples: Sequence[Sample]) -> tuple[dict[str, tuple[Image.Image, str]], dict[str, str]]:
        """Each picture once, with its digest; and why others cannot be opened."""
        pictures, failures = {}, {}
        for name in dict.fromkeys(sample.image for sample in samples):
            try:
                picture = open_image(self.benchmark.picture(name))
            except ImageError as error:
                failures[name] = f"{type(error).__name__}: {error}"
            else:
                pictures[name] = (picture, hashlib.sha256(picture.tobytes()).hexdigest())
        return pictures, failures


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
