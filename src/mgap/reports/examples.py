"""Examples to read: samples that a method turned from wrong to right, or from right to wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mgap.reports.scores import Scores
from mgap.types import Sample

SHOWN = 3  # per effect and method
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
    """How many answers one method changed, and examples of them."""

    label: str
    gained: int
    lost: int
    examples: list[Example]


def changes(scores: Scores) -> list[Changes]:
    """Changes of each method against the baseline, with evenly spaced examples; methods that changed nothing are left out."""
    if scores.run.plan.get("departure"):
        return []  # such a run has no answers
    samples = {sample.id: sample for sample in scores.run.samples}
    plain, changed = scores.right[scores.baseline], []
    for label, right in scores.right.items():
        gained = [name for name, is_right in right.items() if is_right and not plain[name]]
        lost = [name for name, is_right in right.items() if plain[name] and not is_right]
        examples = [_example(scores, samples[name], label, "corrected", "right") for name in spread(gained)]
        examples += [_example(scores, samples[name], label, "spoilt", "wrong") for name in spread(lost)]
        if examples:
            changed.append(Changes(label, len(gained), len(lost), examples))
    return changed


def spread(names: Sequence[T], count: int = SHOWN) -> list[T]:
    """At most `count` of them, evenly spaced."""
    return [names[index * len(names) // count] for index in range(count)] if len(names) > count else list(names)


def _example(scores: Scores, sample: Sample, label: str, effect: str, tone: str) -> Example:
    before, after = scores.texts[scores.baseline][sample.id], scores.texts[label][sample.id]
    return Example(
        sample.id, sample.group, sample.image, sample.prompt, truth_in_words(sample.truth), before, after, effect, tone
    )


def truth_in_words(truth: Any) -> str:
    """The ground truth of a sample in one line."""
    if isinstance(truth, Mapping):
        return "; ".join(f"{name}: {truth_in_words(value)}" for name, value in truth.items())
    return ", ".join(map(str, truth)) if isinstance(truth, list | tuple) else str(truth)
