"""The tables of docs/engines.md: engines, methods and modes, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgap.integrations.engine_support import ENGINES, TRANSFORMERS, why_refused
from mgap.registry import METHODS
from mgap.types import Mode


def engine_tables() -> str:
    """All of them, in Markdown."""
    return "\n\n".join(("## Engines", _engines(), "## Modes", _modes(), "## Methods", _methods(), "## Why not", _reasons()))


def _engines() -> str:
    rows = []
    for engine in ENGINES:
        names = engine.methods()
        can = "every method" if len(names) == len(METHODS.loaded()) else ", ".join(names)
        rows.append([f"[{engine.name}]({engine.page})", engine.call, can, engine.equals])
    return _table(["engine", "how to ask", "methods", "its answers equal"], rows)


def _modes() -> str:
    """What each engine does with the methods that it has; a number leads to the remark."""
    remarks: list[str] = []
    rows = []
    for mode in Mode:
        cells = []
        for engine in ENGINES:
            support = engine.modes[mode]
            if support.remark:
                remarks.append(f"{engine.name}, {mode.value}: {support.remark}.")
            cells.append(("yes" if support.is_done else "refused") + (f" ({len(remarks)})" if support.remark else ""))
        rows.append([mode.value, *cells])
    listed = "\n".join(f"{number}. {remark}" for number, remark in enumerate(remarks, start=1))
    return f"{_table(['mode', *(engine.name for engine in ENGINES)], rows)}\n\n{listed}"


def _methods() -> str:
    """Every method on transformers models, mode by mode, and the other engines that have it."""
    others = [engine for engine in ENGINES if engine is not TRANSFORMERS]
    rows = []
    for name, method in sorted(METHODS.loaded().items()):
        modes = ["yes" if mode in method.modes else "-" for mode in Mode]
        elsewhere = ", ".join(engine.name for engine in others if not engine.why_not(method))
        rows.append([name, method.seam.value, f"{method.forwards:g}", *modes, elsewhere or "-"])
    return _table(["method", "acts at", "forwards", *(mode.value for mode in Mode), "other engines"], rows)


def _reasons() -> str:
    """What is refused, by reason."""
    refused: dict[tuple[str, str], list[str]] = {}
    for name, method in sorted(METHODS.loaded().items()):
        for mode in Mode:
            if reason := why_refused(method, mode):
                refused.setdefault((f"transformers, {mode.value}", reason), []).append(name)
        for engine in ENGINES:
            if reason := engine.why_not(method):
                refused.setdefault((engine.name, reason), []).append(name)
    rows = sorted([where, reason, ", ".join(names)] for (where, reason), names in refused.items())
    return _table(["where", "why", "methods"], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
