"""AMBER's generative task (Wang et al., 2023): which of a description's nouns are in the picture, and which are invented."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mgap.benchmarks.amber.similarity import Identical, Similarity
from mgap.errors import BenchmarkError

Relation = Mapping[str, Sequence[str]]  # an object's associated words


@dataclass(frozen=True)
class DescribedPicture:
    """What one description says about one picture. The lists of objects may name one twice, and then it counts twice."""

    nouns: tuple[str, ...]  # all of them
    kept: tuple[str, ...]  # the mentions: those of the vocabulary, repeats kept
    hallucinated: tuple[str, ...]  # of these
    covered: int  # objects of the truth that are mentioned
    truth: int
    marked: int  # objects that people tend to make up, and that are mentioned
    hallu: int
    words: int

    @property
    def is_right(self) -> bool:
        """Whether nothing is invented."""
        return not self.hallucinated

    def official(self) -> dict[str, Any]:
        """The counters of the published scorer."""
        return {
            "nouns": list(self.nouns),
            "kept": list(self.kept),
            "chair_score": len(self.hallucinated),
            "chair_num": len(self.kept),
            "cover_score": self.covered,
            "cover_num": self.truth,
            "cog_score": self.marked,
            "cog_num": self.hallu,
            "clean": int(self.is_right),
            "hallucinated": list(self.hallucinated),
        }


@dataclass(frozen=True)
class AmberVocabulary:
    """All words that count, and what stands for what."""

    relation: Relation
    safe_words: Collection[str] = frozenset()
    similar: Similarity = field(default_factory=Identical)

    @cached_property
    def words(self) -> frozenset[str]:
        """The objects and their associated words."""
        return frozenset(self.relation).union(*self.relation.values())

    def entries(self, objects: Sequence[str]) -> list[tuple[str, int]]:
        """Words with the place of the object that each stands for: the associated words of all objects, then the objects."""
        if unknown := [name for name in objects if name not in self.relation]:
            raise BenchmarkError(f"{unknown[0]!r} is no object of AMBER's relation.json: take both files from one source")
        associated = [(word, place) for place, name in enumerate(objects) for word in self.relation[name]]
        return associated + [(name, place) for place, name in enumerate(objects)]

    def judge(self, nouns: Iterable[str], truth: Sequence[str], hallu: Sequence[str], words: int) -> DescribedPicture:
        """Each noun in turn, in the order of the published scorer."""
        nouns = tuple(nouns)
        kept = tuple(noun for noun in nouns if noun in self.words)
        safe, tempting = self.entries(truth), self.entries(hallu)
        covered: set[int] = set()
        marked: set[int] = set()
        hallucinated = []
        for word in kept:
            if word in self.safe_words:
                continue
            place = _exact(word, safe)
            if place is None:  # a tempting word can still be near to one of the truth
                marked |= {place for place in (_exact(word, tempting), self._near(word, tempting)) if place is not None}
                place = self._near(word, safe)
            if place is None:
                hallucinated.append(word)
            else:
                covered.add(place)
        return DescribedPicture(nouns, kept, tuple(hallucinated), len(covered), len(truth), len(marked), len(hallu), words)

    def _near(self, word: str, entries: Sequence[tuple[str, int]]) -> int | None:
        return next((place for entry, place in entries if self.similar(word, entry)), None)


def _exact(word: str, entries: Sequence[tuple[str, int]]) -> int | None:
    return next((place for entry, place in entries if entry == word), None)
