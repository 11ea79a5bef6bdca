"""Tokenise rows of the corpus, in worker processes."""

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
    """The rows of one step: a shared prefix with the picture, then several exchanges that do not attend to each other."""

    ids: Tensor  # [B, T] right padded
    exchange: Tensor  # [B, T]: the number of a token's exchange, from 1; 0: the prefix
    position: Tensor  # [B, T]: a token's position if its exchange came alone
    weight: Tensor  # [B, T]: of the loss on ids[:, t]; 0 for prompts and padding
    is_verdict: Tensor  # [B, T] bool: the Yes or No that an answer starts with
    layout: Layout
    blank: Tensor  # [B] bool: the picture is black


class ExchangeTokenizer:
    """Tokenises prompts and answers exactly as the processor and chat template would."""

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
        ids = self.prompt("")
        picture = [index for index, token in enumerate(ids) if token == backbone.image_token_id]
        self.prefix = ids[: picture[-1] + 1]  # the same in every prompt
        self.location_ids = {self.word(word)[0] for word in (*ROWS, *COLUMNS, "to", "above", "below")}
        self.verdict_ids = {self.answer(word)[0] for word in ("Yes", "No")}

    def prompt(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer(self._before + prompt + self._after)["input_ids"]
        return ids

    def _question(self, prompt: str) -> list[int]:
        """The prompt without the prefix."""
        return self.prompt(prompt)[len(self.prefix) :]

    def word(self, word: str) -> list[int]:
        """A word inside a sentence, after a space."""
        ids: list[int] = self._tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        return ids

    def _answer(self, answer: str) -> list[int]:
        ids: list[int] = self._tokenizer(self._space + answer, add_special_tokens=False)["input_ids"]
        return [*ids, self.end]


class Batches(IterableDataset[Batch]):
    """Batches of consecutive rows; worker w of n makes every n-th batch."""

    def __init__(self, habits: Habits, tokenizer: ExchangeTokenizer, batch_size: int, steps: int) -> None:
        self.habits, self.tokenizer, self.batch_size, self.steps = habits, tokenizer, batch_size, steps

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for step in range(first, self.steps, stride):
            yield self._make(step)

    def _make(self, step: int) -> Batch:
        rows = [make_row(index, self.habits) for index in range(step * self.batch_size, (step + 1) * self.batch_size)]
        tokenizer, prefix = self.tokenizer, self.tokenizer.prefix
        tokens = [[(tokenizer.question(e.prompt), tokenizer.answer(e.answer)) for e in row.exchanges] for row in rows]
        longest = max(sum(len(question) + len(answer) for question, answer in row) for row in tokens)
        shape = len(rows), -(-(len(prefix) + longest) // 16) * 16
        ids, exchange = torch.full(shape, tokenizer.pad), torch.zeros(shape, dtype=torch.long)
        position = torch.arange(shape[1]).repeat(shape[0], 1)
        weight, is_verdict = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
        ids[:, : len(prefix)] = torch.tensor(prefix)
        for row, exchanges in enumerate(tokens):
            end = len(prefix)
            for number, (question, answer) in enumerate(exchanges, start=1):
                start, first, end = end, end + len(question), end + len(question) + len(answer)
                ids[row, start:end] = torch.tensor(question + answer)
                exchange[row, start:end] = number
                position[row, start:end] -= start - len(prefix)
                weight[row, first:end] = len(answer) ** -0.5  # a caption weighs more than a yes, but not forty times more
                for at, token in enumerate(answer, start=first):
                    if token in tokenizer.location_ids:
                        weight[row, at] = len(answer) ** 0.5 / 2  # two location words weigh as much as the sentence
                if answer[0] in tokenizer.verdict_ids:
                    is_verdict[row, first] = True
                    weight[row, first] = len(answer) ** 0.5
            exchange[row, end:] = len(exchanges) + 1  # padding attends to no answer, and no answer to it
        layout, blank = lay_out([row.scene for row in rows]), torch.tensor([row.blank for row in rows])
        return Batch(ids, exchange, position, weight, is_verdict, layout, blank)
