"""POPE's figures over the questions of one split; "yes" is the positive class (Li et al., EMNLP 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from mgap.benchmarks.statistics import Counts, Rate, share
from mgap.benchmarks.tally import Figure, Tally, by_group, by_picture
from mgap.benchmarks.yesno_parsers import DEFAULT, find_parser
from mgap.errors import BenchmarkError, SettingError
from mgap.types import Sample

COLUMNS = ("TP", "FP", "TN", "FN", "silent_yes", "silent_no", "words")  # silent: the answer said neither; by label
SAME_POSITIVES = ("random", "popular", "adversarial")  # splits of one dataset, which ask the same yes-questions
_OUTCOMES = {("yes", "yes"): 0, ("no", "yes"): 1, ("no", "no"): 2, ("yes", "no"): 3, ("yes", None): 4, ("no", None): 5}


def question_count(counts: Counts) -> Counts:
    total: Counts = counts[..., :6].sum(-1)
    return total


def positives(counts: Counts) -> Counts:
    return counts[..., 0] + counts[..., 3] + counts[..., 4]


def predicted_yes(counts: Counts) -> Counts:
    return counts[..., 0] + counts[..., 1]


FIGURES = {
    "accuracy": Figure(lambda c: share(c[..., 0] + c[..., 2], question_count(c)), lambda c: float(question_count(c))),
    "precision": Figure(lambda c: share(c[..., 0], predicted_yes(c)), lambda c: float(predicted_yes(c))),
    "recall": Figure(lambda c: share(c[..., 0], positives(c)), lambda c: float(positives(c))),
    "f1": Figure(lambda c: share(2 * c[..., 0], predicted_yes(c) + positives(c)), lambda c: float(question_count(c))),
    "yes_ratio": Figure(lambda c: share(predicted_yes(c), question_count(c)), lambda c: float(question_count(c)), better=""),
}
WORDS = Figure(lambda c: share(c[..., 6], question_count(c)), lambda c: float(question_count(c)), percent=False, better="")


@dataclass(frozen=True)
class PopeScorer:
    """Figures by split. An unparsed answer is wrong and not a yes; precision without any yes is 0 out of 0."""

    parser: str = DEFAULT

    def __post_init__(self) -> None:
        find_parser(self.parser)

    @classmethod
    def of(cls, lexicon: Mapping[str, Any], **settings: Any) -> PopeScorer:  # noqa: ARG003 - yes and no need no lexicon
        allowed = [field.name for field in fields(cls)]
        if unknown := sorted(set(settings) - set(allowed)):
            raise SettingError(f"unknown setting {unknown[0]!r} of yes/no scores: choose from {', '.join(allowed)}")
        return cls(**settings)

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def tally(self, samples: Sequence[Sample], texts: Mapping[str, str]) -> dict[str, Tally]:
        if absent := [sample.id for sample in samples if sample.id not in texts]:
            raise BenchmarkError(
                f"{len(absent)} of {len(samples)} samples have no answer, first {absent[0]!r}; answer them first"
            )
        parser = find_parser(self.parser)
        return {
            group: tally_verdicts(members, [parser(texts[s.id], s.truth) for s in members], [texts[s.id] for s in members])
            for group, members in by_group(samples).items()
        }


def tally_verdicts(samples: Sequence[Sample], verdicts: Sequence[str | None], texts: Sequence[str]) -> Tally:
    """The tally of samples whose truth is yes or no, given the parsed verdicts and the answers' texts."""
    words = np.array([[len(text.split())] for text in texts], dtype=float)
    rows = np.hstack([outcomes([sample.truth for sample in samples], verdicts), words])
    pictures, counts = by_picture(samples, rows.tolist())
    return Tally(
        pictures=pictures,
        counts=counts,
        figures={**FIGURES, "words": WORDS},
        right={sample.id: verdict == sample.truth for sample, verdict in zip(samples, verdicts, strict=True)},
        unparsed=sum(verdict is None for verdict in verdicts),
    )


def outcomes(labels: Sequence[Any], verdicts: Sequence[str | None]) -> Counts:
    """[questions, 6]: a one in the column of each question's outcome."""
    if wrong := [label for label in labels if label not in ("yes", "no")]:
        raise SettingError(f"{len(wrong)} of {len(labels)} labels, {wrong[0]!r} first: a label is 'yes' or 'no'")
    columns = [_OUTCOMES[label, verdict] for label, verdict in zip(labels, verdicts, strict=True)]
    rows: Counts = np.eye(len(_OUTCOMES))[columns] if columns else np.zeros((0, len(_OUTCOMES)))
    return rows


def named_counts(counts: Counts) -> dict[str, int]:
    """TP, FP, TN and FN of summed counts."""
    return {name: int(count) for name, count in zip(COLUMNS[:4], counts, strict=False)}


def unequal_recall(samples: Sequence[Sample], tallies: Mapping[str, Tally]) -> str | None:
    """A warning if splits differ in recall on the yes-questions that all of them ask: impossible without randomness."""
    splits: dict[str, dict[tuple[str, str], bool]] = {split: {} for split in SAME_POSITIVES if split in tallies}
    for sample in samples:
        if sample.group in splits and sample.truth == "yes" and sample.id in (right := tallies[sample.group].right):
            splits[sample.group][sample.image, sample.prompt] = right[sample.id]
    shared = set.intersection(*map(set, splits.values())) if splits else set()
    recalls = {split: sum(right[pair] for pair in shared) / len(shared) for split, right in splits.items() if shared}
    if len(set(recalls.values())) < 2:
        return None
    listed = ", ".join(f"{split} {100 * recall:.2f}" for split, recall in recalls.items())
    return (
        f"recall differs between splits that ask the same yes-questions ({listed}): answers without chance cannot do that, "
        "so look for sampling, or for batches of other shapes"
    )


@dataclass(frozen=True)
class PopeScore:
    """Shares with 95% intervals from a bootstrap over pictures; an unparsed answer is wrong and not a yes."""

    questions: int
    unparsed: int
    accuracy: Rate
    precision: Rate
    recall: Rate
    f1: Rate
    yes_ratio: Rate  # of the predictions

    @classmethod
    def of(cls, tally: Tally | None) -> PopeScore:
        """From the tally of one split; None: nothing was asked."""
        if tally is None:
            return cls(0, 0, **dict.fromkeys(FIGURES, Rate(0.0, 0.0, 1.0, 0)))
        rates = tally.rates()
        return cls(len(tally.right), tally.unparsed, **{name: rates[name] for name in FIGURES})
