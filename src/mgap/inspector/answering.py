"""Answers a question under several methods in turn, and replays MGAP at other settings without running the model."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mgap.decoding.step_by_step import step_by_step
from mgap.errors import MgapError, SettingError
from mgap.inspector.columns import DONE, FAILED, OPEN, RUNNING, STOPPED, WAITING, Column, Comparison, measure
from mgap.io.prompt_files import check_prompt
from mgap.methods.base import Method
from mgap.methods.mgap import MGAP, PRESETS
from mgap.priors.subspace import Subspace
from mgap.registry import METHODS
from mgap.run.learning import called
from mgap.run.method_plans import VANILLA, read_learnt
from mgap.types import Mode

OURS = MGAP.name
MAX_COLUMNS = 6  # one per plot marker
MAX_QUESTION_LENGTH = 2000  # characters; while the model reads a question, other users wait


@dataclass(frozen=True)
class Knobs:
    """The values of MGAP's sliders and switches."""

    alpha: float = PRESETS["paper"]["alpha"]
    lam: float = PRESETS["paper"]["lam"]
    rank: int = 5
    gate: bool = True
    protect: bool = True

    @classmethod
    def of(cls, method: MGAP) -> Knobs:
        """The values that a method has."""
        s = method.settings
        return cls(s.alpha, s.lam, method.subspace.rank, s.gate, s.protect)

    def method(self, prior: Subspace) -> MGAP:
        return MGAP(prior, **self.settings(prior))

    def settings(self, prior: Subspace) -> dict[str, Any]:
        """Under MGAP's names; the rank is at most that of the prior."""
        rank = min(self.rank, prior.rank)
        return {"alpha": self.alpha, "lam": self.lam, "rank": rank, "gate": self.gate, "protect": self.protect}


def offered(given: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Every method by name, with "" or the reason it is not offered; `given` has settings by method."""
    refusals = {VANILLA: ""}
    for name, method in sorted(METHODS.loaded().items()):
        learnt, own = method.learnt_settings(given.get(name, {})), given.get(name, {})
        kinds = {key: need.kind for key, need in learnt.items() if need.kind != "subspace"}
        fitted = [key for key, need in learnt.items() if need.kind == "subspace"]
        missing = [key for key in (*kinds, *method.needed()) if key not in own and key not in fitted]
        if Mode.STREAM not in method.modes:
            refusals[name] = f"{name} cannot be streamed, word by word; ask it in a terminal: mgap ask --method {name}"
        elif missing and missing[0] in kinds:
            made = f"mgap fit --for {name} --out DIR, then start mgap inspect --set {name}.{missing[0]}=DIR"
            refusals[name] = f"{name} needs {called(kinds[missing[0]])}, learnt from the model first: {made}"
        elif missing:
            refusals[name] = (
                f"{name} needs its {missing[0]}, which has no usual value: start mgap inspect --set {name}.{missing[0]}=..."
            )
        else:
            refusals[name] = ""
    return refusals | {name: why for name, why in METHODS.plugins().items() if why}


def check_given(given: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse unknown settings before anything is loaded. MGAP's settings are the initial slider values."""
    for name, settings in given.items():
        allowed = [f.name for f in fields(Knobs if name == OURS else METHODS.get(name)) if f.name != "prior"]
        for key in settings:
            if key not in allowed:
                raise SettingError(f"--set {name}.{key}: choose from {', '.join(f'{name}.{one}' for one in allowed)}")


def build_column(name: str, prior: Subspace, knobs: Knobs, given: Mapping[str, Any]) -> Column:
    """A column with its method. `given` has its settings; without any, MGAP takes the sliders'."""
    if name == VANILLA:
        return Column(name, replace(knobs, alpha=0.0).method(prior))
    if name == OURS and not given:
        return Column(name, knobs.method(prior), knobs.settings(prior))
    method = METHODS.get(name)
    learnt = {key: prior for key, need in method.learnt_settings().items() if need.kind == "subspace"}
    built: Method = method.of(**learnt, **read_learnt(method, given))
    return Column(name, built, dict(given))


def check_question(text: str) -> str:
    """Refuse an empty question, and one so long that it would block the model for other users."""
    if len(check_prompt(text, "the question")) > MAX_QUESTION_LENGTH:
        raise SettingError(
            f"the question has {len(text):,} characters: at most {MAX_QUESTION_LENGTH:,} are asked here, so shorten it"
        )
    return text


def check_methods(names: Sequence[str], given: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse no method, unknown ones, ones not offered here, and more than MAX_COLUMNS."""
    refusals = offered(given)
    if not names:
        raise SettingError("no method is chosen: choose vanilla, mgap or another")
    for name in names:
        if name not in refusals:
            raise SettingError(f"no method is called {name!r}: choose from {', '.join(refusals)}")
        if refusals[name]:
            raise SettingError(refusals[name])
    if len(names) > MAX_COLUMNS:
        raise SettingError(f"{len(names)} methods are chosen: at most {MAX_COLUMNS} can be told apart side by side")


def answer(comparison: Comparison, places: Sequence[int] | None = None) -> Generator[Comparison]:
    """Fill all columns, or those at `places`, in turn; yields after every token. Holds the model's lock throughout."""
    todo = range(len(comparison.columns)) if places is None else places
    with comparison.loaded.lock:
        for place in todo:
            for comparison in _fill(comparison, place):  # noqa: B020  each column continues from the last value
                yield comparison


def _fill(comparison: Comparison, place: int) -> Iterator[Comparison]:
    column = replace(comparison.columns[place], state=RUNNING, tokens=(), note="")
    try:
        yield comparison.with_column(place, column)
        for token in step_by_step(
            comparison.loaded.model,
            column.method,
            comparison.picture,
            comparison.question,
            max_new_tokens=comparison.max_new_tokens,
        ):
            column = replace(column, tokens=(*column.tokens, *measure(comparison.loaded, comparison.prior, [token])))
            yield comparison.with_column(place, column)
        comparison.paths.add(m.token for m in column.tokens)
        column = replace(column, state=DONE, note=_cut(comparison, column))
    except MgapError as error:  # the other methods can still answer
        column = replace(column, state=FAILED, note=str(error))
    yield comparison.with_column(place, column)


def _cut(comparison: Comparison, column: Column) -> str:
    is_cut = column.tokens and not column.tokens[-1].token.is_end
    return f"Cut off after {comparison.max_new_tokens} tokens." if is_cut else ""


def redraw(comparison: Comparison, knobs: Knobs) -> Comparison:
    """Replay MGAP's columns at these settings from stored states; a column that the model must finish is OPEN.

    Changes nothing while answers are being generated, and no column that already has these settings.
    """
    if any(column.state in (RUNNING, WAITING) for column in comparison.columns):
        return comparison
    settings = knobs.settings(comparison.prior)
    for place, column in enumerate(comparison.columns):
        if column.name != OURS or not isinstance(column.method, MGAP):
            continue
        method = replace(column.method, prior=comparison.prior, **settings)  # settings without a slider stay
        if Knobs.of(method) == Knobs.of(column.method) and method.prior is column.method.prior:
            continue
        replayed = comparison.paths.replay(method, max_new_tokens=comparison.max_new_tokens)
        tokens = measure(comparison.loaded, comparison.prior, replayed.tokens)
        fresh = Column(OURS, method, {**column.settings, **settings}, tokens, OPEN)
        if replayed.is_whole:
            fresh = replace(fresh, state=DONE, note=_cut(comparison, fresh))
        comparison = comparison.with_column(place, fresh)
    return comparison


def unfinished(comparison: Comparison) -> list[int]:
    """Indices of the columns that the model must continue."""
    return [place for place, column in enumerate(comparison.columns) if column.state == OPEN]


def stop(comparison: Comparison) -> Comparison:
    """Mark running, waiting and open columns as stopped."""
    columns = tuple(
        replace(column, state=STOPPED, note="Stopped.") if column.state in (RUNNING, WAITING, OPEN) else column
        for column in comparison.columns
    )
    return replace(comparison, columns=columns)
