"""What methods need to have learnt from a model: found in a folder, learnt where it can be, or refused before it is loaded.

A prior is learnt from prompts alone, with any model. The rest takes pictures: those of an embedded model are drawn; for another
model they are the user's (`mgap fit --for METHOD --images FOLDER --questions FILE`). Steering vectors take captions whose words
are labelled, which only drawn scenes have by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.priors.prior_plan import Prior, describe_prior
from mgap.registry import EMBEDDED, LEARNT, METHODS, POCKET_LEARNERS

if TYPE_CHECKING:
    from mgap.benchmarks.base import Benchmark
    from mgap.decoding.model import Model
    from mgap.priors.bank import Bank
    from mgap.priors.prior_map import PriorMap

CALLED = {"subspace": "a prior", "prior_map": "a prior map", "steering": "steering vectors", "bank": "a bank of plain states"}
BANK_TOKENS, MAP_TOKENS = 96, 32  # of a plain answer, at most
LABELLED = (
    "mgap.Steering.fit(model, captions).save(DIR) in Python, with captions of mgap.priors.steering.Caption whose pieces are "
    "labelled true or invented (docs/methods/asd.md)"
)


def called(kind: str) -> str:
    """In words, with its article."""
    return CALLED.get(kind, f"a {kind}")


def kinds_in(place: str) -> list[str] | None:
    """What was saved to a folder; None where there is no such folder: then it may be a hub repository."""
    if not os.path.isdir(place):
        return None
    return [kind for kind in LEARNT.names() if (Path(place) / f"{kind}.json").is_file()]


def can_learn(kind: str, model: str) -> bool:
    """Whether it is learnt from the model of this name alone."""
    return kind == "subspace" or (model in EMBEDDED and kind in POCKET_LEARNERS)


def refuse_unlearnt(method: str, setting: str, kind: str, model: str) -> None:
    """Raise if what a method's setting must hold cannot be learnt here; says which command makes it."""
    if can_learn(kind, model):
        return
    raise SettingError(
        f"{method} needs {setting}, {called(kind)} of {model}, and none is given: {_way(method, kind, model)}, "
        "then give --prior DIR"
    )


def _way(method: str, kind: str, model: str) -> str:
    if kind in ("bank", "prior_map"):
        return f"make one with `mgap fit --for {method} --model {model} --images FOLDER --questions FILE --out DIR`"
    if kind == "steering":
        return f"make them with {LABELLED}"
    return f"make one in Python with {LEARNT.get(kind).__name__}"


def learn(
    kind: str, model: Model, *, rows: Benchmark | None = None, batch_size: int | None = None, told: Progress | None = None
) -> Any:
    """Learn it anew: from the user's pictures and questions (`rows`), else from prompts or from drawn scenes."""
    if kind == "subspace":
        return Prior().fit(model, told, batch_size=batch_size)
    if rows is not None:
        return FROM_ROWS[kind](model, rows, batch_size or 8, told)
    return POCKET_LEARNERS.get(kind)(model, progress=told, **({} if batch_size is None else {"batch_size": batch_size}))


def learnt(kind: str, model: Model, folder: Path | None, told: Progress | None = None) -> Any:
    """What a run's folder has of this kind, or the cache; else it is learnt, and kept in both."""
    from mgap.priors.learnt_cache import through_cache

    place = None if folder is None else folder / kind
    if place is not None and (place / f"{kind}.json").is_file():
        return LEARNT.get(kind).load(place)
    found = through_cache(kind, {"from": "pocket"}, model, lambda: learn(kind, model, told=told))
    if place is not None:
        found.save(place)
    return found


def _learn_bank(model: Model, rows: Benchmark, batch_size: int, told: Progress | None) -> Bank:
    """A row of the bank is a picture: other answers about it are too near."""
    import torch

    from mgap.benchmarks.base import asked_once
    from mgap.priors.bank import Bank

    asked = asked_once(rows.samples)
    opened = lru_cache(maxsize=1)(rows.picture)  # a picture's questions stand together
    report = None if told is None else lambda done: told("states of plain answers", done, len(asked))
    prompts = [sample.prompt for sample in asked]
    images = (opened(sample.image) for sample in asked)
    how: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": BANK_TOKENS, "progress": report}
    bank = Bank.collect(model, images, prompts, **how)
    places = {name: place for place, name in enumerate(dict.fromkeys(sample.image for sample in asked))}
    shown = torch.tensor([places[sample.image] for sample in asked], dtype=torch.int32)
    return replace(bank, rows=shown[bank.rows.long()])


def _learn_map(model: Model, rows: Benchmark, batch_size: int, told: Progress | None) -> PriorMap:
    from mgap.benchmarks.base import asked_once
    from mgap.decoding.prior_pairs import fit_prior_map

    asked, prior = asked_once(rows.samples), Prior().fitted(model, told)
    report = None if told is None else lambda done: told("pairs for the map", done, len(asked))
    images, prompts = (rows.picture(sample.image) for sample in asked), [sample.prompt for sample in asked]
    how: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": MAP_TOKENS, "progress": report}
    return fit_prior_map(model, images, prompts, prior, **how)


FROM_ROWS: dict[str, Callable[[Any, Any, int, Progress | None], Any]] = {"bank": _learn_bank, "prior_map": _learn_map}


def describe(kind: str, found: Any) -> str:
    """What was learnt, in a few words."""
    if kind == "subspace":
        return describe_prior(found)
    if kind == "bank":
        return f"{len(found)} states of plain answers about {int(found.rows.max()) + 1} pictures"
    if kind == "prior_map":
        return f"{found.count} pairs of states, R2 {found.r2:.3f} of pictures left out; prior: {describe_prior(found.prior)}"
    if kind == "steering":
        return f"{found.counts[0]} true and {found.counts[1]} invented tokens"
    return type(found).__name__


def methods_that_take(kind: str) -> dict[str, str]:
    """Methods of the registry by name, with the setting that holds something of this kind."""
    found = {}
    for name in METHODS.names():
        for setting, need in METHODS.get(name).learnt_settings().items():
            if need.kind == kind:
                found[name] = setting
    return found
