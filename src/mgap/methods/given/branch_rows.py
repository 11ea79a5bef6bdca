"""From evidence to the inputs of branches: another picture in the place of a row's own, or another prompt about it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image

from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import TOKEN_KEYS, Ids, find_block, join_rows, split_rows
from mgap.methods.given.evidence import Evidence
from mgap.methods.kinds.paired_forward import ALONE, COUNT, SHOWS, Inputs
from mgap.methods.kinds.per_picture import reword


def build_branches(backbone: Backbone, main: Inputs, brought: Sequence[Evidence | None]) -> list[Inputs]:
    """One branch for each picture of the row that has most of them; a row that has fewer fills up with itself."""
    rows, device = split_rows(main), main["input_ids"].device
    counts = [0 if evidence is None else max(1, len(evidence.pictures)) for evidence in brought]
    branches = [_branch(backbone, main, rows, brought, place) for place in range(max(1, *counts))]
    branches[0][COUNT] = torch.tensor(counts, device=device)
    if 0 in counts:
        branches[0][ALONE] = branches[0][COUNT] == 0
    return branches


def _branch(backbone: Backbone, main: Inputs, rows: Sequence[Ids], brought: Sequence[Evidence | None], place: int) -> Inputs:
    """The branch of everybody's picture at one place, or of their text."""
    own: dict[int, Image.Image] = {}  # each picture once: beams and samples may share it
    for evidence in brought:
        if evidence is not None and place < len(evidence.pictures):
            own.setdefault(id(evidence.pictures[place]), evidence.pictures[place])  # type: ignore[arg-type]  # opened
    blocks, pixels = _encode(backbone, main, list(own.values()))
    order, branch, shows = list(own), list[Ids](), list[int]()
    for ids, evidence in zip(rows, brought, strict=True):
        number = -1
        if evidence is not None and place < len(evidence.pictures):
            number, (start, end) = order.index(id(evidence.pictures[place])), find_block(ids, backbone.image_token_id, ())
            ids = ids[:start] + blocks[number] + ids[end:]
        elif evidence is not None and evidence.text is not None:
            ids = reword(backbone, evidence.text, ids)
        branch.append(ids)
        shows.append(number)
    joined = join_rows(branch, main, pad=backbone.pad_id, image=backbone.image_token_id)
    if not own:
        return {**main, **joined}  # the main rows' very pictures: encoded once
    return {**joined, **pixels, SHOWS: torch.tensor(shows)}


def _encode(backbone: Backbone, main: Inputs, pictures: Sequence[Image.Image]) -> tuple[list[Ids], Inputs]:
    """The tokens that stand for each picture in a prompt, and the pictures' inputs to the vision tower."""
    if not pictures:
        return [], {}
    encoded = backbone.encode(pictures, ["?"] * len(pictures))
    spans = [(ids, *find_block(ids, backbone.image_token_id, ())) for ids in split_rows(encoded)]  # raises if in pieces
    pixels = {key: value for key, value in encoded.items() if key not in TOKEN_KEYS}
    pixels.update({key: pixels[key].to(main[key].dtype) for key in backbone.pixel_keys})
    return [ids[start:end] for ids, start, end in spans], pixels
