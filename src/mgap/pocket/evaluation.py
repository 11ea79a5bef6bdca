"""Evaluates pocket models on pocket scenes: POPE, AMBER's yes/no questions, captions and odd colours.

Decoding is greedy. Methods are given by name; None is plain decoding. Captions and colours are generated once per method; for
yes/no questions the first word counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mgap.benchmarks.chair.scorer import ChairScore, score_chair
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.pope.scorer import PopeScore, score_pope
from mgap.benchmarks.statistics import Rate, wilson
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.decoding.model import Model
from mgap.io.progress import Progress, report_progress
from mgap.methods.base import Method
from mgap.pocket.benchmark import TEST, ColourQuestion, PocketQuestion, amber, odd_colours, pope, scenes
from mgap.pocket.drawing import COLOURS
from mgap.pocket.language import DESCRIBE, mentions
from mgap.pocket.scenes import Scene, render
from mgap.run.first_words import Encoder, Methods, first_words, refuse_attached, using

Scores = dict[str, dict[str, PopeScore]]  # by split or kind, then by method

AMBER_KINDS = {
    "discriminative-hallucination": "existence",
    "discriminative-attribute-state": "colour",
    "discriminative-attribute-number": "count",
    "discriminative-relation": "relation",
    "relation": "relation",
}
SCENE_ENCODER = Encoder(render)  # of rows with scenes instead of picture names
_COLOUR = re.compile(rf"\b(?:{'|'.join(COLOURS)})\b")


@dataclass(frozen=True)
class PopeAnswers:
    """Yes/no questions, and the first word of every answer by method."""

    questions: list[PocketQuestion]
    words: dict[str, list[str]]  # by method

    def verdicts(self, method: str) -> list[str | None]:
        """yes, no, or None if the word is neither."""
        return [yes_or_no(word) for word in self.words[method]]

    def scores(self) -> dict[str, PopeScore]:
        labels, pictures = [q.label for q in self.questions], [q.scene.seed for q in self.questions]
        return {name: score_pope(labels, self.verdicts(name), pictures) for name in self.words}


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
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Scores:
    """Pocket-POPE scores by split and method."""
    answers = ask_pope(model, methods, first, count, held_out=held_out, batch_size=batch_size, progress=progress)
    return {split: of.scores() for split, of in answers.items()}


def ask_pope(
    model: Model,
    methods: Methods,
    first: int = TEST,
    count: int = 500,
    *,
    held_out: bool = False,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> dict[str, PopeAnswers]:
    """Pocket-POPE's questions with their answers, by split."""
    groups = {split: list(pope(split, first, count, held_out=held_out)) for split in SPLITS}
    return ask_groups(model, groups, methods, batch_size=batch_size, progress=progress)


def evaluate_amber(
    model: Model,
    methods: Methods,
    first: int = TEST,
    count: int = 500,
    *,
    held_out: bool = False,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Scores:
    """Scores of pocket-AMBER's yes/no questions by kind and method. Read the accuracy: for existence the truth is always no."""
    groups = amber_questions(first, count, held_out=held_out)
    answers = ask_groups(model, groups, methods, batch_size=batch_size, progress=progress)
    return {kind: of.scores() for kind, of in answers.items()}


def amber_questions(first: int = TEST, count: int = 500, *, held_out: bool = False) -> dict[str, list[PocketQuestion]]:
    """Pocket-AMBER's yes/no questions by kind."""
    shown = {f"pocket_{scene.seed}.png": scene for scene in scenes(first, count, held_out=held_out)}
    groups: dict[str, list[PocketQuestion]] = {kind: [] for kind in AMBER_KINDS.values()}
    for query, annotation in zip(*amber(first, count, held_out=held_out), strict=True):
        if (kind := AMBER_KINDS.get(str(annotation["type"]))) is not None:
            scene = shown[str(query["image"])]
            groups[kind].append(PocketQuestion(scene, str(query["query"]), str(annotation["truth"]), kind))
    return groups


def evaluate_captions(
    model: Model,
    methods: Methods,
    first: int = TEST,
    count: int = 500,
    *,
    held_out: bool = False,
    max_new_tokens: int = 96,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> dict[str, CaptionScores]:
    """Pocket-CHAIR by method: one caption per scene."""
    shown = list(scenes(first, count, held_out=held_out))
    truths = [scene.names for scene in shown]
    scores = {}
    for name, method in methods.items():
        prompts = [DESCRIBE[0]] * len(shown)
        texts = _generate(model, method, shown, prompts, max_new_tokens, batch_size, _labelled(progress, f"captions, {name}"))
        scores[name] = CaptionScores(score_chair(texts, [mentions(text) for text in texts], truths), texts)
    return scores


def evaluate_odd_colours(
    model: Model,
    methods: Methods,
    first: int = TEST,
    count: int = 4000,
    *,
    held_out: bool = False,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> dict[str, OddColours]:
    """The colour named for things drawn in an unnatural colour, by method."""
    questions = list(odd_colours(first, count, held_out=held_out))
    scores = {}
    for name, method in methods.items():
        label = _labelled(progress, f"odd colours, {name}")
        texts = _generate(model, method, [q.scene for q in questions], [q.text for q in questions], 12, batch_size, label)
        colours = [read_colour(text, question) for text, question in zip(texts, questions, strict=True)]
        usual = sum(colour == question.usual for colour, question in zip(colours, questions, strict=True))
        true = sum(colour == question.true for colour, question in zip(colours, questions, strict=True))
        total = len(questions)
        scores[name] = OddColours(total, wilson(usual, total), wilson(true, total), wilson(total - usual - true, total))
    return scores


def read_colour(text: str, question: ColourQuestion) -> str | None:
    """The first colour in an answer after the thing's name: "the orange" does not make an orange orange."""
    rest = re.sub(rf"^the {question.name}\b", "", text.strip().lower())
    match = _COLOUR.search(rest)
    return None if match is None else match[0]


def ask_groups(
    model: Model,
    groups: Mapping[str, list[PocketQuestion]],
    methods: Methods,
    *,
    batch_size: int = 64,
    encode: Encoder = SCENE_ENCODER,
    progress: Progress | None = None,
) -> dict[str, PopeAnswers]:
    """Answers all groups together, so that shared questions are asked once and scenes drawn once."""
    rows = sorted({(q.scene, q.text): None for group in groups.values() for q in group}, key=lambda row: row[0].seed)
    words = first_words(model, rows, methods, encode, batch_size=batch_size, progress=progress)
    word_of = {name: dict(zip(rows, of, strict=True)) for name, of in words.items()}
    return {
        key: PopeAnswers(group, {name: [of[q.scene, q.text] for q in group] for name, of in word_of.items()})
        for key, group in groups.items()
    }


def _generate(
    model: Model,
    method: Method | None,
    shown: Sequence[Scene],
    prompts: Sequence[str],
    max_new_tokens: int,
    batch_size: int,
    report: Callable[[int, int], None],
) -> list[str]:
    refuse_attached(model)
    texts: list[str] = []
    with using(model, method):
        pictures = [render(scene) for scene in shown]
        for answer in model.answers(pictures, prompts, batch_size=batch_size, max_new_tokens=max_new_tokens):
            texts.append(answer.text)
            report(len(texts), len(prompts))
    return texts


def _labelled(progress: Progress | None, label: str) -> Callable[[int, int], None]:
    return lambda done, total: report_progress(progress, label, done, total)
