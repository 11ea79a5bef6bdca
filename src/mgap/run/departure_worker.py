"""The worker that measures departures (paper, sections 3.2 and 5.4): first a bank, then distances, method by method.

bank, judged = split_by_picture(samples, share=0.5)                 # or take the bank from other scenes
manifold = prepare(model, bank, picture, folder)             # collected once, then read from the folder
worker = DepartureWorker(model, picture, manifold, build)    # build(RunMethod): the Method, None for vanilla
plan["departure"] = {**manifold.to_json(), "strengths": [...]}
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

from mgap.backbones.asked_rows import Asked, asking
from mgap.benchmarks.base import open_pictures
from mgap.decoding.effective_states import StepStates, first_states
from mgap.decoding.model import Model
from mgap.diagnosis.departure import STRENGTHS, named_strengths
from mgap.errors import SettingError
from mgap.io.images import Opener
from mgap.methods.base import Method
from mgap.priors.manifold import Manifold
from mgap.run.records import Record, RunMethod
from mgap.run.worker import Work
from mgap.types import Sample


class DepartureWorker:
    """Turns samples into records of distances. `build` makes a method; None is vanilla, which has strength 0 only.

    The samples must be about other pictures than the bank's. A record's text is the plain model's first token.
    """

    def __init__(
        self,
        model: Model,
        picture: Opener,
        manifold: Manifold,
        build: Callable[[RunMethod], Method | None],
        *,
        strengths: Sequence[float] = STRENGTHS,
    ) -> None:
        self.model, self.picture, self.manifold, self.build = model, picture, manifold, build
        self.strengths = named_strengths(strengths)

    @contextmanager
    def using(self, method: RunMethod) -> Iterator[Work]:
        built = self.build(method)
        if built is None and "0" not in self.strengths:
            raise SettingError(
                "vanilla is measured at strength 0, which is not among the strengths: add it, or leave vanilla out"
            )
        with first_states(self.model, built) as read:
            yield lambda samples: self._measure(samples, read)

    def _measure(self, samples: Sequence[Sample], read: Callable[..., StepStates]) -> list[Record]:
        started, backbone = time.perf_counter(), self.model.backbone
        images = open_pictures(samples, self.picture)
        asked = [Asked(image, sample.prompt, sample.image) for image, sample in zip(images, samples, strict=True)]
        with asking(backbone.model, asked):
            states = read(backbone.encode(images, [sample.prompt for sample in samples]))
        strengths = {"0": 0.0} if states.method is None else self.strengths
        distances = {key: self.manifold.distances(states.at(value)).tolist() for key, value in strengths.items()}
        words = backbone.words(states.plain_tokens())
        spent, now = 1000 * (time.perf_counter() - started), datetime.now(timezone.utc).isoformat(timespec="seconds")
        return [
            Record(
                id=sample.id,
                text=words[row],
                prompt=backbone.render(sample.prompt),
                image=hashlib.sha256(images[row].tobytes()).hexdigest(),
                tokens=1,
                milliseconds=spent / len(samples),
                rows=len(samples),
                at=now,
                extra={"distance": {key: values[row] for key, values in distances.items()}},
            )
            for row, sample in enumerate(samples)
        ]
