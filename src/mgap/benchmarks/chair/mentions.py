"""Find the classes that a caption mentions, as the published CHAIR scorers do (Rohrbach et al., 2018).

Words are lemmatised, pairs are joined, and `seat` is dropped if there is a `toilet`; then every word in the list of synonyms
counts, including repeats. The published quirks are kept: `men` is no person, `orange` always the fruit, `seated` a chair.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.language import Language


@dataclass(frozen=True)
class Mentions:
    """The mentions in one caption, in order."""

    words: tuple[str, ...]  # as in the list of synonyms
    nodes: tuple[str, ...]  # their classes
    positions: tuple[int, ...]  # in the tokens with pairs joined (HalTrapper, MGAP)
    starts: tuple[int, ...]  # in all tokens (original, OPERA); off after a dropped seat, as published
    tokens: int  # with pairs joined: the length that CHAIR's tables call Len

    def hallucinated(self, truth: Collection[str]) -> list[int]:
        """The indices of the mentions whose class is not in the picture."""
        return [index for index, node in enumerate(self.nodes) if node not in truth]

    def counts(self, truth: Collection[str]) -> tuple[int, ...]:
        """What the caption adds to the columns of `mgap.benchmarks.chair.scorer`."""
        wrong, distinct, present = len(self.hallucinated(truth)), set(self.nodes), set(truth)
        return 1, int(wrong > 0), len(self.nodes), wrong, len(present), len(distinct & present), len(distinct), self.tokens

    def to_json(self, truth: Collection[str]) -> dict[str, Any]:
        """One caption's record, with the names and figures of the published scorers."""
        hallucinated = self.hallucinated(truth)
        _, hallucinates, mentions, _, present, recalled, distinct, _ = self.counts(truth)
        metrics: dict[str, float] = {"CHAIRs": hallucinates, "CHAIRi": len(hallucinated) / mentions if mentions else 0.0}
        metrics["Recall"] = recall = recalled / present if present else 0.0
        if present:
            metrics["Precision"] = precision = recalled / distinct if distinct else 0.0
            metrics["F1"] = 2 * precision * recall / (precision + recall) if recalled else 0.0
        return {
            "words": list(self.words),
            "nodes": list(self.nodes),
            "hallucinated": [[self.words[index], self.nodes[index]] for index in hallucinated],
            "token_positions": list(self.positions),
            "hallucinated_positions": [self.positions[index] for index in hallucinated],
            "hallucinated_positions_original": [self.starts[index] for index in hallucinated],
            "gt": sorted(truth),
            "tokens": self.tokens,
            "metrics": metrics,
        }


class Finder:
    """Finds mentions with a language pipeline and a lexicon."""

    def __init__(self, lexicon: Lexicon, language: Language) -> None:
        self.language, self._pairs, self._meanings = language, lexicon.double_words, lexicon.meanings()

    def find(self, caption: str) -> Mentions:
        merged, starts = self._merge(self.language.lemmas(caption))
        drop_seat = "toilet" in merged and "seat" in merged
        words = [word for word in merged if word != "seat"] if drop_seat else merged  # `starts` stays, as published
        positions = [position for position, word in enumerate(words) if word in self._meanings]
        return Mentions(
            words=tuple(words[position] for position in positions),
            nodes=tuple(self._meanings[words[position]] for position in positions),
            positions=tuple(positions),
            starts=tuple(starts[position] for position in positions),
            tokens=len(merged),
        )

    def classes(self, text: str) -> list[str]:
        """The classes that a text mentions, with repeats."""
        return list(self.find(text).nodes)

    def _merge(self, lemmas: list[str]) -> tuple[list[str], list[int]]:
        """The words with pairs joined, and the position of each in `lemmas`."""
        words: list[str] = []
        starts: list[int] = []
        position = 0
        while position < len(lemmas):
            starts.append(position)
            pair = " ".join(lemmas[position : position + 2])
            words.append(self._pairs.get(pair, lemmas[position]))
            position += 2 if pair in self._pairs else 1
        return words, starts
