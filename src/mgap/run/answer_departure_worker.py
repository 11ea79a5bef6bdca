"""The worker that measures departures at every token of whole answers: each method decodes a description at each strength."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

import torch

from mgap.backbones.asked_rows import Asked, asking
from mgap.benchmarks.base import open_pictures
from mgap.decoding.answer_states import AnswerStates, answer_states
from mgap.decoding.model import Model
from mgap.diagnosis.departure import STRENGTHS, named_strengths
from mgap.diagnosis.departure_by_step import OWN
from mgap.errors import SettingError
from mgap.io.images import Opener
from mgap.methods.base import Method
from mgap.priors.manifold import Manifold
from mgap.run.records import Record, RunMethod
from mgap.run.worker import Work
from mgap.types import Decoding, Sample

Variants = Mapping[str, Method | None]  # by strength


def variants_of(method: Method | None, strengths: Sequence[float] = STRENGTHS) -> Variants:
    """A method at each strength, by the strength's name. Refuses a method that decodes from no state.

    Plain decoding (None) has strength 0 only. A method without a strength setting is measured once, as it is.
    """
    named = named_strengths(strengths)
    if method is None:
        if "0" not in named:
            raise SettingError(
                "vanilla is measured at strength 0, which is not among the strengths: add it, or leave vanilla out"
            )
        return {"0": None}
    method.require_state()
    if not method.is_set_by_strength:
        return {OWN: method}
    return {key: method.with_strength(strength) for key, strength in named.items()}


class AnswerDepartureWorker:
    """Turns samples into records of distances: `extra["distances"][strength]` has one per token of the answer.

    The samples must be about other pictures than the bank's. `variants` holds the methods to decode with, by label and strength
    (`variants_of`). A record's text is the answer of the last variant.
    """

    def __init__(
        self,
        model: Model,
        picture: Opener,
        manifold: Manifold,
        variants: Mapping[str, Variants],
        decoding: Decoding,
    ) -> None:
        self.model, self.picture, self.manifold, self.variants, self.decoding = model, picture, manifold, variants, decoding

    @contextmanager
    def using(self, method: RunMethod) -> Iterator[Work]:
        variants = self.variants[method.label]
        yield lambda samples: self._measure(samples, variants)

    def _measure(self, samples: Sequence[Sample], variants: Variants) -> list[Record]:
        started, backbone = time.perf_counter(), self.model.backbone
        images = open_pictures(samples, self.picture)
        inputs = backbone.encode(images, [sample.prompt for sample in samples])
        asked = [Asked(image, sample.prompt, sample.image) for image, sample in zip(images, samples, strict=True)]
        distances: list[dict[str, list[float]]] = [{} for _ in samples]
        answers: list[AnswerStates] = []
        for key, method in variants.items():
            with answer_states(self.model, method, self.decoding) as read, asking(backbone.model, asked):
                answers = read(inputs)
            per_token = self.manifold.distances(torch.cat([answer.used for answer in answers]))
            for by_strength, part in zip(distances, per_token.split([len(a.tokens) for a in answers]), strict=True):
                by_strength[key] = [float(f"{distance:.6g}") for distance in part.tolist()]
        texts = backbone.tokenizer.batch_decode([answer.tokens for answer in answers], skip_special_tokens=True)
        spent, now = 1000 * (time.perf_counter() - started), datetime.now(timezone.utc).isoformat(timespec="seconds")
        return [
            Record(
                id=sample.id,
                text=texts[row].strip(),
                prompt=backbone.render(sample.prompt),
                image=hashlib.sha256(images[row].tobytes()).hexdigest(),
                tokens=len(answers[row].tokens),
                stop="end" if answers[row].is_ended else "length",
                milliseconds=round(spent / len(samples), 3),
                rows=len(samples),
                at=now,
                extra={"distances": distances[row]},
            )
            for row, sample in enumerate(samples)
        ]
