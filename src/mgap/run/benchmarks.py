"""Reads the samples of a run: from a drawn world, or from a benchmark of the registry."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

from mgap.benchmarks.base import Benchmark, BenchmarkSource, DrawnWorld, distinct_questions, split_by_picture
from mgap.errors import SettingError
from mgap.registry import BENCHMARKS, WORLDS
from mgap.run.config import Config
from mgap.types import Sample

CHOOSING = (
    "data",
    "questions",
    "splits",
    "kinds",
    "tasks",
    "image_set",
    "pictures",
    "prompt",
    "scenes",
    "held_out",
    "difficulty",
    "limit",
    "missing",
)


def read_benchmark(config: Config) -> Benchmark:
    """The benchmark that a config names. Refuses missing files and pictures, with names and counts. Needs no model.

    With a limit, of the questions without a picture those are asked that stand before the last one with a picture.
    """
    asks = "own" if config.questions is not None else config.asks
    source: BenchmarkSource | DrawnWorld = WORLDS.get(config.data_set) if config.is_drawn else BENCHMARKS.get(asks)
    benchmark = source.read(config)
    if config.limit is None:
        return benchmark
    samples = benchmark.samples
    pictures = set(list(dict.fromkeys(sample.image for sample in samples if sample.image))[: config.limit])
    last = max((place for place, sample in enumerate(samples) if sample.image in pictures), default=-1)
    kept = (s for place, s in enumerate(samples) if s.image in pictures or (not s.image and place < last))
    return replace(benchmark, samples=tuple(kept))


def refuse_chosen(config: Config) -> None:
    """Raise if a key chooses samples although the samples are given: it would be ignored."""
    defaults = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(config)}
    if chosen := [name for name in CHOOSING if getattr(config, name) != defaults[name]]:
        raise SettingError(f"{chosen[0]}={getattr(config, chosen[0])!r} chooses samples, and these are given: leave it out")


def read_bank(config: Config, judged: Benchmark) -> tuple[Benchmark, tuple[Sample, ...]]:
    """For departures: the samples to judge, and those of the bank, which are about other pictures.

    In a drawn world the bank takes development scenes; elsewhere a share of the pictures, which are then not judged. Questions
    without a picture are left out, with a note.
    """
    shown = tuple(sample for sample in judged.samples if sample.image)
    if unshown := len(judged.samples) - len(shown):
        note = f"departures are measured with a picture in view: {unshown} questions without one are left out"
        judged = replace(judged, samples=shown, notes=(*judged.notes, note))
    if config.is_drawn:
        world: DrawnWorld = WORLDS.get(config.data_set)
        development = world.development(config, int(config.departure.get("bank", config.scenes)))
        return judged, tuple(distinct_questions(development.samples))
    bank, rest = split_by_picture(judged.samples, share=float(config.departure.get("bank", 0.5)))
    return replace(judged, samples=tuple(rest)), tuple(distinct_questions(bank))
