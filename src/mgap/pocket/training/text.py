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
from mgap.pocket.training.compose import Layout, lay_out

_MARK = "\N{SECTION SIGN}"


@dataclass
class Batch:
    """One step's rows; `weight` is 0 where nothing is to be learnt (prompt, padding)."""

    ids: Tensor  # [B, T] right padded
    weight: Tensor  # [B, T]: of the loss on ids[:, t]
    layout: Layout
    blank: Tensor  # [B] bool
    judged: Tensor  # [B] bool: the answer starts with Yes or No


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
        self.prompt, self.answer = lru_cache(200_000)(self._prompt), lru_cache(200_000)(self._answer)

    def _prompt(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer(self._before + prompt + self._after)["input_ids"]
        return ids

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
        spelled = [(self.speller.prompt(r.exchange.prompt), self.speller.answer(r.exchange.answer)) for r in rows]
        length = -(-max(len(p) + len(a) for p, a in spelled) // 16) * 16
        ids = torch.full((len(rows), length), self.speller.pad)
        weight = torch.zeros(len(rows), length)
        judged = torch.tensor([row.exchange.answer.startswith(("Yes", "No")) for row in rows])
        for row, (prompt, answer) in enumerate(spelled):
            start, end = len(prompt), len(prompt) + len(answer)
            ids[row, :end] = torch.tensor(prompt + answer)
            weight[row, start:end] = len(answer) ** -0.5  # a caption counts more than a yes, not forty times more
            if judged[row]:
                weight[row, start] = len(answer) ** 0.5  # the word that answers, as much as the sentence that repeats it
        return Batch(ids, weight, lay_out([r.scene for r in rows]), torch.tensor([r.blank for r in rows]), judged)
