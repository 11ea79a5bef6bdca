"""Samples that a method turned from wrong to right, or from right to wrong, to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mgap.reports.scores import Scores
from mgap.types import Sample

SHOWN = 3  # of each effect and method
T = TypeVar("T")


@dataclass(frozen=True)
class Example:
    """One sample as two methods answered it."""

    sample: str
    group: str
    picture: str
    question: str
    truth: str
    before: str
    after: str
    effect: str
    tone: str  # right or wrong


@dataclass(frozen=True)
class Changes:
    """What one method changed, and some of it."""

    label: str
    gained: int
    lost: int
    examples: list[Example]


def changes(scores: Scores) -> list[Changes]:
    """Of each method against the baseline, evenly drawn from all that changed; a method that changed nothing is left out."""
    if scores.run.plan.get("departure"):
        return []  # nothing was answered
    asked = {sample.id: sample for sample in scores.run.samples}
    plain, found = scores.right[scores.baseline], []
    for label, right in scores.right.items():
        gained = [name for name, is_right in right.items() if is_right and not plain[name]]
        lost = [name for name, is_right in right.items() if plain[name] and not is_right]
        examples = [_example(scores, asked[name], label, "corrected", "right") for name in spread(gained)]
        examples += [_example(scores, asked[name], label, "spoilt", "wrong") for name in spread(lost)]
        if examples:
            found.append(Changes(label, len(gained), len(lost), examples))
    return found


def spread(names: Sequence[T], count: int = SHOWN) -> list[T]:
    """So many of them, from the whole range."""
    return [names[place * len(names) // count] for place in range(count)] if len(names) > count else list(names)


def _example(scores: Scores, sample: Sample, label: str, effect: str, tone: str) -> Example:
    before, after = scores.texts[scores.baseline][sample.id], scores.texts[label][sample.id]
    return Example(
        sample.id, sample.group, sample.image, sample.prompt, truth_in_words(sample.truth), before, after, effect, tone
    )


def truth_in_words(truth: Any) -> str:
    """What is true of a sample, in a line."""
    if isinstance(truth, Mapping):
        return "; ".join(f"{name}: {truth_in_words(value)}" for name, value in truth.items())
    return ", ".join(map(str, truth)) if isinstance(truth, list | tuple) else str(truth)
