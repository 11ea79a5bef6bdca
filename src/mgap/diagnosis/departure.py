"""Preparation for measuring departures (paper, sections 3.2 and 5.4): the bank of plain states, its threshold, strengths."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from mgap.decoding.attach import attached
from mgap.decoding.model import Model
from mgap.errors import RunError, SettingError
from mgap.io.images import Opener, open_in_turn
from mgap.io.progress import Progress
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.settings import check_strength
from mgap.types import Sample

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # the paper's
BANK = "bank.json"


def prepare(
    model: Model,
    rows: Sequence[Sample],
    picture: Opener,
    folder: str | PathLike[str],
    *,
    k: int = 10,
    delta: float = 0.05,
    metric: str = "euclidean",
    search: str = "auto",
    batch_size: int = 8,
    max_new_tokens: int = 1,
    progress: Progress | None = None,
) -> Manifold:
    """The manifold of these rows: their bank, collected into the folder or read from there, with its threshold.

    The bank holds the states of the first `max_new_tokens` tokens of plain answers. A saved bank must be of the same rows; an
    interrupted collection resumes.
    """
    if active := attached(model.backbone.model):
        raise SettingError(f"{active[0].method.name} is attached to this model: a bank is of plain decoding; detach it")
    digest = rows_sha256(rows)
    if (Path(folder) / BANK).is_file():
        bank = Bank.load(folder)
        bank.require(model.backbone)
        if bank.origin.get("rows_sha256") != digest:
            raise RunError(f"{folder}: its bank is of other rows than those asked for now; name another folder, or remove it")
        if (length := bank.origin.get("max_new_tokens", 1)) != max_new_tokens:
            raise RunError(
                f"{folder}: its bank is of answers of up to {length} tokens, not {max_new_tokens}; name another folder"
            )
    else:
        bank = Bank.collect(
            model,
            open_in_turn((s.image for s in rows), picture),
            [s.prompt for s in rows],
            folder=folder,
            origin={"rows_sha256": digest},
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            progress=None if progress is None else lambda done: progress("states for the bank", done, len(rows)),
        )
    device = model.backbone.device
    return Manifold.of(bank, k=k, delta=delta, metric=metric, device=device, search=search, progress=progress)


def rows_sha256(rows: Sequence[Sample]) -> str:
    """A hash of the rows' ids, pictures and prompts."""
    return hashlib.sha256("".join(json.dumps([s.id, s.image, s.prompt]) + "\n" for s in rows).encode()).hexdigest()


def named_strengths(strengths: Sequence[float]) -> dict[str, float]:
    """The strengths by their names in records, in order."""
    if not strengths:
        raise SettingError("no strengths to measure at: give some, such as 0, 0.5 and 1")
    return {f"{check_strength('strengths', strength):.12g}": strength for strength in strengths}
