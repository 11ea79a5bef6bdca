"""From a caption to the classes that it mentions, as the published CHAIR scorers find them (Rohrbach et al., 2018).

Dictionary forms, pairs of words put together, `seat` dropped beside `toilet`, and what is then in the list of synonyms counts,
repeats and all. Their quirks are kept: `men` is no person, `orange` always the fruit, `seated` a chair.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.language import Language


@dataclass(frozen=True)
class Mentions:
    """What one caption mentions, in its order."""

    words: tuple[str, ...]  # as they are in the list of synonyms
    nodes: tuple[str, ...]  # the classes that they stand for
    positions: tuple[int, ...]  # in the list of tokens with pairs put together (HalTrapper's, MGAP's)
    starts: tuple[int, ...]  # in the list of all tokens (the original's, OPERA's); shifted after a dropped seat, as there
    tokens: int  # with pairs put together: the length that CHAIR's tables call Len

    def invented(self, truth: Collection[str]) -> list[int]:
        """Which of the mentions are of what is not there."""
        return [place for place, node in enumerate(self.nodes) if node not in truth]

    def counts(self, truth: Collection[str]) -> tuple[int, ...]:
        """What the caption adds to the columns of `mgap.benchmarks.chair.scorer`."""
        invented, distinct, there = len(self.invented(truth)), set(self.nodes), set(truth)
        return 1, int(invented > 0), len(self.nodes), invented, len(there), len(distinct & there), len(distinct), self.tokens

    def to_json(self, truth: Collection[str]) -> dict[str, Any]:
        """One caption's line, with the names and the figures of the published scorers."""
        invented = self.invented(truth)
        _, hallucinates, mentions, _, there, recalled, distinct, _ = self.counts(truth)
        metrics: dict[str, float] = {"CHAIRs": hallucinates, "CHAIRi": len(invented) / mentions if mentions else 0.0}
        metrics["Recall"] = recall = recalled / there if there else 0.0
        if there:
            metrics["Precision"] = precision = recalled / distinct if distinct else 0.0
            metrics["F1"] = 2 * precision * recall / (precision + recall) if recalled else 0.0
        return {
            "words": list(self.words),
            "nodes": list(self.nodes),
            "hallucinated": [[self.words[place], self.nodes[place]] for place in invented],
            "token_positions": list(self.positions),
            "hallucinated_positions": [self.positions[place] for place in invented],
            "hallucinated_positions_original": [self.starts[place] for place in invented],
            "gt": sorted(truth),
            "tokens": self.tokens,
            "metrics": metrics,
        }


class Finder:
    """Finds mentions with one pipeline and one lexicon."""

    def __init__(self, lexicon: Lexicon, language: Language) -> None:
        self.language, self._pairs, self._meanings = language, lexicon.double_words, lexicon.meanings()

    def find(self, caption: str) -> Mentions:
        merged, starts = self._merge(self.language.lemmas(caption))
        seated = "toilet" in merged and "seat" in merged
        words = [word for word in merged if word != "seat"] if seated else merged  # `starts` stays, as in the published code
        places = [place for place, word in enumerate(words) if word in self._meanings]
        return Mentions(
            words=tuple(words[place] for place in places),
            nodes=tuple(self._meanings[words[place]] for place in places),
            positions=tuple(places),
            starts=tuple(starts[place] for place in places),
            tokens=len(merged),
        )

    def classes(self, text: str) -> list[str]:
        """The classes that a text mentions, repeats and all."""
        return list(self.find(text).nodes)

    def _merge(self, lemmas: list[str]) -> tuple[list[str], list[int]]:
        """The words with pairs put together, and where each begins."""
        words: list[str] = []
        starts: list[int] = []
        place = 0
        while place < len(lemmas):
            starts.append(place)
            pair = " ".join(lemmas[place : place + 2])
            words.append(self._pairs.get(pair, lemmas[place]))
            place += 2 if pair in self._pairs else 1
        return words, starts
