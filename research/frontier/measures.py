"""One method's answers about many scenes, stored per question and per caption, so that methods can be paired.

Yes/no questions count by the first word. Captions are greedy (except for methods that search), up to
MAX_ANSWER_TOKENS tokens. The state that a word is decoded from has departed if its d_k exceeds tau of the plain states of
`Judges`; a method that does not decode from a single state has no departures. What captions cost is in pricing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mgap.backbones.asked_rows import asking
from mgap.benchmarks.base import Benchmark
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.pope.scorer import tally_verdicts
from mgap.benchmarks.statistics import Counts, Rate, bootstrap, share
from mgap.benchmarks.tally import Tally, by_group, by_picture
from mgap.decoding.answer_states import answer_states
from mgap.decoding.effective_states import first_states
from mgap.decoding.generate import end_ids, generate, until_end
from mgap.decoding.model import Model
from mgap.errors import CorruptFile
from mgap.io.progress import Progress, report_progress
from mgap.methods.base import Method
from mgap.methods.kinds.blind_branch import BlindMethod
from mgap.pocket.difficulty import USUAL, Difficulty
from mgap.pocket.evaluation import COLOUR_TOKENS, OddColours, score_colours
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS
from mgap.pocket.samples import amber_yes_no_samples, chair_samples, colour_samples, pope_samples
from mgap.priors.manifold import Manifold
from mgap.run.evaluate import Evaluation, answer_first_words
from mgap.run.first_words import Encode, Methods, Row, asked_in, encode_rows, using
from mgap.types import Decoding, Sample
from research.frontier.pricing import Price

HARDEST = SPLITS[-1]
POPE, HELD_OUT, AMBER = "", "held-out ", "amber "  # prefixes of the names of groups
NEITHER = "-"  # the letter of a first word that is neither yes nor no
_LETTERS = {"yes": "y", "no": "n", None: NEITHER}
_VERDICTS = {letter: verdict for verdict, letter in _LETTERS.items()}


@dataclass(frozen=True)
class Sheet:
    """The questions: yes/no questions, the scenes to describe, and questions about odd colours."""

    asked: dict[str, Benchmark]  # by the prefix of their groups' names
    described: Benchmark
    coloured: Benchmark | None = None

    @cached_property
    def groups(self) -> dict[str, list[Sample]]:
        """Yes/no questions by the name of their group."""
        by_prefix = {prefix: by_group(benchmark.samples) for prefix, benchmark in self.asked.items()}
        return {prefix + group: samples for prefix, of in by_prefix.items() for group, samples in of.items()}

    @property
    def hardest(self) -> Benchmark:
        return replace(self.asked[POPE], samples=tuple(self.groups[HARDEST]))

    @classmethod
    def of(
        cls,
        first: int,
        *,
        scenes: int,
        captions: int,
        held_out: int = 0,
        amber: int = 0,
        colours: int = 0,
        difficulty: Difficulty = USUAL,
    ) -> Sheet:
        """About scenes from seed `first` on: how many for each use. `colours` are searched for oddly coloured things."""
        shown: dict[str, Any] = {"first": first, "difficulty": difficulty}
        asked = {POPE: pope_samples(SPLITS, scenes, **shown)}
        if held_out:
            asked[HELD_OUT] = pope_samples(SPLITS, held_out, held_out=True, **shown)
        if amber:
            asked[AMBER] = amber_yes_no_samples(amber, **shown)
        return cls(asked, chair_samples(captions, **shown), colour_samples(colours, **shown) if colours else None)


@dataclass(frozen=True)
class SceneCaptions:
    """Captions, one per scene, with their tokens and departures."""

    texts: list[str]
    tokens: list[int]  # per caption, including the end token
    departed: list[int] | None  # per caption, tokens decoded from a departed state; None: no single state


@dataclass(frozen=True)
class SheetAnswers:
    """One method's answers to a sheet. Figures need no model beyond this."""

    verdicts: dict[str, str]  # by group, a letter per question: y, n, or - if the first word was neither
    described: SceneCaptions
    departed_first: list[int] | None  # 1 for each question of the hardest split whose first state has departed
    price: Price | None = None  # None: not measured
    colours: list[str] | None = None  # answers to the questions about odd colours; None: not asked

    def tally(self, sheet: Sheet, group: str) -> Tally:
        """POPE's tally of one group of questions."""
        questions = sheet.groups[group]
        if len(questions) != len(self.verdicts[group]):
            raise CorruptFile(f"{len(self.verdicts[group])} answers to {len(questions)} {group} questions: measure again")
        return tally_verdicts(questions, [_VERDICTS[letter] for letter in self.verdicts[group]], self.verdicts[group])

    def tally_captions(self, sheet: Sheet) -> Tally:
        """CHAIR's tally of the captions."""
        texts, samples = self.described.texts, sheet.described.samples
        if len(texts) != len(samples):
            raise CorruptFile(f"{len(texts)} captions of {len(samples)} scenes: measure again")
        evaluation = Evaluation(sheet.described, {"": {s.id: text for s, text in zip(samples, texts, strict=True)}})
        (tally,) = evaluation.tallies("").values()
        return tally

    def score_colours(self, sheet: Sheet) -> OddColours | None:
        """The colours named; None: not asked."""
        if self.colours is None or sheet.coloured is None:
            return None
        samples = sheet.coloured.samples
        if len(self.colours) != len(samples):
            raise CorruptFile(f"{len(self.colours)} answers to {len(samples)} questions about colours: measure again")
        return score_colours(samples, {s.id: text for s, text in zip(samples, self.colours, strict=True)})

    def first_departures(self, sheet: Sheet) -> Rate | None:
        """The share of departed first states, with an interval from a bootstrap over scenes."""
        if self.departed_first is None:
            return None
        return _rate(np.array([[hit, 1.0] for hit in self.departed_first]), sheet.groups[HARDEST])

    def caption_departures(self, sheet: Sheet) -> Rate | None:
        """The same for all tokens of captions."""
        if self.described.departed is None:
            return None
        rows = np.column_stack([self.described.departed, self.described.tokens]).astype(float)
        return _rate(rows, sheet.described.samples)

    def amber(self, sheet: Sheet) -> Rate:
        """AMBER's accuracy, averaged over its kinds; the sheet must have its questions."""
        kinds = [group for group, questions in sheet.groups.items() if questions and group.startswith(AMBER)]
        rows, samples = [], []
        for place, kind in enumerate(kinds):
            for sample, letter in zip(sheet.groups[kind], self.verdicts[kind], strict=True):
                row = np.zeros(2 * len(kinds))
                row[2 * place : 2 * place + 2] = _VERDICTS[letter] == sample.truth, 1.0
                rows.append(row)
                samples.append(sample)
        return _rate(np.array(rows), samples)


def _rate(rows: Counts, samples: Sequence[Sample]) -> Rate:
    """The mean of shares, bootstrapped over scenes; each question or caption adds a row of pairs (part, whole)."""
    _, groups = by_picture(samples, rows.tolist())

    def mean(counts: Counts) -> Counts:
        shares: Counts = share(counts[..., 0::2], counts[..., 1::2]).mean(-1)
        return shares

    return bootstrap(mean, groups, round(float(groups[:, 1::2].sum())))


def ask(
    model: Model,
    sheet: Sheet,
    methods: Methods,
    *,
    batch_size: int = 64,
    encode: Encode = encode_rows,
    progress: Progress | None = None,
) -> dict[str, dict[str, str]]:
    """A letter per question, by method and group."""
    letters: dict[str, dict[str, str]] = {name: {} for name in methods}
    for prefix, benchmark in sheet.asked.items():
        told = answer_first_words(model, benchmark, methods, batch_size=batch_size, encode=encode, progress=progress)
        for name, of in letters.items():
            verdicts = told.verdicts(name)
            for group, samples in by_group(benchmark.samples).items():
                of[prefix + group] = "".join(_LETTERS[verdicts[sample.id]] for sample in samples)
    return letters


def judge_first(
    model: Model,
    method: Method | None,
    questions: Benchmark,
    judge: Manifold,
    *,
    batch_size: int = 64,
    encode: Encode = encode_rows,
    progress: Progress | None = None,
) -> list[int] | None:
    """For each question, whether the state of the first word has departed; None: the method has no single state."""
    if method is not None and not method.has_state:
        return None
    departed: list[int] = []
    with first_states(model, method) as read:
        rows = rows_to_ask(questions)
        for inputs, done in encode(model, rows, questions.picture, batch_size):
            with asking(model.backbone.model, asked_in(rows, questions.picture, inputs, done)):
                states = read(inputs)
            departed += (judge.distances(states.at()) > judge.tau).int().tolist()
            report_progress(progress, "first states", done, len(questions.samples))
    return departed


def describe(
    model: Model,
    method: Method | None,
    shown: Benchmark,
    judge: Manifold | None = None,
    *,
    batch_size: int = 64,
    encode: Encode = encode_rows,
    progress: Progress | None = None,
) -> SceneCaptions:
    """Captions and, with a judge, their departures, in one pass of decoding."""
    texts: list[str] = []
    tokens: list[int] = []
    departed: list[int] | None = [] if judge is not None and (method is None or method.has_state) else None
    if isinstance(method, BlindMethod):  # the same tokens in half as many calls, if most steps have a row that needs its branch
        method = replace(method, branch_mode="batched")
    with _decoding(model, method) as decode:
        rows = rows_to_ask(shown)
        for inputs, done in encode(model, rows, shown.picture, batch_size):
            with asking(model.backbone.model, asked_in(rows, shown.picture, inputs, done)):
                answers = decode(inputs)
            for ids, _ in answers:
                texts.append(model.backbone.tokenizer.decode(ids, skip_special_tokens=True).strip())
                tokens.append(len(ids))
            if departed is not None and judge is not None:
                used = [states for _, states in answers if states is not None]
                beyond = judge.distances(torch.cat(used)) > judge.tau  # of all captions of the batch at once
                departed += [int(part.sum()) for part in beyond.split([len(states) for states in used])]
            report_progress(progress, "captions", done, len(shown.samples))
    return SceneCaptions(texts, tokens, departed)


def name_colours(
    model: Model,
    method: Method | None,
    asked: Benchmark,
    *,
    batch_size: int = 64,
    encode: Encode = encode_rows,
    progress: Progress | None = None,
) -> list[str]:
    """Answers to questions about odd colours."""
    texts: list[str] = []
    end, tokenizer, decoding = end_ids(model.backbone), model.backbone.tokenizer, Decoding(max_new_tokens=COLOUR_TOKENS)
    with using(model, method):
        rows = rows_to_ask(asked)
        for inputs, done in encode(model, rows, asked.picture, batch_size):
            with asking(model.backbone.model, asked_in(rows, asked.picture, inputs, done)):
                made = generate(model.backbone, inputs, decoding).tokens.tolist()
            for ids in made:
                texts.append(tokenizer.decode(until_end(ids, end), skip_special_tokens=True).strip())
            report_progress(progress, "odd colours", done, len(asked.samples))
    return texts


def rows_to_ask(benchmark: Benchmark) -> list[Row]:
    """The picture and the prompt of every sample."""
    return [(sample.image, sample.prompt) for sample in benchmark.samples]


Decode = Callable[[dict[str, Tensor]], list[tuple[list[int], Tensor | None]]]  # tokens [T] and states [T, d] of each row


@contextmanager
def _decoding(model: Model, method: Method | None) -> Iterator[Decode]:
    """A function that answers encoded rows, with the method attached inside the block."""
    decoding = Decoding(max_new_tokens=MAX_ANSWER_TOKENS)
    if method is None or method.has_state:
        with answer_states(model, method, decoding) as read:
            yield lambda inputs: [(list(answer.tokens), answer.used) for answer in read(inputs)]
        return
    end = end_ids(model.backbone)
    with using(model, method):
        yield lambda inputs: [(until_end(ids, end), None) for ids in generate(model.backbone, inputs, decoding).tokens.tolist()]
