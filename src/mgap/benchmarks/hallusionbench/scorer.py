"""HallusionBench's figures (Guan et al., CVPR 2024), with intervals: what counts is whether all of a group are right.

    c     1 if the answer is right, or says neither in VS without a picture, where not knowing is right; else 0
    aAcc  questions with c = 1
    fAcc  figures all of whose questions have c = 1; figure 0 of VS, no picture, is none
    qAcc  pairs all of whose members have c = 1; easy pairs: of members with visual_input 0 or 1, hard pairs: with 2

Counted as VLMEvalKit and lmms-eval do, only questions with a picture are there, so that pairs are smaller. A pair or figure
that lacks a member, because it was not asked or has no answer, is not counted. Pairs and figures cross inside a set, so that
the bootstrap draws sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mgap.benchmarks.hallusionbench.questions import CATEGORIES, QuestionId
from mgap.benchmarks.statistics import share
from mgap.benchmarks.tally import Figure, Tally
from mgap.benchmarks.yesno_parsers import REFUSALS_UNREAD, find_parser
from mgap.errors import BenchmarkError, SettingError
from mgap.settings import check_choice
from mgap.types import Sample

COUNTINGS = ("authors", "vlmevalkit")  # all questions; those with a picture
_SETTINGS = ("parser", "counting")


class JudgedAnswer(NamedTuple):
    """How one question was answered."""

    id: str
    label: str
    said: str | None  # yes, no, or None for neither
    visual_input: int

    @property
    def is_right(self) -> bool:
        """c of the definition above."""
        place = QuestionId.of(self.id)
        return self.said == self.label or (self.said is None and place.category == "VS" and place.figure == "0")


def _whole(number: int) -> Figure:
    return _share(2 * number + 1, 2 * number)


def _share(part: int, whole: int, better: str = "higher") -> Figure:
    return Figure(lambda c: share(c[..., part], c[..., whole]), lambda c: float(c[whole]), better=better, over="sets")


# A group of questions counts only as a whole; None: the question is in none.
GROUPS: Mapping[str, Callable[[QuestionId, int], str | None]] = {
    "fAcc": lambda place, _: place.whole_figure,
    "qAcc": lambda place, _: place.pair,
    "easy_pairs": lambda place, shown: place.pair if shown < 2 else None,
    "hard_pairs": lambda place, shown: place.pair if shown == 2 else None,
}
# Columns of the counts: of questions and of each kind of group, how many and how many right; then these.
_SAYS_YES, _SHOWN, _UNCLEAR_SHOWN, _UNSHOWN, _UNCLEAR_UNSHOWN, _COLUMNS = range(10, 16)
_THREE = {"accuracy": _whole(0), "fAcc": _whole(1), "qAcc": _whole(2)}
FIGURES = {
    **_THREE,  # accuracy is aAcc
    "mean_of_three": Figure(
        lambda c: np.mean([figure.value(c) for figure in _THREE.values()], axis=0),
        lambda c: min(figure.of(c) for figure in _THREE.values()),
        over="sets",
    ),
    "easy_pairs": _whole(3),
    "hard_pairs": _whole(4),
    "yes_ratio": _share(_SAYS_YES, 0, better=""),
    "unclear_with_picture": _share(_UNCLEAR_SHOWN, _SHOWN, better=""),
    "unclear_without_picture": _share(_UNCLEAR_UNSHOWN, _UNSHOWN, better=""),
}


@dataclass(frozen=True)
class HallusionBenchScorer:
    """Figures of all questions, of VD and of VS. `counting` is the authors' unless only questions with a picture were asked."""

    visual_input: Mapping[str, int] = field(repr=False)  # of every question of the published file, by id
    pictures: str = "all"
    parser: str = REFUSALS_UNREAD
    counting: str | None = None

    def __post_init__(self) -> None:
        find_parser(self.parser)
        if self.counting is None:
            object.__setattr__(self, "counting", "authors" if self.pictures == "all" else "vlmevalkit")
        check_choice("counting", str(self.counting), COUNTINGS)
        if self.pictures == "only" and self.counting == "authors":
            raise SettingError(
                "counting=authors is of all questions, and this run left out those without a picture: "
                "use counting=vlmevalkit, or ask with pictures all"
            )

    @classmethod
    def of(cls, lexicon: Mapping[str, Any], **settings: Any) -> HallusionBenchScorer:
        if unknown := sorted(set(settings) - set(_SETTINGS)):
            raise SettingError(f"unknown setting {unknown[0]!r} of HallusionBench's scorer: choose from {', '.join(_SETTINGS)}")
        if "visual_input" not in lexicon:
            raise BenchmarkError("the lexicon has no visual_input: HallusionBench is scored with the list of its questions")
        return cls(lexicon["visual_input"], lexicon.get("pictures", "all"), **settings)

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS}

    def judge(self, samples: Sequence[Sample], texts: Mapping[str, str]) -> list[JudgedAnswer]:
        """The verdicts of the samples that this counting has."""
        if absent := [sample.id for sample in samples if sample.id not in texts]:
            raise BenchmarkError(f"{len(absent)} samples have no answer, {absent[0]!r} first: score those that have one")
        if strange := [sample.id for sample in samples if sample.id not in self.visual_input]:
            raise BenchmarkError(f"{len(strange)} samples are none of HallusionBench's, {strange[0]!r} first: leave them out")
        parser = find_parser(self.parser)
        counted = [sample for sample in samples if sample.id in self.counted]
        return [JudgedAnswer(s.id, s.truth, parser(texts[s.id], s.truth), self.visual_input[s.id]) for s in counted]

    def tally(self, samples: Sequence[Sample], texts: Mapping[str, str]) -> dict[str, Tally]:
        """Tallies of "all" questions, then of those categories that there are."""
        verdicts = self.judge(samples, texts)
        groups = {"all": verdicts} | {name: [v for v in verdicts if v.id.startswith(f"{name}/")] for name in CATEGORIES}
        return {name: self.tally_of(members) for name, members in groups.items() if members}

    def tally_of(self, verdicts: Sequence[JudgedAnswer]) -> Tally:
        """The tally of these questions; its units are sets."""
        places = [QuestionId.of(verdict.id) for verdict in verdicts]
        sets = {name: number for number, name in enumerate(dict.fromkeys(place.whole_set for place in places))}
        counts = np.zeros((len(sets), _COLUMNS))
        for place, verdict in zip(places, verdicts, strict=True):
            row, unread = counts[sets[place.whole_set]], verdict.said is None
            row[[0, 1, _SAYS_YES]] += 1, verdict.is_right, verdict.said == "yes"
            row[[_SHOWN, _UNCLEAR_SHOWN] if verdict.visual_input else [_UNSHOWN, _UNCLEAR_UNSHOWN]] += 1, unread
        for column, kind in enumerate(GROUPS, start=1):
            for name, is_right in self.wholes(verdicts, kind).items():
                counts[sets["/".join(name.split("/")[:3])], [2 * column, 2 * column + 1]] += 1, is_right
        return Tally(
            pictures=tuple(sets),
            counts=counts,
            figures=FIGURES,
            right={verdict.id: verdict.is_right for verdict in verdicts},
            unparsed=sum(verdict.said is None for verdict in verdicts),
            pairs=self.wholes(verdicts, "qAcc"),
        )

    def wholes(self, verdicts: Sequence[JudgedAnswer], kind: str) -> dict[str, bool]:
        """The groups of one kind that are whole, and whether all of each are right."""
        found = _members(verdicts, kind)
        return {name: all(rights) for name, rights in found.items() if len(rights) == self._sizes[kind][name]}

    def incomplete(self, verdicts: Sequence[JudgedAnswer], kind: str) -> int:
        """How many groups of one kind are not counted, as they lack a member."""
        return len(_members(verdicts, kind)) - len(self.wholes(verdicts, kind))

    @cached_property
    def counted(self) -> dict[str, int]:
        """The questions of the file that this counting has, with their visual input."""
        return {name: shown for name, shown in self.visual_input.items() if shown or self.counting == "authors"}

    @cached_property
    def _sizes(self) -> dict[str, Counter[str]]:
        """How many members each group has, by kind."""
        placed = [(QuestionId.of(name), shown) for name, shown in self.counted.items()]
        names = {kind: [of(place, shown) for place, shown in placed] for kind, of in GROUPS.items()}
        return {kind: Counter(name for name in found if name is not None) for kind, found in names.items()}


def _members(verdicts: Sequence[JudgedAnswer], kind: str) -> dict[str, list[bool]]:
    """The groups of one kind, and which of their members are right."""
    found: dict[str, list[bool]] = {}
    for verdict in verdicts:
        if (name := GROUPS[kind](QuestionId.of(verdict.id), verdict.visual_input)) is not None:
            found.setdefault(name, []).append(verdict.is_right)
    return found
