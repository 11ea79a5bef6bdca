"""Asking a model under several methods, one after the other, and MGAP at other settings without asking again."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mgap.decoding.step_by_step import unfold
from mgap.errors import MgapError, SettingError
from mgap.inspector.columns import DONE, FAILED, OPEN, RUNNING, STOPPED, WAITING, AskedColumns, Column, measure
from mgap.io.prompt_files import check_prompt
from mgap.methods.base import Method
from mgap.methods.mgap import MGAP, PRESETS
from mgap.priors.subspace import Subspace
from mgap.registry import METHODS
from mgap.run.learning import called
from mgap.run.method_plans import VANILLA, read_learnt
from mgap.types import Mode

OURS = MGAP.name
MOST = 6  # methods side by side: as many as have a mark of their own
LONGEST = 2000  # characters of a question: while a model reads one, everybody else waits


@dataclass(frozen=True)
class Knobs:
    """What the sliders and switches of MGAP say."""

    alpha: float = PRESETS["paper"]["alpha"]
    lam: float = PRESETS["paper"]["lam"]
    rank: int = 5
    gate: bool = True
    protect: bool = True

    @classmethod
    def of(cls, method: MGAP) -> Knobs:
        """Where they stand for a method."""
        s = method.settings
        return cls(s.alpha, s.lam, method.subspace.rank, s.gate, s.protect)

    def method(self, prior: Subspace) -> MGAP:
        return MGAP(prior, **self.settings(prior))

    def settings(self, prior: Subspace) -> dict[str, Any]:
        """As MGAP calls them; a rank that the prior does not have is the largest that it has."""
        rank = min(self.rank, prior.rank)
        return {"alpha": self.alpha, "lam": self.lam, "rank": rank, "gate": self.gate, "protect": self.protect}


def offered(given: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Methods by name, with "" or why one cannot be asked here; `given` are settings by method."""
    found = {VANILLA: ""}
    for name in METHODS.names():
        method = METHODS.get(name)
        learnt, own = method.learnt_settings(given.get(name, {})), given.get(name, {})
        kinds = {key: need.kind for key, need in learnt.items() if need.kind != "subspace"}
        fitted = [key for key, need in learnt.items() if need.kind == "subspace"]
        missing = [key for key in (*kinds, *method.needed()) if key not in own and key not in fitted]
        if Mode.STREAM not in method.modes:
            found[name] = f"{name} cannot be streamed (mgap ask --method {name} can answer)"
        elif missing and missing[0] in kinds:
            made = f"mgap fit --for {name} --out DIR, then mgap inspect --set {name}.{missing[0]}=DIR"
            found[name] = f"{name} needs {called(kinds[missing[0]])} ({made})"
        elif missing:
            found[name] = f"{name} needs a setting (mgap inspect --set {name}.{missing[0]}=...)"
        else:
            found[name] = ""
    return found


def check_given(given: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse settings that no method has, before anything is loaded. MGAP's are where the sliders begin."""
    for name, settings in given.items():
        known = [f.name for f in fields(Knobs if name == OURS else METHODS.get(name)) if f.name != "prior"]
        for key in settings:
            if key not in known:
                raise SettingError(f"--set {name}.{key}: choose from {', '.join(f'{name}.{one}' for one in known)}")


def build_column(name: str, prior: Subspace, knobs: Knobs, given: Mapping[str, Any]) -> Column:
    """The method of a column; `given` are its settings; without any MGAP has those of the sliders."""
    if name == VANILLA:
        return Column(name, replace(knobs, alpha=0.0).method(prior))
    if name == OURS and not given:
        return Column(name, knobs.method(prior), knobs.settings(prior))
    method = METHODS.get(name)
    learnt = {key: prior for key, need in method.learnt_settings().items() if need.kind == "subspace"}
    built: Method = method.of(**learnt, **read_learnt(method, given))
    return Column(name, built, dict(given))


def check_question(text: str) -> str:
    """Refuse nothing, and what would keep the model from everybody else for long."""
    if len(check_prompt(text, "the question")) > LONGEST:
        raise SettingError(f"the question has {len(text):,} characters: at most {LONGEST:,} are asked here, so shorten it")
    return text


def check_methods(names: Sequence[str], given: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse what cannot stand side by side."""
    known = offered(given)
    if not names:
        raise SettingError("no method is chosen: choose vanilla, mgap or another")
    for name in names:
        if name not in known:
            raise SettingError(f"no method is called {name!r}: choose from {', '.join(known)}")
        if known[name]:
            raise SettingError(known[name])
    if len(names) > MOST:
        raise SettingError(f"{len(names)} methods are chosen: at most {MOST} can be told apart side by side")


def answer(asked: AskedColumns, places: Sequence[int] | None = None) -> Generator[AskedColumns]:
    """Fill the columns, or those at some places, one after the other: a value a token. One caller at a time has the model."""
    todo = range(len(asked.columns)) if places is None else places
    with asked.loaded.turn:
        for place in todo:
            for asked in _fill(asked, place):  # noqa: B020  the next column goes on from the last value
                yield asked


def _fill(asked: AskedColumns, place: int) -> Iterator[AskedColumns]:
    column = replace(asked.columns[place], state=RUNNING, tokens=(), note="")
    try:
        yield asked.with_column(place, column)
        longest = asked.max_new_tokens
        for token in unfold(asked.loaded.model, column.method, asked.picture, asked.question, max_new_tokens=longest):
            column = replace(column, tokens=(*column.tokens, *measure(asked.loaded, asked.prior, [token])))
            yield asked.with_column(place, column)
        asked.paths.add(m.token for m in column.tokens)
        column = replace(column, state=DONE, note=_cut(asked, column))
    except MgapError as error:  # the other methods can still answer
        column = replace(column, state=FAILED, note=str(error))
    yield asked.with_column(place, column)


def _cut(asked: AskedColumns, column: Column) -> str:
    is_cut = column.tokens and not column.tokens[-1].token.is_end
    return f"Cut off after {asked.max_new_tokens} tokens." if is_cut else ""


def redraw(asked: AskedColumns, knobs: Knobs) -> AskedColumns:
    """MGAP's columns at these settings, as far as states in hand tell; what the model must finish is OPEN.

    Nothing is changed while answers are being made, nor a column that has these settings.
    """
    if any(column.state in (RUNNING, WAITING) for column in asked.columns):
        return asked
    turned = knobs.settings(asked.prior)
    for place, column in enumerate(asked.columns):
        if column.name != OURS or not isinstance(column.method, MGAP):
            continue
        method = replace(column.method, prior=asked.prior, **turned)  # what has no slider stays
        if Knobs.of(method) == Knobs.of(column.method) and method.prior is column.method.prior:
            continue
        found = asked.paths.replay(method, max_new_tokens=asked.max_new_tokens)
        fresh = Column(OURS, method, {**column.settings, **turned}, measure(asked.loaded, asked.prior, found.tokens), OPEN)
        if found.is_whole:
            fresh = replace(fresh, state=DONE, note=_cut(asked, fresh))
        asked = asked.with_column(place, fresh)
    return asked


def unfinished(asked: AskedColumns) -> list[int]:
    """The places of columns that the model has to go on with."""
    return [place for place, column in enumerate(asked.columns) if column.state == OPEN]


def stop(asked: AskedColumns) -> AskedColumns:
    """What was running is stopped, and what was waiting stays empty."""
    columns = tuple(
        replace(column, state=STOPPED, note="Stopped.") if column.state in (RUNNING, WAITING, OPEN) else column
        for column in asked.columns
    )
    return replace(asked, columns=columns)
