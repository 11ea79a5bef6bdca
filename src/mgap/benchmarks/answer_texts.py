"""The texts of answers as they are scored: cut after so many words, and without an unfinished last sentence if that is asked.

A cut, or a limit of tokens, leaves the beginning of a sentence. OPERA's authors drop it before they score captions (issue 30 of
their repository); no published script does. Of LLaVA-1.5's captions cut after 50 words, CHAIRs falls from 20.2 to 14.8 by that
alone. So it is a setting, `unfinished`, and every score of captions names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mgap.benchmarks.tally import CaptionScorer, Scorer, Tally
from mgap.errors import SettingError
from mgap.types import Sample

KEEP, DROP = UNFINISHED = ("keep", "drop")
REMARKS = {
    KEEP: "Unfinished last sentences are kept.",
    DROP: "Unfinished last sentences of answers that the model did not end itself are dropped.",
}
_END = re.compile(r"[.!?][\"')\]}\u00bb\u2019\u201d]?(?!\S)")


def drop_unfinished(text: str) -> str:
    """The text up to the end of its last whole sentence; all of it if it has none.

    A sentence ends after . ! or ? and at most one closing quote or bracket, before white space or the end of the text. So it
    does after an abbreviation.
    """
    text = text.strip()
    ends = [end.end() for end in _END.finditer(text)]
    return text[: ends[-1]] if ends else text


def cut_words(text: str, words: int) -> str:
    """The first `words` words of a text, for comparisons at equal length."""
    return " ".join(text.split()[:words])


def mean_words(texts: Collection[str]) -> float:
    return sum(len(text.split()) for text in texts) / len(texts) if texts else 0.0


@dataclass(frozen=True)
class Dropped:
    """How many captions the setting `drop` changed, and how many it could not."""

    shortened: int  # by an unfinished last sentence
    without_end: int  # of any sentence, and therefore kept whole


@dataclass(frozen=True)
class AnswerTexts:
    """Answers by sample id, and which of them are known to be whole, since the model ended them itself."""

    texts: Mapping[str, str]
    whole: frozenset[str] = frozenset()

    def of(self, samples: Sequence[Sample]) -> AnswerTexts:
        """Only those of these samples."""
        texts = {sample.id: self.texts[sample.id] for sample in samples}
        return AnswerTexts(texts, self.whole.intersection(texts))

    def cut(self, words: int | None) -> AnswerTexts:
        """Each after its first words, no longer whole if it had more; None: uncut."""
        if words is None:
            return self
        whole = frozenset(name for name in self.whole if len(self.texts[name].split()) <= words)
        return AnswerTexts({name: cut_words(text, words) for name, text in self.texts.items()}, whole)

    def scored(self, unfinished: str) -> Mapping[str, str]:
        """Under `drop`, all that are not known to be whole lose an unfinished last sentence."""
        if unfinished == KEEP:
            return self.texts
        return {name: text if name in self.whole else drop_unfinished(text) for name, text in self.texts.items()}

    def dropped(self) -> Dropped:
        """What `drop` does to them."""
        texts = [text.strip() for name, text in self.texts.items() if name not in self.whole]
        return Dropped(sum(drop_unfinished(text) != text for text in texts), sum(not _END.search(text) for text in texts))

    def tally(self, scorer: Scorer, samples: Sequence[Sample]) -> dict[str, Tally]:
        """The scorer's tallies; a scorer of captions is told which are whole."""
        if isinstance(scorer, CaptionScorer):
            return scorer.tally(samples, self.texts, self.whole)
        return scorer.tally(samples, self.texts)


def unfinished_of(scorer: Scorer | None, samples: Sequence[Sample]) -> str:
    """What the scorer does with unfinished last sentences. Refuses `drop` for samples that ask for no caption."""
    if not isinstance(scorer, CaptionScorer):
        return KEEP
    if scorer.unfinished == DROP and not any(scorer.is_caption(sample) for sample in samples):
        raise SettingError("unfinished=drop acts on captions, and only questions are asked: leave it out")
    return scorer.unfinished
