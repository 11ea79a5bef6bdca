"""States of plain answers about pocket scenes, as a bank: what departures are measured from, and what a tether leads to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from PIL import Image

from mgap.benchmarks.pope.questions import SPLITS
from mgap.decoding.model import Model
from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.pocket.benchmark import FIT, pope, scenes
from mgap.pocket.language import DESCRIBE
from mgap.pocket.scenes import Scene, render
from mgap.priors.bank import Bank

KINDS = ("questions", "captions")  # of prompts that plain answers are collected to
LONGEST = 96  # tokens of an answer

Row = tuple[Scene, str]  # what is shown, and what is asked


def fit_bank(
    model: Model,
    kinds: Sequence[str] = KINDS,
    first: int = FIT,
    count: int = 400,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Bank:
    """Plain states of every token of answers to questions, to requests to describe, or to both.

    A scene is described once and asked about a dozen times: questions are about the first quarter of the scenes only.
    """
    rows = [row for kind in kinds for row in rows_of(kind, first, count if kind == "captions" else -(-count // 4))]
    return collect(model, rows, LONGEST, batch_size=batch_size, progress=progress)


def rows_of(kind: str, first: int, count: int, splits: Sequence[str] = SPLITS) -> list[Row]:
    """The yes/no questions about so many scenes, each once, or a request to describe each; scenes one after the other."""
    if kind == "captions":
        return [(scene, DESCRIBE[0]) for scene in scenes(first, count)]
    if kind != "questions":
        raise SettingError(f"{kind!r} is no kind of prompts: choose from {', '.join(KINDS)}")
    asked = {(q.scene, q.text): None for split in splits for q in pope(split, first, count)}
    return sorted(asked, key=lambda row: row[0].seed)


def collect(
    model: Model,
    rows: Sequence[Row],
    max_new_tokens: int,
    *,
    batch_size: int = 64,
    label: str = "plain states",
    progress: Progress | None = None,
) -> Bank:
    """The plain states along the answers to these rows. A row of the bank is a scene: other answers about it are too near."""
    drawn = lru_cache(maxsize=1)(render)
    images: Iterator[Image.Image] = (drawn(scene) for scene, _ in rows)
    told = None if progress is None else lambda done: progress(label, done, len(rows))
    prompts = [text for _, text in rows]
    how: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, "progress": told}
    bank = Bank.collect(model, images, prompts, **how)
    places = {seed: place for place, seed in enumerate(dict.fromkeys(scene.seed for scene, _ in rows))}
    shown = torch.tensor([places[scene.seed] for scene, _ in rows], dtype=torch.int32)
    return replace(bank, rows=shown[bank.rows.long()])
