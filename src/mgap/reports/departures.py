"""Departures from the manifold of normal decoding as figures (section 3.2 of the paper): which share of the states lies outside.

A record of such a run holds a distance for each strength; a state has departed where its distance is above tau.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mgap.errors import RunError
from mgap.reports.records import Record
from mgap.scoring.stats import share
from mgap.scoring.tally import Figure, Tally, by_picture
from mgap.types import Sample

DISTANCE = "distance"  # in a record's `extra`: by strength, as text


def departures(
    samples: Sequence[Sample], records: Mapping[str, Mapping[str, Record]], tau: float
) -> dict[str, dict[str, Tally]]:
    """By method, all states in one group; a figure for each strength, of 0 states where a method has no such strength."""
    found = {label: [_distances(of[sample.id]) for sample in samples] for label, of in records.items()}
    strengths = sorted({name for rows in found.values() for row in rows for name in row}, key=float)
    figures = {name: _departed(2 * place) for place, name in enumerate(strengths)}
    tallies = {}
    for label, rows in found.items():
        counts = [[c for name in strengths for c in (name in row, name in row and row[name] > tau)] for row in rows]
        pictures, summed = by_picture(samples, counts)
        tallies[label] = {"states": Tally(pictures, summed, figures, {sample.id: True for sample in samples})}
    return tallies


def _departed(place: int) -> Figure:
    return Figure(
        value=lambda c: share(c[..., place + 1], c[..., place]), of=lambda c: float(c[place]), percent=True, better="lower"
    )


def _distances(record: Record) -> dict[str, float]:
    distances = record.extra.get(DISTANCE)
    if not isinstance(distances, Mapping):
        raise RunError(f"the answer to {record.id!r} holds no distances: run it again with benchmark: departure")
    return {str(name): float(value) for name, value in distances.items()}
