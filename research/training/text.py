"""Rows of the corpus as tokens, made by worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from mgap.backbones.base import backbone_class
from mgap.pocket.corpus import Habits, make_row
from mgap.pocket.language import COLUMNS, ROWS
from research.training.compose import Layout, lay_out

_MARK = "\N{SECTION SIGN}"


@dataclass
class Batch:
    """One step's rows: a shared beginning with the picture, then several exchanges that do not see each other."""

    ids: Tensor  # [B, T] right padded
    turn: Tensor  # [B, T]: which exchange a token belongs to, from 1; 0: the beginning
    place: Tensor  # [B, T]: where a token would stand if its exchange came alone
    weight: Tensor  # [B, T]: of the loss on ids[:, t]; 0 where nothing is to be learnt (prompt, padding)
    judged: Tensor  # [B, T] bool: the Yes or No that an answer starts with
    layout: Layout
    blank: Tensor  # [B] bool


class Speller:
    """Turns prompts and answers into ids, exactly as the processor and chat template would."""

    def __init__(self, model: Any, processor: Any, image_tokens: int) -> None:
        backbone = backbone_class(model.config)(model, processor)
        placeholder = processor.tokenizer.convert_ids_to_tokens(backbone.image_token_id)
        before, after = backbone.render(_MARK).split(_MARK)
        self._before = before.replace(placeholder, placeholder * image_tokens)
        self._after = after
        self._tokenizer = processor.tokenizer
        self._space = "" if after.endswith("\n") else " "  # an answer after a colon starts with a space
        self.end, self.pad = self._tokenizer.eos_token_id, self._tokenizer.pad_token_id
        self.question, self.answer = lru_cache(200_000)(self._question), lru_cache(200_000)(self._answer)
        whole = self.prompt("")
        picture = [index for index, token in enumerate(whole) if token == backbone.image_token_id]
        self.beginning = whole[: picture[-1] + 1]  # alike in every prompt
        self.telling = {self.word(word)[0] for word in (*ROWS, *COLUMNS, "to", "above", "below")}
        self.verdicts = {self.answer(word)[0] for word in ("Yes", "No")}

    def prompt(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer(self._before + prompt + self._after)["input_ids"]
        return ids

    def _question(self, prompt: str) -> list[int]:
        """What follows the beginning."""
        return self.prompt(prompt)[len(self.beginning) :]

    def word(self, word: str) -> list[int]:
        """A word as it stands inside a sentence."""
        ids: list[int] = self._tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        return ids

    def _answer(self, answer: str) -> list[int]:
        ids: list[int] = self._tokenizer(self._space + answer, add_special_tokens=False)["input_ids"]
        return [*ids, self.end]


class Batches(IterableDataset[Batch]):
    """Rows in order, batch after batch; worker w of n makes every n-th batch."""

    def __init__(self, habits: Habits, speller: Speller, batch_size: int, steps: int) -> None:
        self.habits, self.speller, self.batch_size, self.steps = habits, speller, batch_size, steps

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for step in range(first, self.steps, stride):
            yield self._make(step)

    def _make(self, step: int) -> Batch:
        rows = [make_row(index, self.habits) for index in range(step * self.batch_size, (step + 1) * self.batch_size)]
        beginning = self.speller.beginning
        spelled = [[(self.speller.question(e.prompt), self.speller.answer(e.answer)) for e in row.exchanges] for row in rows]
        longest = max(sum(len(question) + len(answer) for question, answer in row) for row in spelled)
        shape = len(rows), -(-(len(beginning) + longest) // 16) * 16
        ids, turn = torch.full(shape, self.speller.pad), torch.zeros(shape, dtype=torch.long)
        place = torch.arange(shape[1]).repeat(shape[0], 1)
        weight, judged = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
        ids[:, : len(beginning)] = torch.tensor(beginning)
        for row, exchanges in enumerate(spelled):
            end = len(beginning)
            for number, (question, answer) in enumerate(exchanges, start=1):
                start, first, end = end, end + len(question), end + len(question) + len(answer)
                ids[row, start:end] = torch.tensor(question + answer)
                turn[row, start:end] = number
                place[row, start:end] -= start - len(beginning)
                weight[row, first:end] = len(answer) ** -0.5  # a caption counts more than a yes, not forty times more
                for at, token in enumerate(answer, start=first):
                    if token in self.speller.telling:
                        weight[row, at] = len(answer) ** 0.5 / 2  # what answers, as much as the sentence that repeats it
                if answer[0] in self.speller.verdicts:
                    judged[row, first] = True
                    weight[row, first] = len(answer) ** 0.5
            turn[row, end:] = len(exchanges) + 1  # padding sees no answer, and none sees it
        return Batch(ids, turn, place, weight, judged, lay_out([r.scene for r in rows]), torch.tensor([r.blank for r in rows]))
