"""From evidence to the inputs of branches: another picture in the place of a row's own, or another prompt about it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch

from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import split_rows
from mgap.methods.given.evidence import Evidence
from mgap.methods.kinds.other_pictures import show_pictures
from mgap.methods.kinds.paired_forward import ALONE, COUNT, Inputs
from mgap.methods.kinds.per_picture import reword


def build_branches(backbone: Backbone, main: Inputs, brought: Sequence[Evidence | None]) -> list[Inputs]:
    """One branch for each picture of the row that has most of them; a row that has fewer fills up with itself."""
    rows = [
        ids if evidence is None or evidence.text is None else reword(backbone, evidence.text, ids)
        for ids, evidence in zip(split_rows(main), brought, strict=True)
    ]
    pictures = zip_longest(*((None,) if evidence is None else evidence.pictures or (None,) for evidence in brought))
    branches = [show_pictures(backbone, main, rows, shown) for shown in pictures]  # type: ignore[arg-type]  # opened
    counts = [0 if evidence is None else max(1, len(evidence.pictures)) for evidence in brought]
    branches[0][COUNT] = torch.tensor(counts, device=main["input_ids"].device)
    if 0 in counts:
        branches[0][ALONE] = branches[0][COUNT] == 0
    return branches
