"""Convert left-padded rows of tokens to lists and back, and edit their text as the tokenizer would have read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from mgap.errors import PromptError

Ids = list[int]
TOKEN_KEYS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")  # [B, T]; other tensors hold pictures


def split_rows(inputs: Mapping[str, Tensor]) -> list[Ids]:
    """Each row's tokens, without the padding."""
    pairs = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
    return [ids[mask].tolist() for ids, mask in pairs]


def join_rows(rows: Sequence[Ids], like: Mapping[str, Tensor], *, pad: int, image: int) -> dict[str, Tensor]:
    """Left pad rows to one length, with the keys, dtypes and device of `like`: ids, mask and token types."""
    length = max(map(len, rows))
    ids = torch.tensor([[pad] * (length - len(row)) + row for row in rows]).to(like["input_ids"])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows]).to(like["attention_mask"])
    joined = {"input_ids": ids, "attention_mask": mask}
    for key in ("mm_token_type_ids", "token_type_ids"):
        if key in like:  # 0 text, 1 picture
            joined[key] = ((ids == image) & mask.bool()).to(like[key])
    return joined


def find_block(ids: Ids, image: int, markers: Sequence[int]) -> tuple[int, int]:
    """The span [start, end) of a row's picture with the markers around it; raises unless it is one run of placeholders."""
    runs = [list(run) for is_image, run in groupby(range(len(ids)), lambda n: ids[n] == image) if is_image]
    if len(runs) != 1:
        raise PromptError(f"a row of the prompt shows {len(runs)} pictures, or one in pieces: give one picture a row")
    start, end = runs[0][0], runs[0][-1] + 1
    while start > 0 and ids[start - 1] in markers:
        start -= 1
    while end < len(ids) and ids[end] in markers:
        end += 1
    return start, end


def tokenize_text(tokenizer: Any, text: str) -> Ids:
    """The text's tokens, without added ones; special tokens written in the text count as such."""
    ids: Ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def decode_exact(tokenizer: Any, ids: Ids, *, left: int | None = None, right: int | None = None) -> str | None:
    """The text of tokens between two special tokens.

    None if encoding the text does not give `ids` back, as with tokenizers that add a space.
    """
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text if _between(tokenizer, text, left, right) == ids else None


def edit_text(
    tokenizer: Any, ids: Ids, edit: Callable[[str], str], *, left: int | None = None, right: int | None = None
) -> Ids | None:
    """The tokens of the edited text between the same special tokens; None as in `decode_exact`."""
    text = decode_exact(tokenizer, ids, left=left, right=right)
    return None if text is None else _between(tokenizer, edit(text), left, right)


def _between(tokenizer: Any, text: str, left: int | None, right: int | None) -> Ids:
    before, after = ("" if token is None else str(tokenizer.convert_ids_to_tokens(token)) for token in (left, right))
    ids = tokenize_text(tokenizer, before + text + after)
    return ids[bool(before) : len(ids) - bool(after)]
