"""Is a method's gain on yes/no questions that of a threshold? Each against plain decoding with a constant, at equal recall.

A method that answers yes less often loses recall and gains precision, and so does a constant taken from all margins of yes over
no. For each method of a report the constant is the one with which plain decoding has the method's own number of right yes, on
the same questions. That takes the truth, so the constant is an ideal one. A method that is no more than a threshold does not
differ from it; one that knows more about the picture invents less at the same recall. Equal margins, of which 16 bits give
many, are ranked at random, by a fixed seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.tally import Difference, compare
from mgap.errors import RunError
from mgap.types import Sample
from research.frontier.ceiling import tally_yes
from research.frontier.measures import Sheet
from research.frontier.reporting import Answers
from research.frontier.tables import difference_text


@dataclass(frozen=True)
class EqualRecall:
    """One method on one split, beside a constant with the same recall; shares from 0 to 1."""

    recall: float
    false_yes: float  # of the questions whose truth is no
    false_yes_of_constant: float
    f1: Difference  # the method less the constant


def at_equal_recall(questions: Sequence[Sample], letters: str, margins: Sequence[float]) -> EqualRecall:
    """`letters` are a method's answers, y or other; `margins` are plain decoding's, of yes over no."""
    truth = np.array([sample.truth == "yes" for sample in questions])
    yes = np.array([letter == "y" for letter in letters])
    shuffled = np.random.default_rng(0).permutation(len(questions))
    place = np.empty(len(questions), int)  # 0: the highest margin
    place[shuffled[np.argsort(-np.asarray(margins)[shuffled], kind="stable")]] = np.arange(len(questions))
    hits = int((yes & truth).sum())
    constant = place <= np.sort(place[truth])[hits - 1] if hits else np.zeros_like(yes)
    difference = compare(*(tally_yes(list(questions), one) for one in (yes, constant))).differences["f1"]
    return EqualRecall(
        hits / truth.sum(), (yes & ~truth).sum() / (~truth).sum(), (constant & ~truth).sum() / (~truth).sum(), difference
    )


def compare_with_constants(
    sheet: Sheet, answers: Answers, margins: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, EqualRecall]]:
    """By method, then by split."""
    for split in SPLITS:
        if len(margins[split]) != len(sheet.groups[split]):
            raise RunError(
                f"{len(margins[split])} margins of {len(sheet.groups[split])} {split} questions: measure the ceiling again"
            )
    return {
        name: {s: at_equal_recall(sheet.groups[s], result.told.verdicts[s], margins[s]) for s in SPLITS}
        for name, result in answers.results.items()
    }


def to_json(found: Mapping[str, Mapping[str, EqualRecall]]) -> dict[str, Any]:
    return {name: {split: asdict(one) for split, one in of.items()} for name, of in found.items()}


def table(found: Mapping[str, Mapping[str, EqualRecall]]) -> str:
    """The hardest split as Markdown, in percent; intervals of the difference that leave out 0 are in bold."""
    lines = [
        "# Each method, and a constant with the same recall",
        "",
        f"| method | recall, {SPLITS[-1]} | false yes | of a constant at that recall | F1, less the constant's |",
        "|---|---|---|---|---|",
    ]
    for name, of in found.items():
        one = of[SPLITS[-1]]
        shares = " | ".join(f"{100 * share:.1f}" for share in (one.recall, one.false_yes, one.false_yes_of_constant))
        lines.append(f"| {name} | {shares} | {difference_text(one.f1)} |")
    return "\n".join(lines)
