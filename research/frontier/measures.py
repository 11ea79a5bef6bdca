"""What one method says about many scenes, kept question by question and caption by caption, so that methods can be paired.

Yes/no questions count by the first word. Captions are greedy, but for methods that search, up to LONGEST tokens. A state that a
word was decoded from has departed if its d_k is beyond tau of the plain states of `Judges`; where a method decodes from no one
state there is nothing to judge.

Forwards a token: passes of rows through the decoder's first block, over tokens, of captions that are decoded one by one: in a
batch, a row that asks for its blind state makes all others read. A pass is a row in a call of the block that does not read a
prompt: one that finds something in the cache. Whatever a method sends counts, a description before the first token and the
beams of a search too, and a row that reads three tokens in one call passes once. Tokens are those of the answers but the first,
which the prompt gives. Milliseconds are of the same captions, prompts included, over all of their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mgap.benchmarks.chair.scorer import tally_captions
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.pope.scorer import tally_labels
from mgap.benchmarks.statistics import Counts, Rate, bootstrap, share
from mgap.benchmarks.tally import Tally
from mgap.decoding.answer_states import answer_states
from mgap.decoding.effective_states import first_states
from mgap.decoding.generate import end_ids, generate, until_end
from mgap.decoding.model import Model
from mgap.errors import CorruptFile
from mgap.io.progress import Progress, report_progress
from mgap.methods.base import Method
from mgap.methods.kinds.blind_branch import BlindMethod
from mgap.pocket.benchmark import PocketQuestion, pope, scenes
from mgap.pocket.evaluation import SCENE_ENCODER, amber_questions, ask_groups
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS
from mgap.pocket.language import DESCRIBE, mentions
from mgap.pocket.scenes import Scene
from mgap.priors.manifold import Manifold
from mgap.run.first_words import Encoder, Methods, using
from mgap.types import Decoding
from research.comparison import counting

HARDEST = SPLITS[-1]
HELD_OUT, AMBER = "held-out ", "amber "  # what the names of other groups than POPE's splits begin with
NEITHER = "-"  # the letter of a first word that is no yes and no no
_LETTERS = {"yes": "y", "no": "n", None: NEITHER}
_VERDICTS = {letter: verdict for verdict, letter in _LETTERS.items()}


@dataclass(frozen=True)
class Sheet:
    """What is asked: yes/no questions by group, and the scenes to describe."""

    groups: dict[str, list[PocketQuestion]]
    described: list[Scene]

    @classmethod
    def of(cls, first: int, *, scenes: int, captions: int, held_out: int = 0, amber: int = 0) -> Sheet:
        """About scenes from a seed on: so many for POPE, to describe, for POPE in the style of no training, and for AMBER."""
        groups = {split: list(pope(split, first, scenes)) for split in SPLITS}
        if held_out:
            groups |= {HELD_OUT + split: list(pope(split, first, held_out, held_out=True)) for split in SPLITS}
        if amber:
            groups |= {AMBER + kind: asked for kind, asked in amber_questions(first, amber).items()}
        return cls(groups, _scenes(first, captions))


def _scenes(first: int, count: int) -> list[Scene]:
    return list(scenes(first, count))


@dataclass(frozen=True)
class Described:
    """Captions, one a scene, and what they took."""

    texts: list[str]
    tokens: list[int]  # of each, the one that ends it too
    departed: list[int] | None  # of each, how many were decoded from a state that has departed; None: from no one state


@dataclass(frozen=True)
class Price:
    """What captions cost that are decoded one by one."""

    tokens: int
    passes: int  # after the prompts
    steps: int  # tokens after the first of each
    milliseconds: float

    @property
    def forwards(self) -> float | None:
        """A token, as defined above; None where every caption is of one token."""
        return self.passes / self.steps if self.steps else None

    @property
    def milliseconds_a_token(self) -> float:
        return self.milliseconds / self.tokens


@dataclass(frozen=True)
class Told:
    """All that one method said to a sheet. Figures are made of it without a model."""

    verdicts: dict[str, str]  # by group, a letter a question: y, n, or - where the first word was neither
    described: Described
    departed_first: list[int] | None  # 1 for each question of the hardest split whose first state has departed
    price: Price | None = None  # None: not asked for

    def tally(self, sheet: Sheet, group: str) -> Tally:
        """POPE's figures of one group of questions."""
        asked = sheet.groups[group]
        if len(asked) != len(self.verdicts[group]):
            raise CorruptFile(f"{len(self.verdicts[group])} answers to {len(asked)} {group} questions: measure again")
        verdicts = [_VERDICTS[letter] for letter in self.verdicts[group]]
        return tally_labels([q.label for q in asked], verdicts, [q.scene.seed for q in asked])

    def tally_captions(self, sheet: Sheet) -> Tally:
        """CHAIR's figures."""
        texts = self.described.texts
        if len(texts) != len(sheet.described):
            raise CorruptFile(f"{len(texts)} captions of {len(sheet.described)} scenes: measure again")
        return tally_captions(texts, [mentions(text) for text in texts], [scene.names for scene in sheet.described])

    def first_departures(self, sheet: Sheet) -> Rate | None:
        """The share of first states that have departed, with an interval from a bootstrap over scenes."""
        if self.departed_first is None:
            return None
        seeds = [q.scene.seed for q in sheet.groups[HARDEST]]
        return _rate(np.array([[hit, 1.0] for hit in self.departed_first]), seeds)

    def caption_departures(self, sheet: Sheet) -> Rate | None:
        """The same of all tokens of captions."""
        if self.described.departed is None:
            return None
        rows = np.column_stack([self.described.departed, self.described.tokens]).astype(float)
        return _rate(rows, [scene.seed for scene in sheet.described])

    def amber(self, sheet: Sheet) -> Rate:
        """AMBER's accuracy, the mean of its kinds, of a sheet that asks for it."""
        kinds = [group for group, asked in sheet.groups.items() if asked and group.startswith(AMBER)]
        rows, seeds = [], []
        for place, kind in enumerate(kinds):
            for question, letter in zip(sheet.groups[kind], self.verdicts[kind], strict=True):
                row = np.zeros(2 * len(kinds))
                row[2 * place : 2 * place + 2] = _VERDICTS[letter] == question.label, 1.0
                rows.append(row)
                seeds.append(question.scene.seed)
        return _rate(np.array(rows), seeds)


def _rate(rows: Counts, seeds: Sequence[int]) -> Rate:
    """The mean of shares, over pairs of columns (part, whole) of what each question or caption adds; scenes are drawn."""
    places = {seed: place for place, seed in enumerate(dict.fromkeys(seeds))}
    groups = np.zeros((len(places), rows.shape[1]))
    np.add.at(groups, [places[seed] for seed in seeds], rows)

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
    encode: Encoder = SCENE_ENCODER,
    progress: Progress | None = None,
) -> dict[str, dict[str, str]]:
    """By method and group, a letter a question."""
    asked = ask_groups(model, sheet.groups, methods, batch_size=batch_size, encode=encode, progress=progress)
    return {
        name: {group: "".join(_LETTERS[verdict] for verdict in found.verdicts(name)) for group, found in asked.items()}
        for name in methods
    }


def judge_first(
    model: Model,
    method: Method | None,
    questions: Sequence[PocketQuestion],
    judge: Manifold,
    *,
    batch_size: int = 64,
    encode: Encoder = SCENE_ENCODER,
    progress: Progress | None = None,
) -> list[int] | None:
    """For each question, whether the state of the answer's first word has departed; None: the method has no one state."""
    if method is not None and not method.has_state:
        return None
    departed: list[int] = []
    with first_states(model, method) as read:
        for inputs, done in encode(model, [(q.scene, q.text) for q in questions], batch_size):
            departed += (judge.distances(read(inputs).at()) > judge.tau).int().tolist()
            report_progress(progress, "first states", done, len(questions))
    return departed


def describe(
    model: Model,
    method: Method | None,
    shown: Sequence[Scene],
    judge: Manifold,
    *,
    batch_size: int = 64,
    encode: Encoder = SCENE_ENCODER,
    progress: Progress | None = None,
) -> Described:
    """Captions and their departures, in one decoding."""
    texts: list[str] = []
    tokens: list[int] = []
    departed: list[int] | None = [] if method is None or method.has_state else None
    if isinstance(method, BlindMethod):  # the same tokens, for half as many calls where most steps have a row that asks
        method = replace(method, branch_mode="batched")
    with _decoding(model, method) as decode:
        for inputs, done in encode(model, [(scene, DESCRIBE[0]) for scene in shown], batch_size):
            answers = decode(inputs)
            for said, _ in answers:
                texts.append(model.backbone.tokenizer.decode(said, skip_special_tokens=True).strip())
                tokens.append(len(said))
            if departed is not None:
                used = [states for _, states in answers if states is not None]
                beyond = judge.distances(torch.cat(used)) > judge.tau  # of all captions of the batch at once
                departed += [int(part.sum()) for part in beyond.split([len(states) for states in used])]
            report_progress(progress, "captions", done, len(shown))
    return Described(texts, tokens, departed)


def price(
    model: Model,
    method: Method | None,
    shown: Sequence[Scene],
    *,
    encode: Encoder = SCENE_ENCODER,
    progress: Progress | None = None,
) -> Price:
    """Of captions, one after the other; the first is described twice, and counts once: what happens only once is no price."""
    tokens = steps = 0
    rows = [(scene, DESCRIBE[0]) for scene in shown]
    batches, decoding = list(encode(model, rows, 1)), Decoding(max_new_tokens=MAX_ANSWER_TOKENS)
    end = end_ids(model.backbone)
    with using(model, method):
        generate(model.backbone, batches[0][0], decoding)
        with counting(model, passes) as passed:
            milliseconds = 0.0
            for inputs, done in batches:
                made = generate(model.backbone, inputs, decoding)
                milliseconds += made.milliseconds
                said = until_end(made.tokens[0].tolist(), end)
                tokens, steps = tokens + len(said), steps + len(said) - 1
                report_progress(progress, "prices", done, len(rows))
    return Price(tokens, passed[0], steps, milliseconds)


Decode = Callable[[dict[str, Tensor]], list[tuple[list[int], Tensor | None]]]  # tokens [T] and states [T, d] of each row


@contextmanager
def _decoding(model: Model, method: Method | None) -> Iterator[Decode]:
    """Inside the block the method is on, and what is given answers encoded rows."""
    decoding = Decoding(max_new_tokens=MAX_ANSWER_TOKENS)
    if method is None or method.has_state:
        with answer_states(model, method, decoding) as read:
            yield lambda inputs: [(list(answer.tokens), answer.used) for answer in read(inputs)]
        return
    end = end_ids(model.backbone)
    with using(model, method):
        yield lambda inputs: [
            (until_end(said, end), None) for said in generate(model.backbone, inputs, decoding).tokens.tolist()
        ]


def passes(states: Tensor, call: Mapping[str, Any]) -> int:
    """Rows of a call of the first block, states [B, T, d]; none where it reads a prompt."""
    cache = call.get("past_key_values")
    return 0 if cache is None or cache.get_seq_length() == 0 else len(states)
