"""Evaluates pocket models on pocket scenes: POPE, AMBER's yes/no questions, captions and odd colours.

Methods are given by name; None is plain decoding. Everything is answered by `mgap.run.evaluate`; for yes/no questions the first
word counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mgap.benchmarks.chair.scorer import ChairScore
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.pope.scorer import PopeScore
from mgap.benchmarks.statistics import Rate, wilson
from mgap.decoding.model import Model
from mgap.pocket.benchmark import TEST
from mgap.pocket.difficulty import USUAL, Difficulty
from mgap.pocket.drawing import COLOURS
from mgap.pocket.samples import YES_NO_KINDS, amber_yes_no_samples, chair_samples, colour_samples, pope_samples
from mgap.run.evaluate import Evaluation, answer_first_words, answer_in_full
from mgap.run.first_words import Methods
from mgap.types import Sample

Scores = dict[str, dict[str, PopeScore]]  # by split or kind, then by method

COLOUR_TOKENS = 12  # of an answer about a colour, at most
_COLOUR = re.compile(rf"\b(?:{'|'.join(COLOURS)})\b")


@dataclass(frozen=True)
class CaptionScores:
    """One method's captions, one per scene, and their score."""

    score: ChairScore
    texts: list[str]


@dataclass(frozen=True)
class OddColours:
    """Answers about the colour of oddly coloured things; the three shares add up to one."""

    questions: int
    usual: Rate  # its colour in nature: what the prior says
    true: Rate  # the colour in the picture
    other: Rate  # another colour, or none


def evaluate_pope(
    model: Model,
    methods: Methods,
    first: int = TEST,
    count: int = 500,
    *,
    held_out: bool = False,
    difficulty: Difficulty = USUAL,
    **options: Any,
) -> Scores:
    """Pocket-POPE scores by split and method. `options` are those of `answer_first_words`."""
    benchmark = pope_samples(SPLITS, count, first=first, held_out=held_out, difficulty=difficulty)
    return yes_no_scores(answer_first_words(model, benchmark, methods, **options))


def evaluate_amber(
    model: Model,
    methods: Methods,
    first: int = TEST,
    count: int = 500,
    *,
    held_out: bool = False,
    difficulty: Difficulty = USUAL,
    **options: Any,
) -> Scores:
    """Scores of pocket-AMBER's yes/no questions by kind and method. Read the accuracy: for existence the truth is always no."""
    benchmark = amber_yes_no_samples(count, first=first, held_out=held_out, difficulty=difficulty)
    scores = yes_no_scores(answer_first_words(model, benchmark, methods, **options))
    return {kind: scores.get(kind, dict.fromkeys(methods, PopeScore.of(None))) for kind in YES_NO_KINDS.values()}


def yes_no_scores(evaluation: Evaluation) -> Scores:
    """By group, then by method."""
    tallies = {name: evaluation.tallies(name) for name in evaluation.texts}
    groups = dict.fromkeys(sample.group for sample in evaluation.benchmark.samples)
    return {group: {name: PopeScore.of(of[group]) for name, of in tallies.items()} for group in groups}


def evaluate_captions(
    model: Model,
    methods: Methods,
    first: int = TEST,
    count: int = 500,
    *,
    held_out: bool = False,
    difficulty: Difficulty = USUAL,
    max_new_tokens: int = 96,
    **options: Any,
) -> dict[str, CaptionScores]:
    """Pocket-CHAIR by method: one caption per scene. `options` are those of `answer_in_full`."""
    benchmark = chair_samples(count, first=first, held_out=held_out, difficulty=difficulty)
    captions = answer_in_full(model, benchmark, methods, max_new_tokens=max_new_tokens, label="captions", **options)
    scores = {}
    for name, by_scene in captions.texts.items():
        (tally,), texts = captions.tallies(name).values(), list(by_scene.values())
        scores[name] = CaptionScores(ChairScore.of(tally, texts), texts)
    return scores


def evaluate_odd_colours(
    model: Model,
    methods: Methods,
    first: int = TEST,
    count: int = 4000,
    *,
    held_out: bool = False,
    difficulty: Difficulty = USUAL,
    **options: Any,
) -> dict[str, OddColours]:
    """The colour named for things drawn in an unnatural colour, by method."""
    benchmark = colour_samples(count, first=first, held_out=held_out, difficulty=difficulty)
    answers = answer_in_full(model, benchmark, methods, max_new_tokens=COLOUR_TOKENS, label="odd colours", **options)
    return {name: score_colours(benchmark.samples, texts) for name, texts in answers.texts.items()}


def score_colours(samples: Sequence[Sample], texts: Mapping[str, str]) -> OddColours:
    """Which colour each answer names; answers are by sample id."""
    total, said = len(samples), [(read_colour(texts[s.id], s.truth["thing"]), s.truth) for s in samples]
    usual = sum(colour == truth["usual"] for colour, truth in said)
    true = sum(colour == truth["true"] for colour, truth in said)
    return OddColours(total, wilson(usual, total), wilson(true, total), wilson(total - usual - true, total))


def read_colour(text: str, thing: str) -> str | None:
    """The first colour in an answer after the thing's name: "the orange" does not make an orange orange."""
    rest = re.sub(rf"^the {thing}\b", "", text.strip().lower())
    match = _COLOUR.search(rest)
    return None if match is None else match[0]
