"""Measure departures (paper, sections 3.2 and 5.4) as a run does: a bank first, then distances, method by method.

bank, judged = set_aside(samples, share=0.5)                 # or the bank from scenes of its own
manifold = prepare(model, bank, picture, folder)             # collected once, then read again
worker = DepartureWorker(model, picture, manifold, build)    # build: an arm's method, None for vanilla
plan["departure"] = {**manifold.to_json(), "strengths": [...]}
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from mgap.data.benchmark import open_pictures
from mgap.data.images import ImageSource
from mgap.decoding.attach import attached
from mgap.decoding.effective import StepStates, first_states
from mgap.decoding.model import Model
from mgap.errors import RunError, SettingError
from mgap.methods.base import Method, check_share, check_strength
from mgap.reports.records import Arm, Record
from mgap.run.progress import Progress
from mgap.run.worker import Work
from mgap.states.bank import Bank
from mgap.states.departure import Manifold
from mgap.types import Sample

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # the paper's
BANK = "bank.json"

Picture = Callable[[str], ImageSource]  # as a benchmark has it


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


def prepare(
    model: Model,
    rows: Sequence[Sample],
    picture: Picture,
    folder: str | PathLike[str],
    *,
    k: int = 10,
    delta: float = 0.05,
    metric: str = "euclidean",
    search: str = "auto",
    batch_size: int = 8,
    max_new_tokens: int = 1,
    progress: Progress | None = None,
) -> Manifold:
    """The bank of these rows, collected into the folder, or read from there if it is of the same rows; and its threshold.

    It is of the first tokens of plain answers, or of so many. A bank whose collection was interrupted is gone on with.
    """
    if active := attached(model.backbone.model):
        raise SettingError(f"{active[0].method.name} is attached to this model: a bank is of plain decoding; detach it")
    asked = hashlib.sha256("".join(json.dumps([s.id, s.image, s.prompt]) + "\n" for s in rows).encode()).hexdigest()
    if (Path(folder) / BANK).is_file():
        bank = Bank.load(folder)
        bank.require(model.backbone)
        if bank.origin.get("rows_sha256") != asked:
            raise RunError(f"{folder}: its bank is of other rows than those asked for now; name another folder, or remove it")
        if (length := bank.origin.get("max_new_tokens", 1)) != max_new_tokens:
            raise RunError(
                f"{folder}: its bank is of answers of up to {length} tokens, not {max_new_tokens}; name another folder"
            )
    else:
        opened = lru_cache(maxsize=1)(picture)  # questions about one picture stand together
        images, prompts = (opened(s.image) for s in rows), [s.prompt for s in rows]
        told = None if progress is None else lambda done: progress("states for the bank", done, len(rows))
        how: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, "progress": told}
        bank = Bank.collect(model, images, prompts, folder=folder, origin={"rows_sha256": asked}, **how)
    place = model.backbone.device
    return Manifold.of(bank, k=k, delta=delta, metric=metric, device=place, search=search, progress=progress)


def named_strengths(strengths: Sequence[float]) -> dict[str, float]:
    """Each by its name in records, in order."""
    if not strengths:
        raise SettingError("no strengths to measure at: give some, such as 0, 0.5 and 1")
    return {f"{check_strength('strengths', strength):.12g}": strength for strength in strengths}


class DepartureWorker:
    """Turns samples into records of distances; `build` makes an arm's method, None for vanilla, which has strength 0 only.

    Needs samples about other pictures than the bank's. A record's text is the plain model's first token.
    """

    def __init__(
        self,
        model: Model,
        picture: Picture,
        manifold: Manifold,
        build: Callable[[Arm], Method | None],
        *,
        strengths: Sequence[float] = STRENGTHS,
    ) -> None:
        self.model, self.picture, self.manifold, self.build = model, picture, manifold, build
        self.strengths = named_strengths(strengths)

    @contextmanager
    def using(self, arm: Arm) -> Iterator[Work]:
        method = self.build(arm)
        if method is None and "0" not in self.strengths:
            raise SettingError(
                "vanilla is measured at strength 0, which is not among the strengths: add it, or leave vanilla out"
            )
        with first_states(self.model, method) as read:
            yield lambda samples: self._measure(samples, read)

    def _measure(self, samples: Sequence[Sample], read: Callable[..., StepStates]) -> list[Record]:
        started, backbone = time.perf_counter(), self.model.backbone
        images = open_pictures(samples, self.picture)
        seen = read(backbone.encode(images, [sample.prompt for sample in samples]))
        strengths = {"0": 0.0} if seen.method is None else self.strengths
        distances = {key: self.manifold.distances(seen.at(value)).tolist() for key, value in strengths.items()}
        words = backbone.words(seen.plain_tokens())
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
