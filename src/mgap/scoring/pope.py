"""POPE's figures over the questions of one split; "yes" is the positive class."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from mgap.errors import SettingError
from mgap.scoring.stats import Counts, Rate, bootstrap, share


@dataclass(frozen=True)
class PopeScore:
    """Shares with 95% intervals from a bootstrap over pictures; an unparsed answer is wrong, and no yes."""

    questions: int
    unparsed: int
    accuracy: Rate
    precision: Rate
    recall: Rate
    f1: Rate
    yes_ratio: Rate  # of the predictions


def score_pope(labels: Sequence[str], verdicts: Sequence[str | None], pictures: Sequence[Hashable]) -> PopeScore:
    """Labels and verdicts are "yes" or "no", a verdict None where the answer said neither."""
    if not len(labels) == len(verdicts) == len(pictures):
        raise SettingError(f"{len(labels)} labels, {len(verdicts)} verdicts and {len(pictures)} pictures: give one of each")
    if wrong := sorted({label for label in labels if label not in ("yes", "no")}):
        raise SettingError(f"label {wrong[0]!r}: a label is 'yes' or 'no'")
    rows = {picture: row for row, picture in enumerate(dict.fromkeys(pictures))}
    groups = np.zeros((len(rows), 5))  # of each picture: asked, yes asked, yes said, yes said rightly, right
    for label, verdict, picture in zip(labels, verdicts, pictures, strict=True):
        is_yes, says_yes = label == "yes", verdict == "yes"
        groups[rows[picture]] += (1, is_yes, says_yes, is_yes and says_yes, verdict == label)
    asked, positives, said = (int(total) for total in groups.sum(0)[:3])
    return PopeScore(
        questions=asked,
        unparsed=sum(verdict is None for verdict in verdicts),
        accuracy=bootstrap(lambda c: share(c[..., 4], c[..., 0]), groups, asked),
        precision=bootstrap(lambda c: share(c[..., 3], c[..., 2]), groups, said),
        recall=bootstrap(lambda c: share(c[..., 3], c[..., 1]), groups, positives),
        f1=bootstrap(_f1, groups, asked),
        yes_ratio=bootstrap(lambda c: share(c[..., 2], c[..., 0]), groups, asked),
    )


def _f1(counts: Counts) -> Counts:
    """2TP / (2TP + FP + FN) = 2TP / (yes said + yes asked)."""
    return share(2 * counts[..., 3], counts[..., 2] + counts[..., 1])
