"""Where to cut a baseline's captions, so that they are as long as a method's, or recall as much.

What a method gains by saying less is gone there. Lengths and recalls are those of the captions as they are scored: cut first,
then without an unfinished last sentence if that is dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mgap.benchmarks.answer_texts import AnswerTexts, mean_words, unfinished_of
from mgap.benchmarks.tally import Scorer, Tally
from mgap.errors import SettingError
from mgap.types import Sample

_RECALLS = ("recall", "cover")  # CHAIR's name, and AMBER's


@dataclass(frozen=True)
class CaptionCuts:
    """A baseline's captions, to be cut. A cut is a number of words; None: uncut, as they are no longer or recall no more."""

    scorer: Scorer
    samples: Sequence[Sample]
    captions: AnswerTexts

    def to_length(self, other: AnswerTexts) -> int | None:
        """The cut at which their mean length comes nearest to the other captions'."""
        unfinished = unfinished_of(self.scorer, self.samples)

        def length(captions: AnswerTexts) -> float:
            return mean_words(captions.scored(unfinished).values())

        return self._nearest(length(other), length)

    def to_recall(self, other: Mapping[str, Tally]) -> int | None:
        """The cut at which their recall comes nearest to the other captions', whose tallies these are."""
        return self._nearest(_recall(other), lambda captions: _recall(captions.tally(self.scorer, self.samples)))

    def tally(self, words: int | None) -> dict[str, Tally]:
        """The tallies of the cut captions."""
        return self.captions.cut(words).tally(self.scorer, self.samples)

    def _nearest(self, target: float, measure: Callable[[AnswerTexts], float]) -> int | None:
        """Found by halving, since the measure grows with the words; the fewest words of those that are equally near."""
        if measure(self.captions) <= target:
            return None

        @cache
        def at(words: int) -> float:
            return measure(self.captions.cut(words))

        longest = max(len(text.split()) for text in self.captions.texts.values())
        reaching = 1 + bisect_left(range(1, longest + 1), target, key=at)
        nearest = min((each for each in (reaching - 1, reaching) if each), key=lambda each: abs(at(each) - target))
        while nearest > 1 and at(nearest - 1) == at(nearest):
            nearest -= 1
        return nearest


def _recall(tallies: Mapping[str, Tally]) -> float:
    """The share of what is in the pictures that the captions of all groups mention."""
    figures = next(iter(tallies.values())).figures
    name = next((name for name in _RECALLS if name in figures), None)
    if name is None:
        raise SettingError(f"equal recall needs the figure {' or '.join(_RECALLS)}; here there are {', '.join(figures)}")
    return float(figures[name].value(sum(tally.counts.sum(0) for tally in tallies.values())))
