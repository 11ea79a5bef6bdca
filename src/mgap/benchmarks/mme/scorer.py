"""MME's figures: accuracy, accuracy+ (pictures with both answers right) and their sum in points, by task and over tasks.

A task has 200 points at most. Guessing gets 75, always yes and always no 50, and answers that cannot be read none. An
unparsed answer is wrong; the parser "mme" leaves it out of recall, as the official script does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from mgap.benchmarks.mme.questions import COGNITION, HALLUCINATION, PERCEPTION
from mgap.benchmarks.mme.readers import READERS
from mgap.benchmarks.pope.scorer import FIGURES, WORDS, PopeScorer, tally_verdicts
from mgap.benchmarks.statistics import Counts, share
from mgap.benchmarks.tally import Figure, Tally, by_group
from mgap.benchmarks.yesno_parsers import find_parser
from mgap.errors import BenchmarkError
from mgap.types import Sample

LEVELS = {"object_level": HALLUCINATION[:2], "attribute_level": HALLUCINATION[2:]}
TOTALS = {"hallucination": HALLUCINATION, "perception": PERCEPTION, "cognition": COGNITION}
TASK_POINTS = 200.0
_PICTURES, _BOTH_RIGHT, _WIDTH = 7, 8, 9  # columns after those of `mgap.benchmarks.pope.scorer`, and all of them


def _points(counts: Counts, tasks: Sequence[int] = (0,)) -> Counts:
    """The sum of the tasks' scores; the counts of task i begin at column i * _WIDTH."""
    accuracy, plus = FIGURES["accuracy"].value, ACCURACY_PLUS.value
    blocks = [counts[..., task * _WIDTH : (task + 1) * _WIDTH] for task in tasks]
    return np.sum([100 * accuracy(block) + 100 * plus(block) for block in blocks], axis=0)  # type: ignore[no-any-return]


def _picture_count(counts: Counts, tasks: Sequence[int] = (0,)) -> float:
    return float(sum(counts[task * _WIDTH + _PICTURES] for task in tasks))


def _score_of(tasks: Sequence[int]) -> Figure:
    """The score of these tasks together."""
    value, of = partial(_points, tasks=tasks), partial(_picture_count, tasks=tasks)
    return Figure(value, of, percent=False, full=TASK_POINTS * len(tasks))


ACCURACY_PLUS = Figure(lambda c: share(c[..., _BOTH_RIGHT], c[..., _PICTURES]), _picture_count)
RECALL_OF_PARSED = Figure(lambda c: share(c[..., 0], c[..., 0] + c[..., 3]), lambda c: float(c[0] + c[3]))
TASK_FIGURES = {
    "accuracy": FIGURES["accuracy"],
    "accuracy_plus": ACCURACY_PLUS,
    "score": _score_of((0,)),
    **{name: FIGURES[name] for name in ("yes_ratio", "precision", "recall")},
    "words": WORDS,
}


@dataclass(frozen=True)
class MmeScorer(PopeScorer):
    """Tallies by task, then of every sum whose tasks are all there: hallucination, perception, cognition.

    A picture counts with both of its questions or not at all: where only one is among the samples, it is left out.
    """

    remark: ClassVar[str] = (
        "MME's tasks are small: with 30 pictures, the interval of a task's score reaches about 25 points to either side, and "
        "5 points between two methods can be a single answer."
    )

    def __post_init__(self) -> None:
        find_parser(self.parser, READERS)

    def tally(self, samples: Sequence[Sample], texts: Mapping[str, str]) -> dict[str, Tally]:
        if absent := [sample.id for sample in samples if sample.id not in texts]:
            raise BenchmarkError(
                f"{len(absent)} of {len(samples)} samples have no answer, first {absent[0]!r}; answer them first"
            )
        tasks = {task: self._tally_task(pairs, texts) for task, of in by_group(samples).items() if (pairs := _pairs(of))}
        sums = {name: add_tasks(tasks, of) for name, of in TOTALS.items() if tasks.keys() >= set(of)}
        return {**tasks, **sums}

    def _tally_task(self, samples: Sequence[Sample], texts: Mapping[str, str]) -> Tally:
        parse, answers = find_parser(self.parser, READERS), [texts[sample.id] for sample in samples]
        verdicts = [parse(text, sample.truth) for text, sample in zip(answers, samples, strict=True)]
        tally = tally_verdicts(samples, verdicts, answers)
        both_right = tally.counts[:, 0] + tally.counts[:, 2] == 2
        counts = np.column_stack([tally.counts, np.ones(len(both_right)), both_right])
        figures = {**TASK_FIGURES, "recall": RECALL_OF_PARSED} if self.parser == "mme" else TASK_FIGURES
        return replace(tally, counts=counts, figures=figures)


def add_tasks(tallies: Mapping[str, Tally], tasks: Sequence[str]) -> Tally:
    """One tally of several tasks: the score of each, and their total; of the hallucination subset both levels too."""
    parts = [tallies[task] for task in tasks]
    ends = np.cumsum([0, *(len(part.pictures) for part in parts)])
    counts = np.zeros((ends[-1], len(parts) * _WIDTH))
    for place, part in enumerate(parts):
        counts[ends[place] : ends[place + 1], place * _WIDTH : (place + 1) * _WIDTH] = part.counts
    columns = {**{task: (task,) for task in tasks}, **(LEVELS if tuple(tasks) == HALLUCINATION else {}), "total": tuple(tasks)}
    return Tally(
        pictures=tuple(picture for part in parts for picture in part.pictures),
        counts=counts,
        figures={name: _score_of([tasks.index(task) for task in summed]) for name, summed in columns.items()},
        right={name: is_right for part in parts for name, is_right in part.right.items()},
        unparsed=sum(part.unparsed for part in parts),
    )


def _pairs(samples: Sequence[Sample]) -> list[Sample]:
    """The samples whose picture has both of its questions among them; more than two are refused."""
    counted = Counter(sample.image for sample in samples)
    if wrong := [name for name, count in counted.items() if count > 2]:
        raise BenchmarkError(f"{wrong[0]} has {counted[wrong[0]]} questions, and a picture of MME has two: ask each once")
    return [sample for sample in samples if counted[sample.image] == 2]
