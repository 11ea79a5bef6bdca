"""What methods learn from a model: read from a folder, learnt where possible, or refused before the model is loaded.

A prior is learnt from prompts alone, for any model. The other kinds need pictures: drawn ones for an embedded model, the user's
for any other (`mgap fit --for METHOD --images FOLDER --questions FILE`; a null space takes `--pairs FILE`, true and false
captions). Steering vectors need captions with labelled words, which only drawn scenes provide.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mgap.errors import SettingError
from mgap.io.images import open_in_turn
from mgap.io.progress import Progress
from mgap.io.regular_files import inside
from mgap.priors.prior_plan import Prior, describe_prior
from mgap.registry import LEARNT, METHODS, POCKET_LEARNERS, POCKET_MODELS

if TYPE_CHECKING:
    from mgap.benchmarks.base import Benchmark
    from mgap.decoding.model import Model
    from mgap.priors.bank import Bank
    from mgap.priors.null_space import CaptionPair, NullSpace
    from mgap.priors.prior_map import PriorMap

CALLED = {
    "subspace": "a prior",
    "prior_map": "a prior map",
    "steering": "steering vectors",
    "bank": "a bank of plain states",
    "null_space": "a null space",
}
BANK_TOKENS, MAP_TOKENS = 96, 32  # longest plain answers
LABELLED = (
    "mgap.Steering.fit(model, captions).save(DIR) in Python, with captions of mgap.priors.steering.Caption whose pieces are "
    "labelled true or invented (docs/methods/asd.md)"
)


def called(kind: str) -> str:
    """The kind in words, with an article."""
    return CALLED.get(kind, f"a {kind}")


def kinds_in(place: str) -> list[str] | None:
    """The kinds saved in a folder. None if there is no such folder: it may be a hub repository."""
    if not os.path.isdir(place):
        return None
    return [kind for kind in LEARNT.names() if (Path(place) / f"{kind}.json").is_file()]


def can_learn(kind: str, model: str) -> bool:
    """Whether this kind can be learnt from the named model alone."""
    return kind == "subspace" or (model in POCKET_MODELS and kind in POCKET_LEARNERS)


def refuse_unlearnt(method: str, setting: str, kind: str, model: str) -> None:
    """Raise if a setting needs something that cannot be learnt here; the message names the command that makes it."""
    if can_learn(kind, model):
        return
    raise SettingError(
        f"{method} needs {setting}, {called(kind)} of {model}, and none is given: {_how_to_make(method, kind, model)}, "
        "then give --prior DIR"
    )


def _how_to_make(method: str, kind: str, model: str) -> str:
    if kind in ("bank", "prior_map"):
        return f"make one with `mgap fit --for {method} --model {model} --images FOLDER --questions FILE --out DIR`"
    if kind == "null_space":
        return f"make one with `mgap fit --for {method} --model {model} --images FOLDER --pairs FILE --out DIR`"
    if kind == "steering":
        return f"make them with {LABELLED}"
    return f"make one in Python with {LEARNT.get(kind).__name__}"


def learn(kind: str, model: Model, *, rows: Any = None, progress: Progress | None = None, **how: Any) -> Any:
    """Learn it afresh: from the user's pictures (`rows`, as FROM_ROWS reads them), or else from prompts or drawn scenes.

    `how` are options of what learns it, such as batch_size.
    """
    if kind == "subspace":
        return Prior().fit(model, progress, **how)
    if rows is not None:
        return FROM_ROWS[kind].learn(model, rows, progress, **how)
    return POCKET_LEARNERS.get(kind)(model, progress=progress, **how)


def learnt(kind: str, model: Model, folder: Path | None, progress: Progress | None = None) -> Any:
    """Read it from the run's folder or the cache; otherwise learn it and save it in both."""
    from mgap.priors.learnt_cache import through_cache

    place = None if folder is None else folder / kind
    if place is not None and (place / f"{kind}.json").is_file():
        return LEARNT.get(kind).load(place)
    found = through_cache(kind, {"from": "pocket"}, model, lambda: learn(kind, model, progress=progress))
    if folder is not None:
        found.save(inside(folder, kind))
    return found


def _learn_bank(model: Model, rows: Benchmark, progress: Progress | None, batch_size: int = 8) -> Bank:
    from mgap.benchmarks.base import distinct_questions
    from mgap.priors.bank import Bank

    samples = distinct_questions(rows.samples)
    report = None if progress is None else lambda done: progress("states of plain answers", done, len(samples))
    questions = [(sample.image, sample.prompt) for sample in samples]
    how: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": BANK_TOKENS, "progress": report}
    return Bank.collect_by_picture(model, questions, rows.picture, **how)


def _learn_map(model: Model, rows: Benchmark, progress: Progress | None, batch_size: int = 8) -> PriorMap:
    from mgap.benchmarks.base import distinct_questions
    from mgap.decoding.prior_pairs import fit_prior_map

    samples, prior = distinct_questions(rows.samples), Prior().fitted(model, progress)
    report = None if progress is None else lambda done: progress("pairs for the map", done, len(samples))
    images, prompts = open_in_turn((s.image for s in samples), rows.picture), [s.prompt for s in samples]
    how: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": MAP_TOKENS, "progress": report}
    return fit_prior_map(model, images, prompts, prior, **how)


def _learn_null_space(model: Model, pairs: list[CaptionPair], progress: Progress | None, **how: Any) -> NullSpace:
    from mgap.priors.null_space import NullSpace

    report = None if progress is None else lambda done: progress("pairs of captions", done, len(pairs))
    return NullSpace.fit(model, pairs, progress=report, **how)


def _read_questions(path: str, images: str | None) -> tuple[Benchmark, Sequence[str]]:
    from mgap.benchmarks.own import read_own

    rows = read_own(path, images, has_labels=False)
    return rows, rows.notes


def _read_pairs(path: str, images: str | None) -> tuple[list[CaptionPair], Sequence[str]]:
    from mgap.benchmarks.caption_pairs import read_caption_pairs

    return read_caption_pairs(path, images)


class FileLearner(NamedTuple):
    """How a kind is learnt from a user's own file."""

    option: str  # of `mgap fit`, which names the file
    read: Callable[[str, str | None], tuple[Any, Sequence[str]]]  # from the file and the pictures' folder: rows, and notes
    learn: Callable[..., Any]


FROM_ROWS = {
    "bank": FileLearner("questions", _read_questions, _learn_bank),
    "prior_map": FileLearner("questions", _read_questions, _learn_map),
    "null_space": FileLearner("pairs", _read_pairs, _learn_null_space),
}


def describe(kind: str, learnt: Any) -> str:
    """What was learnt, in a few words."""
    if kind == "subspace":
        return describe_prior(learnt)
    if kind == "bank":
        return f"{len(learnt)} states of plain answers about {int(learnt.rows.max()) + 1} pictures"
    if kind == "prior_map":
        return f"{learnt.count} pairs of states, R2 {learnt.r2:.3f} of pictures left out; prior: {describe_prior(learnt.prior)}"
    if kind == "null_space":
        where = f"blocks {learnt.blocks[0]} to {learnt.blocks[-1]} of {learnt.depth}"
        return f"rank {learnt.rank} in {where}, of {learnt.count} pairs of captions"
    if kind == "steering":
        return f"{learnt.counts[0]} true and {learnt.counts[1]} invented tokens"
    return type(learnt).__name__


def methods_that_take(kind: str) -> dict[str, str]:
    """The methods that take this kind, each with the setting that holds it."""
    settings = {}
    for name, method in sorted(METHODS.loaded().items()):
        for setting, need in method.learnt_settings().items():
            if need.kind == kind:
                settings[name] = setting
    return settings
