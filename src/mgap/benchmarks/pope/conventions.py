"""POPE's figures exactly as each published scorer computes them, quirks included.

`error` is returned where a project's scorer divides by zero. lmms-eval leaves unparsed answers out of its recall, and its yes
ratio is that of the labels; RePOPE's script leaves them out of every figure. Use these to compare with a paper's tables; report
`PopeScorer`'s figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mgap.benchmarks.pope.scorer import FIGURES, named_counts, outcomes, positives, predicted_yes, question_count
from mgap.benchmarks.statistics import Counts, share
from mgap.benchmarks.yesno_parsers import PARSERS
from mgap.errors import SettingError

Value = Callable[[Counts], Counts]
_RATES: Mapping[str, Value] = {name: figure.value for name, figure in FIGURES.items()}


@dataclass(frozen=True)
class Convention:
    """The figures that a project's scorer prints."""

    rates: Mapping[str, Value]
    counts: bool = True  # also prints TP, FP, TN and FN
    divides: bool = False  # stops with a division by zero if no yes is right; else such a figure is 0
    unanswered: str = ""  # the error with which it stops at a question without an answer, which it has no way to count


def _recall_of_parsed(counts: Counts) -> Counts:
    return share(counts[..., 0], counts[..., 0] + counts[..., 3])


def _f1_of_parsed(counts: Counts) -> Counts:
    return share(2 * counts[..., 0], 2 * counts[..., 0] + counts[..., 1] + counts[..., 3])


def _parsed(counts: Counts) -> Counts:
    total: Counts = counts[..., :4].sum(-1)
    return total


def _without_verdict(counts: Counts) -> Counts:
    """Share of unparsed answers. VCD's own scorer counts labels other than yes and no here; we refuse such labels."""
    return share(counts[..., 4] + counts[..., 5], question_count(counts))


CONVENTIONS = {
    "original": Convention(_RATES, divides=True),
    "llava": Convention(_RATES, divides=True),
    "opera": Convention(_RATES, divides=True),
    "vcd": Convention({**_RATES, "unknown": _without_verdict}, divides=True),
    "code": Convention(_RATES),
    "mgap": Convention({name: _RATES[name] for name in ("accuracy", "precision", "recall", "f1")}, counts=False),
    "vlmevalkit": Convention(_RATES),
    "lmms_eval": Convention(
        {
            "accuracy": _RATES["accuracy"],
            "precision": _RATES["precision"],
            "recall": _recall_of_parsed,
            "f1": _f1_of_parsed,
            "yes_ratio": lambda c: share(positives(c), question_count(c)),
        },
        counts=False,
    ),
    "repope": Convention(
        {
            "accuracy": lambda c: share(c[..., 0] + c[..., 2], _parsed(c)),
            "precision": _RATES["precision"],
            "recall": _recall_of_parsed,
            "f1": _f1_of_parsed,
            "yes_ratio": lambda c: share(predicted_yes(c), _parsed(c)),
        },
        divides=True,
        unanswered=KeyError.__name__,
    ),
}


def score_as(convention: str, labels: Sequence[str], texts: Sequence[str | None]) -> dict[str, Any]:
    """The figures of this project's scorer for these answers; None is a missing answer, which is wrong."""
    if convention not in CONVENTIONS:
        raise SettingError(f"no published scorer {convention!r}: choose from {', '.join(CONVENTIONS)}")
    if len(labels) != len(texts):
        raise SettingError(f"{len(labels)} labels and {len(texts)} answers: give one of each")
    parser = PARSERS[convention]
    verdicts = [None if text is None else parser(text, label) for label, text in zip(labels, texts, strict=True)]
    return figures_as(convention, outcomes(labels, verdicts).sum(0))


def figures_as(convention: str, counts: Counts) -> dict[str, Any]:
    """The same from summed counts, in the columns of `mgap.benchmarks.pope.scorer`."""
    rule = CONVENTIONS[convention]
    if rule.divides and counts[0] == 0:
        return {"error": ZeroDivisionError.__name__}
    figures: dict[str, Any] = named_counts(counts) if rule.counts else {}
    return figures | {name: float(value(counts)) for name, value in rule.rates.items()}
