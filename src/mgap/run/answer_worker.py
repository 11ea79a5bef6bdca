"""Workers that answer questions: what all engines share, and the one for transformers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from mgap.backbones.asked_rows import Asked
from mgap.backbones.clock import STARTING, WAITING, Clock
from mgap.backbones.prepared_pictures import Preparer
from mgap.backbones.shared_vision import shared_pictures
from mgap.benchmarks.base import YES_NO, Benchmark
from mgap.decoding.first_log_odds import unreadable
from mgap.decoding.model import Model
from mgap.decoding.ties import uncountable
from mgap.errors import RunError
from mgap.methods.base import Method
from mgap.run.picture_workers import PictureOpening, Pictures, Ready
from mgap.run.records import PLAIN, Record, RunMethod
from mgap.run.worker import Work
from mgap.types import Answer, Decoding, Sample


class AnsweringWorker(ABC):
    """Turns samples into records: opens pictures, answers repeated questions once, and records failures."""

    decoding: Decoding

    @property
    @abstractmethod
    def pictures(self) -> Pictures:
        """The source of pictures."""

    @property
    def clock(self) -> Clock:
        """Measures the time of each stage; off by default."""
        return Clock()

    def decoding_of(self, method: RunMethod) -> Decoding:
        """The run's decoding, with what this row changes in it."""
        return Decoding.of(**{**asdict(self.decoding), **method.decoding})

    @abstractmethod
    def answers(self, pictures: Sequence[Any], rows: Sequence[Sample], method: RunMethod) -> Iterable[Answer]:
        """Answer these rows; the method is on. Of samples that ask the same, `rows` has the first."""

    def ask(self, samples: Sequence[Sample], method: RunMethod) -> list[Record]:
        """One record per sample, in order."""
        with self.clock.stage(WAITING):
            taken = self.pictures.take(sample.image for sample in samples)
        ready = {name: picture for name, picture in taken.items() if isinstance(picture, Ready)}
        readable = [replace(sample, prompt=sample.prompt + method.suffix) for sample in samples if sample.image in ready]
        records = {s.id: Record(s.id, failed=str(taken[s.image]), at=_now()) for s in samples if s.image not in ready}
        for sample, answer in self._decode(readable, ready, method):
            records[sample.id] = Record(
                id=sample.id,
                text=answer.text,
                prompt=answer.prompt,
                image=ready[sample.image].digest,
                tokens=len(answer.token_ids),
                stop=answer.stop,
                milliseconds=round(answer.milliseconds / len(readable), 3),
                rows=len(readable),
                ties=answer.ties,
                log_odds=None if answer.log_odds is None else round(answer.log_odds, 6),
                at=_now(),
                extra=self._extra(answer, sample, method),
            )
        return [records[sample.id] for sample in samples]

    def falls_back(self, samples: Sequence[Sample], method: RunMethod) -> bool:  # noqa: ARG002
        """Whether these samples are answered by plain decoding: the method needs a picture, and they have none."""
        return False

    def _extra(self, answer: Answer, sample: Sample, method: RunMethod) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if answer.alternatives:
            extra["alternatives"] = [other.text for other in answer.alternatives]
        if self.falls_back([sample], method):
            extra[PLAIN] = f"{method.method} needs a picture, and this question has none"
        return extra

    def _decode(
        self, samples: Sequence[Sample], ready: Mapping[str, Ready], method: RunMethod
    ) -> Iterator[tuple[Sample, Answer]]:
        """Answers in order. The same question about the same picture is answered once, unless answers are sampled."""
        is_drawn = self.decoding_of(method).sample
        keys = [(sample.image, sample.prompt, sample.id if is_drawn else "") for sample in samples]
        rows: dict[tuple[str, str, str], Sample] = {}
        for key, sample in zip(keys, samples, strict=True):
            rows.setdefault(key, sample)
        if not rows:
            return
        pictures, distinct = [ready[image].picture for image, _, _ in rows], list(rows.values())
        answers = dict(zip(rows, self.answers(pictures, distinct, method), strict=True))
        yield from ((sample, answers[key]) for sample, key in zip(samples, keys, strict=True))


class TransformersWorker(AnsweringWorker):
    """Answers with a transformers model. `methods` are by label; None is plain decoding."""

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
        self._weights = self._mapped_weights()

    def _mapped_weights(self) -> Mapping[str, str]:
        """The weights, as an identity describes them, where whoever overwrites the checkpoint's files changes them.

        On a CPU they are those files, mapped into memory; elsewhere they are copies.
        """
        backbone = self.model.backbone
        return backbone.identity.tensors if backbone.device.type == "cpu" else {}

    def ask(self, samples: Sequence[Sample], method: RunMethod) -> list[Record]:
        """One record per sample, in order. Refuses answers of weights that have changed since the run began."""
        records = super().ask(samples, method)
        if self._mapped_weights() != self._weights:
            raise RunError(
                f"the files of {self.model.backbone.name} were overwritten while it was in use, and the last answers are not "
                "kept: put the checkpoint back and do the run again, which then goes on, or name another folder"
            )
        return records

    @property
    def clock(self) -> Clock:
        return self.model.backbone.clock

    @cached_property
    def pictures(self) -> Pictures:
        """Shared by all methods: none changes how a picture is opened and prepared."""
        backbone = self.model.backbone
        return Pictures(PictureOpening(self.benchmark.picture, Preparer.of(backbone)), self.workers, backbone.device)

    @contextmanager
    def using(self, method: RunMethod) -> Iterator[Work]:
        built, backbone = self.methods[method.label], self.model.backbone
        with ExitStack() as stack:
            is_plain = False

            def switch(*, to_plain: bool) -> None:
                nonlocal is_plain
                stack.close()
                if built is not None and not to_plain:
                    stack.enter_context(self.model.using(built))
                if method.prefill == "own":
                    stack.enter_context(shared_pictures(backbone))
                is_plain = to_plain

            def work(samples: Sequence[Sample]) -> list[Record]:
                if (wanted := self.falls_back(samples, method)) != is_plain:
                    switch(to_plain=wanted)
                return self.ask(samples, method)

            switch(to_plain=False)  # refuses an unsuitable model before anything is answered
            yield work

    def falls_back(self, samples: Sequence[Sample], method: RunMethod) -> bool:
        built = self.methods[method.label]
        return built is not None and built.needs_picture and not any(sample.image for sample in samples)

    @contextmanager
    def prefetching(self) -> Iterator[None]:
        """The processes that prepare pictures live as long as this block."""
        with self.pictures:
            yield

    def prefetch(self, batches: Iterable[Sequence[Sample]]) -> None:
        """Start preparing the pictures of the coming batches, in order."""
        with self.clock.stage(STARTING):
            self.pictures.prefetch(sample.image for batch in batches for sample in batch)

    def answers(self, pictures: Sequence[Any], rows: Sequence[Sample], method: RunMethod) -> Iterable[Answer]:
        decoding, built = self.decoding_of(method), self.methods[method.label]
        active = [] if built is None or self.falls_back(rows, method) else [built]
        options, modes = asdict(decoding), decoding.modes(rows=len(rows))
        options["count_ties"] = not uncountable(modes, active)
        options["log_odds"] = self.benchmark.task == YES_NO and not unreadable(self.model.backbone, modes, active)
        asked = [Asked.by_name(sample.image, sample.prompt, self.benchmark.picture) for sample in rows]
        prompts = [sample.prompt for sample in rows]
        prefill = method.prefill if all(sample.image for sample in rows) else "own"
        return self.model.answers(pictures, prompts, asked=asked, batch_size=len(rows), prefill=prefill, **options)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
