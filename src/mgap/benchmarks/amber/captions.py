"""AMBER's generative task (Wang et al., 2023): which nouns of a description are in the picture, and which are hallucinated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mgap.benchmarks.amber.similarity import Identical, Similarity
from mgap.errors import BenchmarkError

Relation = Mapping[str, Sequence[str]]  # from an object to its associated words


@dataclass(frozen=True)
class DescribedPicture:
    """One judged description. An object that the annotation lists twice counts twice."""

    nouns: tuple[str, ...]
    kept: tuple[str, ...]  # the mentions: nouns of the vocabulary, with repeats
    hallucinated: tuple[str, ...]  # mentions
    covered: int  # mentioned objects of `truth`
    truth: int  # objects in the picture
    marked: int  # mentioned objects of `hallu`
    hallu: int  # objects that people tend to make up
    words: int

    @property
    def is_right(self) -> bool:
        """Whether nothing is hallucinated."""
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
    """All words that count, and which object each stands for."""

    relation: Relation
    safe_words: Collection[str] = frozenset()
    similar: Similarity = field(default_factory=Identical)

    @cached_property
    def words(self) -> frozenset[str]:
        """The objects and their associated words."""
        return frozenset(self.relation).union(*self.relation.values())

    def entries(self, objects: Sequence[str]) -> list[tuple[str, int]]:
        """Words with the index of their object: the associated words of all objects, then the objects themselves."""
        if unknown := [name for name in objects if name not in self.relation]:
            raise BenchmarkError(f"{unknown[0]!r} is no object of AMBER's relation.json: take both files from one source")
        associated = [(word, index) for index, name in enumerate(objects) for word in self.relation[name]]
        return associated + [(name, index) for index, name in enumerate(objects)]

    def judge(self, nouns: Iterable[str], truth: Sequence[str], hallu: Sequence[str], words: int) -> DescribedPicture:
        """Judge each noun in turn, in the order of the published scorer."""
        nouns = tuple(nouns)
        kept = tuple(noun for noun in nouns if noun in self.words)
        present, tempting = self.entries(truth), self.entries(hallu)
        covered: set[int] = set()
        marked: set[int] = set()
        hallucinated = []
        for word in kept:
            if word in self.safe_words:
                continue
            index = _exact(word, present)
            if index is None:  # a tempting word can still be similar to one of the truth
                marked |= {hit for hit in (_exact(word, tempting), self._similar(word, tempting)) if hit is not None}
                index = self._similar(word, present)
            if index is None:
                hallucinated.append(word)
            else:
                covered.add(index)
        return DescribedPicture(nouns, kept, tuple(hallucinated), len(covered), len(truth), len(marked), len(hallu), words)

    def _similar(self, word: str, entries: Sequence[tuple[str, int]]) -> int | None:
        return next((index for entry, index in entries if self.similar(word, entry)), None)


def _exact(word: str, entries: Sequence[tuple[str, int]]) -> int | None:
    return next((index for entry, index in entries if entry == word), None)
