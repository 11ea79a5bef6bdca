"""Collects states of plain answers about pocket scenes in a bank, for measuring departures and for the tether."""

from __future__ import annotations

from collections.abc import Sequence

from mgap.benchmarks.pope.questions import SPLITS
from mgap.decoding.model import Model
from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.pocket.benchmark import FIT, pope, scenes
from mgap.pocket.language import DESCRIBE
from mgap.pocket.scenes import Scene, render
from mgap.priors.bank import Bank

KINDS = ("questions", "captions")  # of prompts
MAX_ANSWER_TOKENS = 96

Row = tuple[Scene, str]  # scene and prompt


def fit_bank(
    model: Model,
    kinds: Sequence[str] = KINDS,
    first: int = FIT,
    count: int = 400,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Bank:
    """Plain states of every token of answers to questions, to caption prompts, or to both.

    A scene has one caption and about a dozen questions, so questions cover only the first quarter of the scenes.
    """
    rows = [row for kind in kinds for row in rows_of(kind, first, count if kind == "captions" else -(-count // 4))]
    return collect(model, rows, MAX_ANSWER_TOKENS, batch_size=batch_size, progress=progress)


def rows_of(kind: str, first: int, count: int, splits: Sequence[str] = SPLITS) -> list[Row]:
    """The distinct yes/no questions about `count` scenes, or a caption prompt for each; sorted by scene."""
    if kind == "captions":
        return [(scene, DESCRIBE[0]) for scene in scenes(first, count)]
    if kind != "questions":
        raise SettingError(f"{kind!r} is no kind of prompts: choose from {', '.join(KINDS)}")
    questions = {(q.scene, q.text): None for split in splits for q in pope(split, first, count)}
    return sorted(questions, key=lambda row: row[0].seed)


def collect(
    model: Model,
    rows: Sequence[Row],
    max_new_tokens: int,
    *,
    batch_size: int = 64,
    label: str = "plain states",
    progress: Progress | None = None,
) -> Bank:
    """Plain states along the answers to these rows; a row of the bank is a scene."""
    report = None if progress is None else lambda done: progress(label, done, len(rows))
    return Bank.collect_by_picture(model, rows, render, batch_size=batch_size, max_new_tokens=max_new_tokens, progress=report)
