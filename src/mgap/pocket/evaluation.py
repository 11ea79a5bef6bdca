"""Pocket models on pocket scenes: POPE, AMBER's yes/no questions, captions and odd colours, plainly and under methods.

Greedy everywhere. Methods are given by name, None being plain decoding. Captions and colours are generated once a method; for
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
DRAWING = Encoder(render)  # scenes instead of names of pictures
_COLOUR = re.compile(rf"\b(?:{'|'.join(COLOURS)})\b")


@dataclass(frozen=True)
class PopeAnswers:
    """Yes/no questions, and the first word of every method's answers."""

    questions: list[PocketQuestion]
    words: dict[str, list[str]]  # by method

    def verdicts(self, method: str) -> list[str | None]:
        """yes, no, or None where the word is neither."""
        return [yes_or_no(word) for word in self.words[method]]

    def scores(self) -> dict[str, PopeScore]:
        labels, pictures = [q.label for q in self.questions], [q.scene.seed for q in self.questions]
        return {name: score_pope(labels, self.verdicts(name), pictures) for name in self.words}


@dataclass(frozen=True)
class CaptionScores:
    """What one method wrote, a caption a scene, and its figures."""

    score: ChairScore
    texts: list[str]


@dataclass(frozen=True)
class OddColours:
    """How the colour of oddly coloured things is answered; the three shares add up to one."""

    questions: int
    usual: Rate  # the colour that such a thing has in nature: what the prior says
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
    """Pocket-POPE by split and method."""
    asked = ask_pope(model, methods, first, count, held_out=held_out, batch_size=batch_size, progress=progress)
    return {split: found.scores() for split, found in asked.items()}


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
    """The questions of pocket-POPE by split, with the answers."""
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
    """Pocket-AMBER's yes/no questions by kind and method: read the accuracy; of existence, the truth is always no."""
    groups = amber_questions(first, count, held_out=held_out)
    asked = ask_groups(model, groups, methods, batch_size=batch_size, progress=progress)
    return {kind: found.scores() for kind, found in asked.items()}


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
    """Pocket-CHAIR by method: one caption a scene."""
    shown = list(scenes(first, count, held_out=held_out))
    truths = [scene.names for scene in shown]
    found = {}
    for name, method in methods.items():
        prompts = [DESCRIBE[0]] * len(shown)
        texts = _generate(model, method, shown, prompts, max_new_tokens, batch_size, _labelled(progress, f"captions, {name}"))
        found[name] = CaptionScores(score_chair(texts, [mentions(text) for text in texts], truths), texts)
    return found


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
    """Which colour is named of things that are drawn in a colour they do not have in nature, by method."""
    asked = list(odd_colours(first, count, held_out=held_out))
    found = {}
    for name, method in methods.items():
        label = _labelled(progress, f"odd colours, {name}")
        texts = _generate(model, method, [q.scene for q in asked], [q.text for q in asked], 12, batch_size, label)
        said = [read_colour(text, question) for text, question in zip(texts, asked, strict=True)]
        usual = sum(colour == question.usual for colour, question in zip(said, asked, strict=True))
        true = sum(colour == question.true for colour, question in zip(said, asked, strict=True))
        total = len(asked)
        found[name] = OddColours(total, wilson(usual, total), wilson(true, total), wilson(total - usual - true, total))
    return found


def read_colour(text: str, question: ColourQuestion) -> str | None:
    """The first colour that an answer names, past the thing itself: an orange is not orange for its name."""
    rest = re.sub(rf"^the {question.name}\b", "", text.strip().lower())
    match = _COLOUR.search(rest)
    return None if match is None else match[0]


def ask_groups(
    model: Model,
    groups: Mapping[str, list[PocketQuestion]],
    methods: Methods,
    *,
    batch_size: int = 64,
    encode: Encoder = DRAWING,
    progress: Progress | None = None,
) -> dict[str, PopeAnswers]:
    """All groups at once, so that a question of several is asked once, and a scene is drawn once."""
    rows = sorted({(q.scene, q.text): None for group in groups.values() for q in group}, key=lambda row: row[0].seed)
    words = first_words(model, rows, methods, encode, batch_size=batch_size, progress=progress)
    answers = {name: dict(zip(rows, said, strict=True)) for name, said in words.items()}
    return {
        key: PopeAnswers(group, {name: [said[q.scene, q.text] for q in group] for name, said in answers.items()})
        for key, group in groups.items()
    }


def _generate(
    model: Model,
    method: Method | None,
    shown: Sequence[Scene],
    prompts: Sequence[str],
    max_new_tokens: int,
    batch_size: int,
    told: Callable[[int, int], None],
) -> list[str]:
    refuse_attached(model)
    texts: list[str] = []
    with using(model, method):
        pictures = [render(scene) for scene in shown]
        for answer in model.answers(pictures, prompts, batch_size=batch_size, max_new_tokens=max_new_tokens):
            texts.append(answer.text)
            told(len(texts), len(prompts))
    return texts


def _labelled(progress: Progress | None, label: str) -> Callable[[int, int], None]:
    return lambda done, total: report_progress(progress, label, done, total)
