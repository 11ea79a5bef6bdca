"""CHAIR's figures from the objects that captions mention and those in the pictures (Rohrbach et al., 2018).

CHAIRi counts every mention; precision and recall count a class once per caption. All figures are ratios of sums over captions,
not means over captions. Longer captions hallucinate more, so the length is reported with every figure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mgap.benchmarks.answer_texts import KEEP, REMARKS, UNFINISHED, AnswerTexts, cut_words, mean_words
from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.chair.mentions import Finder, Mentions
from mgap.benchmarks.language import find_language
from mgap.benchmarks.statistics import Rate, share, wilson
from mgap.benchmarks.tally import Figure, Tally, by_group, by_picture
from mgap.errors import BenchmarkError, SettingError
from mgap.settings import check_choice
from mgap.types import Sample

COLUMNS = (
    "captions",
    "hallucinated_captions",
    "mentions",
    "hallucinated_mentions",
    "gt_objects",
    "recalled_gt_objects",
    "distinct_generated",
    "tokens",
)
CUTS = (25, 40, 50, 60, 80)


def _ratio(part: str, whole: str, better: str, *, percent: bool = True) -> Figure:
    top, bottom = COLUMNS.index(part), COLUMNS.index(whole)
    return Figure(lambda c: share(c[..., top], c[..., bottom]), lambda c: float(c[..., bottom]), percent, better)


FIGURES = {
    "CHAIRs": _ratio("hallucinated_captions", "captions", "lower"),
    "CHAIRi": _ratio("hallucinated_mentions", "mentions", "lower"),
    "recall": _ratio("recalled_gt_objects", "gt_objects", "higher"),
    "precision": _ratio("recalled_gt_objects", "distinct_generated", "higher"),
    "f1": Figure(lambda c: share(2 * c[..., 5], c[..., 4] + c[..., 6]), lambda c: float(c[..., 4] + c[..., 6])),
    "length": _ratio("tokens", "captions", "", percent=False),
}


@dataclass(frozen=True)
class ChairScorer:
    """Figures by group. A sample's truth lists the classes in its picture."""

    lexicon: Lexicon = field(default_factory=Lexicon.coco, repr=False)
    language: str = "builtin"
    language_data: str | None = None  # folder to build language nltk from, without NLTK's own data
    unfinished: str = KEEP  # or drop: what becomes of a last sentence that is cut off

    def __post_init__(self) -> None:
        check_choice("unfinished", self.unfinished, UNFINISHED)
        if self.language_data is not None and self.language != "nltk":
            raise SettingError(f"language {self.language} needs no data: leave out language_data, or choose nltk")
        self.finder  # noqa: B018  refuses an unavailable language

    @classmethod
    def of(cls, lexicon: Mapping[str, Any], **settings: Any) -> ChairScorer:
        allowed = ("language", "language_data", "unfinished")
        if unknown := sorted(set(settings) - set(allowed)):
            raise SettingError(f"unknown setting {unknown[0]!r} of caption scores: choose from {', '.join(allowed)}")
        return cls(Lexicon.of(lexicon), **settings)

    def settings(self) -> dict[str, Any]:
        """The settings needed to repeat a score."""
        data = {"language_data": self.language_data} if self.language_data else {}
        return {"language": self.language, **data, "unfinished": self.unfinished}

    @cached_property
    def finder(self) -> Finder:
        words = [*self.lexicon.meanings(), *self.lexicon.double_words]
        language = find_language(self.language, words=words, forms=self.lexicon.forms, data=self.language_data)
        return Finder(self.lexicon, language)

    def mentions(self, text: str) -> Mentions:
        """The mentions in one caption."""
        return self.finder.find(text)

    @property
    def remark(self) -> str:
        """Stands below every table."""
        return REMARKS[self.unfinished]

    def is_caption(self, sample: Sample) -> bool:  # noqa: ARG002 - all are
        return True

    def tally(self, samples: Sequence[Sample], texts: Mapping[str, str], whole: Collection[str] = ()) -> dict[str, Tally]:
        if absent := [sample.id for sample in samples if sample.id not in texts]:
            raise BenchmarkError(
                f"{len(absent)} of {len(samples)} samples have no caption, first {absent[0]!r}; describe them first"
            )
        scored = AnswerTexts(texts, frozenset(whole)).scored(self.unfinished)
        return {
            group: tally_mentions(members, [self.mentions(scored[sample.id]) for sample in members])
            for group, members in by_group(samples).items()
        }


def tally_mentions(samples: Sequence[Sample], mentions: Sequence[Mentions]) -> Tally:
    """The tally of captions, given their mentions; a caption is right if it hallucinates nothing."""
    rows = [caption.counts(sample.truth) for sample, caption in zip(samples, mentions, strict=True)]
    pictures, counts = by_picture(samples, rows)
    return Tally(pictures, counts, FIGURES, {sample.id: not row[1] for sample, row in zip(samples, rows, strict=True)})


def by_length(
    scorer: ChairScorer, samples: Sequence[Sample], texts: Mapping[str, str], cuts: Sequence[int] = CUTS
) -> dict[int | None, dict[str, Rate]]:
    """The figures of all captions together, by the number of words that each is cut after; None: not cut."""
    together = [Sample(sample.id, sample.image, sample.prompt, "all", sample.truth) for sample in samples]
    shortened = {
        cut: texts if cut is None else {name: cut_words(text, cut) for name, text in texts.items()} for cut in (*cuts, None)
    }
    return {cut: scorer.tally(together, cut_texts)["all"].rates() for cut, cut_texts in shortened.items()}


@dataclass(frozen=True)
class ChairScore:
    """CHAIRs, CHAIRi and recall, together with the captions' length."""

    captions: int
    chair_s: Rate  # captions with at least one hallucinated mention
    chair_i: Rate  # hallucinated mentions among all mentions
    recall: Rate  # classes in the picture that are mentioned
    words: float  # mean length of a caption

    @classmethod
    def of(cls, tally: Tally, texts: Collection[str]) -> ChairScore:
        """From the tally of these captions."""
        rates, total = tally.rates(), tally.counts.sum(0)
        return cls(
            captions=len(texts),
            chair_s=wilson(int(total[COLUMNS.index("hallucinated_captions")]), len(texts)),
            chair_i=rates["CHAIRi"],
            recall=rates["recall"],
            words=mean_words(texts),
        )
