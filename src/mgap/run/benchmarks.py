"""From a run's keys to the benchmark: the pocket world's, a published one, or the user's own. Pictures are looked for here."""

from __future__ import annotations

from dataclasses import fields, replace

from mgap.data.benchmark import Benchmark
from mgap.errors import SettingError
from mgap.run.config import Config
from mgap.types import Sample

CHOOSING = ("data", "questions", "splits", "kinds", "image_set", "prompt", "scenes", "held_out", "limit", "missing")


def read_benchmark(config: Config) -> Benchmark:
    """What is asked; refuses missing files and pictures with names and counts. Needs no model."""
    found = _pocket(config) if config.data_set == "pocket" else _published(config)
    if config.limit is None:
        return found
    shown = set(list(dict.fromkeys(sample.image for sample in found.samples))[: config.limit])
    return replace(found, samples=tuple(sample for sample in found.samples if sample.image in shown))


def refuse_chosen(config: Config) -> None:
    """Raise if the keys choose samples, for a run whose samples are in hand: such a key would be ignored."""
    defaults = {f.name: f.default for f in fields(config)}
    if chosen := [name for name in CHOOSING if getattr(config, name) != defaults[name]]:
        raise SettingError(f"{chosen[0]}={getattr(config, chosen[0])!r} chooses samples, and these are given: leave it out")


def read_bank(config: Config, judged: Benchmark) -> tuple[Benchmark, tuple[Sample, ...]]:
    """For a measurement of departures: what is judged, and what is asked for the plain states of the bank, of other pictures.

    In the pocket world the bank is of development scenes; elsewhere of a share of the pictures, which are then not judged.
    """
    from mgap.run.departure import asked_once, set_aside

    if config.data_set == "pocket":
        from mgap.pocket.benchmark import DEVELOPMENT
        from mgap.pocket.samples import chair_samples, pope_samples

        count = int(config.departure.get("bank", config.scenes))
        if config.asks == "chair":
            return judged, chair_samples(count, first=DEVELOPMENT, held_out=config.held_out).samples
        known = pope_samples(config.splits, count, first=DEVELOPMENT, held_out=config.held_out).samples
        return judged, tuple(asked_once(known))
    bank, rest = set_aside(judged.samples, share=float(config.departure.get("bank", 0.5)))
    return replace(judged, samples=tuple(rest)), tuple(asked_once(bank))


def _pocket(config: Config) -> Benchmark:
    from mgap.pocket.samples import amber_samples, chair_samples, pope_samples

    if config.prompt is not None:
        raise SettingError(f"prompt={config.prompt!r}: the pocket models know one way to be asked; leave it out")
    if config.asks == "pope":
        return pope_samples(config.splits, config.scenes, held_out=config.held_out)
    if config.asks == "chair":
        return chair_samples(config.scenes, held_out=config.held_out)
    if config.benchmark == "amber":
        return amber_samples(config.kinds, config.scenes, held_out=config.held_out)
    raise SettingError(f"benchmark {config.benchmark}: it is not part of the pocket world; give images")


def _published(config: Config) -> Benchmark:
    from mgap.data.amber import read_amber
    from mgap.data.chair import read_chair
    from mgap.data.own import read_own
    from mgap.data.pope import read_pope
    from mgap.data.published import find_data
    from mgap.scoring.chair import ChairScorer

    images, missing = str(config.images), config.missing
    if config.questions is not None:  # of one's own, to answer or to measure departures on
        return read_own(str(config.questions), images, prompt=config.prompt or "question", missing=missing)
    folder = find_data(config.asks, config.data)
    if config.asks == "pope":
        prompt = config.prompt or "question"
        return read_pope(folder, images, dataset=config.data_set, splits=config.splits, prompt=prompt, missing=missing)
    if config.asks == "amber":
        return read_amber(folder, images, kinds=config.kinds, prompt=config.prompt or "mgap", missing=missing)
    named = ChairScorer.of({}, **config.scoring).finder.classes  # people's captions are read as the model's
    prompt = config.prompt or "mgap"
    return read_chair(folder, images, image_set=config.image_set, prompt=prompt, missing=missing, named=named)
