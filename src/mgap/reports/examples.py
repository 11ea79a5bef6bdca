"""Examples to read: samples that a method turned from wrong to right, or from right to wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mgap.errors import MgapError
from mgap.pages.html_page import PagePicture
from mgap.reports.scores import Scores
from mgap.run.seen_pictures import digests_of, see_again
from mgap.types import Sample

SHOWN = 3  # per effect and method
PICTURES = 24  # of one run, at most
SIDE = 160  # pixels of a picture's longer side
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
    thumbnail: PagePicture | None = None
    unseen: str = ""  # why there is no picture


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


def with_pictures(scores: Scores, changed: Sequence[Changes], most: int = PICTURES) -> list[Changes]:
    """The same with pictures, for the first `most` examples; a picture that is not to be had is told in words."""
    digests = digests_of(scores.run, scores.results[scores.baseline].arm) if changed else {}
    left, filled = most, []
    for one in changed:
        examples = []
        for example in one.examples:
            if not left and example.picture:
                examples.append(replace(example, unseen=f"only the first {most} examples have pictures"))
                continue
            examples.append(_with_picture(scores, example, digests) if example.picture else example)
            left -= examples[-1].thumbnail is not None
        filled.append(replace(one, examples=examples))
    return filled


def _with_picture(scores: Scores, example: Example, digests: Mapping[str, str]) -> Example:
    try:
        image = see_again(scores.run, example.picture, digests.get(example.picture))
    except MgapError as error:
        return replace(example, unseen=str(error))
    return replace(example, thumbnail=PagePicture.thumbnail(image, f"The picture {example.picture}", SIDE))


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
