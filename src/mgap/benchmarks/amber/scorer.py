"""AMBER (Wang et al., 2023, arXiv 2311.07397): descriptions of 1,004 pictures and yes/no questions, scored without a judge.

The group "generative" has descriptions; existence, attribute-state, attribute-number, attribute-action and relation have
questions, whose positive class is "no". Tallies give every figure an interval; `official.py` computes what the published scorer
prints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike, fspath
from typing import Any

import numpy as np

from mgap.benchmarks.amber.captions import AmberVocabulary, DescribedPicture, Relation
from mgap.benchmarks.amber.similarity import IDENTICAL, find_similarity
from mgap.benchmarks.amber.yesno import Answered, find_normaliser
from mgap.benchmarks.answer_texts import KEEP, REMARKS, UNFINISHED, AnswerTexts
from mgap.benchmarks.language import Language, find_language
from mgap.benchmarks.statistics import Counts
from mgap.benchmarks.tally import Figure, Tally, by_picture
from mgap.errors import BenchmarkError, SettingError
from mgap.settings import check_choice
from mgap.types import Sample

GENERATIVE = "generative"
ATTRIBUTES = ("attribute-state", "attribute-number", "attribute-action")
QUESTIONS = ("existence", *ATTRIBUTES, "relation")
START = 0.001  # the published scorer starts every denominator with it

Judged = DescribedPicture | Answered


def f1_start(group: str) -> float:
    """The constant that the published scorer adds to precision + recall."""
    return 0.001 if group == "existence" else 0.0001


@dataclass(frozen=True)
class AmberScorer:
    """Scores descriptions and answers. All fields but the benchmark's words are settings."""

    relation: Relation = field(repr=False)
    safe_words: Sequence[str] = field(repr=False)
    language: str = "builtin"  # nltk: as published
    language_data: str | PathLike[str] | None = None  # folder to build language nltk from, without NLTK's own data
    normaliser: str = "first-sentence"
    similarity: str | PathLike[str] | Mapping[str, Any] = IDENTICAL  # see `find_similarity`
    unfinished: str = KEEP  # or drop: what becomes of a description's last sentence that is cut off

    def __post_init__(self) -> None:
        check_choice("unfinished", self.unfinished, UNFINISHED)
        find_normaliser(self.normaliser)
        if self.language_data is not None and self.language != "nltk":
            raise SettingError(f"language {self.language} needs no data: leave out language_data, or choose nltk")
        _ = self._vocabulary, self._language  # refuses unavailable ones now

    @classmethod
    def of(cls, lexicon: Mapping[str, Any], **settings: Any) -> AmberScorer:
        words = ("relation", "safe_words")
        allowed = [f.name for f in fields(cls) if f.name not in words]
        if unknown := sorted(set(settings) - set(allowed)):
            raise SettingError(f"unknown setting {unknown[0]!r} of AMBER's scorer: choose from {', '.join(allowed)}")
        if missing := [name for name in words if name not in lexicon]:
            raise BenchmarkError(f"the lexicon has no {missing[0]}: AMBER is scored with its relation and safe_words")
        return cls(**{name: lexicon[name] for name in words}, **settings)

    def settings(self) -> dict[str, Any]:
        data = {} if self.language_data is None else {"language_data": fspath(self.language_data)}
        rest = {"similarity": self._vocabulary.similar.about(), "unfinished": self.unfinished}
        return {"language": self.language, **data, "normaliser": self.normaliser, **rest}

    @cached_property
    def _vocabulary(self) -> AmberVocabulary:
        return AmberVocabulary(self.relation, frozenset(self.safe_words), find_similarity(self.similarity))

    @cached_property
    def _language(self) -> Language:
        return find_language(self.language, words=self._vocabulary.words, data=self.language_data)

    @property
    def remark(self) -> str:
        """Stands below every table."""
        return REMARKS[self.unfinished]

    def is_caption(self, sample: Sample) -> bool:
        return sample.group == GENERATIVE

    def judge(self, samples: Sequence[Sample], texts: Mapping[str, str], whole: Collection[str] = ()) -> dict[str, Judged]:
        """Judge every sample's text; results by sample id. `drop` leaves descriptions in `whole` as they are."""
        if absent := [sample.id for sample in samples if sample.id not in texts]:
            raise BenchmarkError(f"{len(absent)} samples have no answer, {absent[0]!r} first: score those that have one")
        normalise, judged = find_normaliser(self.normaliser), dict[str, Judged]()
        descriptions = AnswerTexts(texts, frozenset(whole)).scored(self.unfinished)
        for sample in samples:
            if self.is_caption(sample):
                text, truth, hallu = descriptions[sample.id], sample.truth["truth"], sample.truth["hallu"]
                judged[sample.id] = self._vocabulary.judge(self._language.nouns(text), truth, hallu, len(text.split()))
            elif sample.group in QUESTIONS and sample.truth in ("yes", "no"):
                judged[sample.id] = Answered(sample.truth, normalise(texts[sample.id]))
            else:
                raise BenchmarkError(
                    f"sample {sample.id!r} of group {sample.group!r} with truth {sample.truth!r} is not of AMBER: "
                    f"its groups are {GENERATIVE}, {', '.join(QUESTIONS)}, and a question's truth is yes or no"
                )
        return judged

    def tally(self, samples: Sequence[Sample], texts: Mapping[str, str], whole: Collection[str] = ()) -> dict[str, Tally]:
        """Tallies by group; then attribute and discriminative if they pool several groups, and the AMBER score as "amber"."""
        judged = self.judge(samples, texts, whole)
        return {name: _tally(name, parts, samples, judged) for name, parts in _groups(samples)}


def _groups(samples: Sequence[Sample]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The names of the tallies, and the sample groups that each pools."""
    groups = tuple(dict.fromkeys(sample.group for sample in samples))
    questions = tuple(name for name in groups if name in QUESTIONS)
    attributes = tuple(name for name in questions if name in ATTRIBUTES)
    yield from ((name, (name,)) for name in groups)
    if len(attributes) > 1:
        yield "attribute", attributes
    if len({name.partition("-")[0] for name in questions}) > 1:
        yield "discriminative", questions
    if questions and GENERATIVE in groups:
        yield "amber", groups


def _tally(name: str, groups: tuple[str, ...], samples: Sequence[Sample], judged: Mapping[str, Judged]) -> Tally:
    members = [sample for sample in samples if sample.group in groups]
    judgements = [judged[sample.id] for sample in members]
    pictures, counts = by_picture(members, [_row(one) for one in judgements])
    return Tally(
        pictures,
        counts,
        _figures(name),
        {sample.id: one.is_right for sample, one in zip(members, judgements, strict=True)},
        unparsed=sum(isinstance(one, Answered) and not one.is_parsed for one in judgements),
    )


# Columns of descriptions, then of questions; a sample adds 0 to the columns of the other task.
_MENTIONS, _HALLUCINATED, _TRUTH, _COVERED, _HALLU, _MARKED, _TEXTS, _CLEAN, _WORDS = range(9)
_TOTAL, _RIGHT, _NO, _ANSWERED_NO, _ANSWERED_NO_RIGHTLY = range(9, 14)


def _row(one: Judged) -> tuple[int, ...]:
    if isinstance(one, Answered):
        return (*(0,) * 9, *one.row())
    hallucinated, mentions = len(one.hallucinated), len(one.kept)
    return (mentions, hallucinated, one.truth, one.covered, one.hallu, one.marked, 1, int(one.is_right), one.words, *(0,) * 5)


def _figures(group: str) -> dict[str, Figure]:
    """The published scorer's values before rounding; but a share of 0 or 1 is exact, and F1 uses unrounded shares."""
    start = 3 * START if group == "attribute" else START  # attribute sums three denominators
    if group == GENERATIVE:
        return {
            "chair": _figure(_MENTIONS, lambda c: _share(c, _HALLUCINATED, _MENTIONS), better="lower"),
            "cover": _figure(_TRUTH, lambda c: _share(c, _COVERED, _TRUTH)),
            "hal": _figure(_TEXTS, lambda c: 1 - _share(c, _CLEAN, _TEXTS), better="lower"),
            "cog": _figure(_HALLU, lambda c: _share(c, _MARKED, _HALLU), better="lower"),
            "words": Figure(lambda c: c[..., _WORDS] / c[..., _TEXTS], lambda c: float(c[_TEXTS]), percent=False, better=""),
        }
    if group == "amber":
        return {
            "score": _figure(_TEXTS, lambda c: (1 - _share(c, _HALLUCINATED, _MENTIONS) + _f1(c, START, "discriminative")) / 2)
        }
    return {
        "accuracy": _figure(_TOTAL, lambda c: _share(c, _RIGHT, _TOTAL, start)),
        "precision": _figure(_ANSWERED_NO, lambda c: _share(c, _ANSWERED_NO_RIGHTLY, _ANSWERED_NO, start)),
        "recall": _figure(_NO, lambda c: _share(c, _ANSWERED_NO_RIGHTLY, _NO, start)),
        "f1": _figure(_TOTAL, lambda c: _f1(c, start, group)),
    }


def _figure(of: int, value: Callable[[Counts], Counts], better: str = "higher") -> Figure:
    return Figure(value, lambda counts: float(counts[of]), better=better)


def _share(counts: Counts, part: int, whole: int, start: float = START) -> Counts:
    numerator, denominator = counts[..., part], counts[..., whole]
    return np.where((numerator == denominator) & (denominator > 0), 1.0, numerator / (denominator + start))


def _f1(counts: Counts, start: float, group: str) -> Counts:
    p, r = _share(counts, _ANSWERED_NO_RIGHTLY, _ANSWERED_NO, start), _share(counts, _ANSWERED_NO_RIGHTLY, _NO, start)
    return np.where((p == 1) & (r == 1), 1.0, 2 * p * r / (p + r + f1_start(group)))
