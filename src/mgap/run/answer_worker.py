"""The workers that answer: what any of them does with samples and pictures, and the one that has a model of transformers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from mgap.backbones.clock import STARTING, WAITING, Clock
from mgap.backbones.prepared_pictures import Preparer
from mgap.backbones.shared_vision import shared_pictures
from mgap.benchmarks.base import Benchmark
from mgap.decoding.model import Model
from mgap.methods.base import Method
from mgap.run.picture_workers import PictureOpening, Pictures, Ready
from mgap.run.records import Record, RunMethod
from mgap.run.worker import Work
from mgap.types import Answer, Decoding, Sample


class AnsweringWorker(ABC):
    """Turns samples into records: pictures are opened, what is asked twice is answered once, and failures are written down."""

    decoding: Decoding

    @property
    @abstractmethod
    def pictures(self) -> Pictures:
        """Where pictures come from."""

    @property
    def clock(self) -> Clock:
        """Tells where the time goes; by default off."""
        return Clock()

    @abstractmethod
    def answers(
        self, pictures: Sequence[Any], prompts: Sequence[str], ids: Sequence[str], method: RunMethod
    ) -> Iterable[Answer]:
        """Answer these rows under the method, which is on; `ids` are of the samples that ask, the first of each row."""

    def ask(self, samples: Sequence[Sample], method: RunMethod) -> list[Record]:
        """A record each, in order."""
        with self.clock.stage(WAITING):
            taken = self.pictures.take(sample.image for sample in samples)
        ready = {name: found for name, found in taken.items() if isinstance(found, Ready)}
        asked = [sample for sample in samples if sample.image in ready]
        records = {s.id: Record(s.id, failed=str(taken[s.image]), at=_now()) for s in samples if s.image not in ready}
        for sample, answer in self._decode(asked, ready, method):
            records[sample.id] = Record(
                id=sample.id,
                text=answer.text,
                prompt=answer.prompt,
                image=ready[sample.image].digest,
                tokens=len(answer.token_ids),
                stop=answer.stop,
                milliseconds=round(answer.milliseconds / len(asked), 3),
                rows=len(asked),
                at=_now(),
                extra={"alternatives": [other.text for other in answer.alternatives]} if answer.alternatives else {},
            )
        return [records[sample.id] for sample in samples]

    def _decode(
        self, asked: Sequence[Sample], ready: Mapping[str, Ready], method: RunMethod
    ) -> Iterator[tuple[Sample, Answer]]:
        """Answers in order. What several samples ask of one picture is answered once, unless answers are drawn by lot."""
        keys = [(sample.image, sample.prompt, sample.id if self.decoding.sample else "") for sample in asked]
        rows: dict[tuple[str, str, str], str] = {}
        for key, sample in zip(keys, asked, strict=True):
            rows.setdefault(key, sample.id)
        if not rows:
            return
        pictures, prompts = [ready[image].picture for image, _, _ in rows], [prompt for _, prompt, _ in rows]
        found = dict(zip(rows, self.answers(pictures, prompts, list(rows.values()), method), strict=True))
        yield from ((sample, found[key]) for sample, key in zip(asked, keys, strict=True))


class TransformersWorker(AnsweringWorker):
    """Answers samples under the methods of a run. `methods` are by label; None is plain decoding."""

    def __init__(
        self,
        model: Model,
        benchmark: Benchmark,
        decoding: Decoding,
        methods: Mapping[str, Method | None],
        *,
        workers: int | str = 0,  # processes that prepare pictures, or "auto"
    ) -> None:
        self.model, self.benchmark, self.methods, self.workers = model, benchmark, methods, workers
        self.decoding = decoding

    @property
    def clock(self) -> Clock:
        return self.model.backbone.clock

    @cached_property
    def pictures(self) -> Pictures:
        """The same for all methods: none of them changes how a picture is opened and prepared."""
        backbone = self.model.backbone
        return Pictures(PictureOpening(self.benchmark.picture, Preparer.of(backbone)), self.workers, backbone.device)

    @contextmanager
    def using(self, method: RunMethod) -> Iterator[Work]:
        built, backbone = self.methods[method.label], self.model.backbone
        with ExitStack() as stack:
            if built is not None:
                stack.enter_context(self.model.using(built))
            if method.prefill == "own":
                stack.enter_context(shared_pictures(backbone))
            yield lambda samples: self.ask(samples, method)

    @contextmanager
    def prefetching(self) -> Iterator[None]:
        """Processes that prepare pictures live as long as this block."""
        with self.pictures:
            yield

    def prefetch(self, batches: Iterable[Sequence[Sample]]) -> None:
        """Begin with the pictures of batches that will come in this order."""
        with self.clock.stage(STARTING):
            self.pictures.prefetch(sample.image for batch in batches for sample in batch)

    def answers(
        self, pictures: Sequence[Any], prompts: Sequence[str], ids: Sequence[str], method: RunMethod
    ) -> Iterable[Answer]:
        options = asdict(self.decoding)
        return self.model.answers(pictures, prompts, batch_size=len(ids), prefill=method.prefill, **options)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
