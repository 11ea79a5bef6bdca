"""Shared prefill: what the rows of one picture begin with is read once, and its keys and values are handed to all of them.

Benchmarks ask many questions about few pictures, and most of a prompt is the picture. Rows of one picture begin alike up to
the picture's last token and as far as their words agree; that beginning goes through the model once a picture, and whoever
decodes goes on from the cache with what differs:

    [padding | beginning of the row's picture | padding | rest of the row]

Padding is masked, and positions are the model's own: each row's rest counts on from the position that the model gives to the
token after its beginning (M-RoPE counts a picture by its sides and not by its tokens). Beginnings of the last batch are kept,
no more, for rows of the next one that go on about the same picture.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mgap.backbones.base import Backbone, families_that
from mgap.backbones.clock import READING
from mgap.backbones.prepared_pictures import (
    Picture,
    Prepared,
    around_picture,
    block_between,
    picture_digest,
    picture_key,
    special_ids,
)
from mgap.backbones.token_rows import ALONG, Ids, join_rows, split_rows
from mgap.errors import PromptError
from mgap.io.images import open_image

KERNELS = ("sdpa", "eager")  # of attention

Key = tuple[bytes, tuple[int, ...]]  # a picture's pixels, and the tokens before it
Inputs = dict[str, Tensor]


def unshareable(backbone: Backbone) -> str:
    """Why rows of the model cannot share a picture's prefill; "" where they can."""
    name, kind = backbone.name, backbone.config.model_type
    if backbone.processor is None:
        return f"{name} was given without its processor, so that prompts cannot be told apart from pictures"
    if not backbone.shares_prefill:
        checked = ", ".join(families_that("shares_prefill"))
        return f"{name}: {kind} has not been checked to answer alike with a shared prefill; checked: {checked}"
    kernel = backbone.config.get_text_config()._attn_implementation
    if kernel not in KERNELS:
        return f"{name}: {kernel} attention has not been checked with a shared prefill; load it with attention='sdpa'"
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=backbone.config).layers):
        return f"{name}: its cache forgets (a sliding window, or a state), so that a picture's part cannot be handed on"
    first, second = (around_picture(backbone, backbone.render(text))[0] for text in ("Red?", "What is this?"))
    if first != second:
        return f"{name}: its chat template puts the prompt before the picture, so that rows of one picture begin differently"
    return ""


@dataclass
class HeldPrefix:
    """Beginnings that are in the cache, one a picture."""

    blocks: dict[Key, Ids]  # what the placeholder of each picture becomes; in the order of the cache
    begins: list[Ids]
    cache: DynamicCache  # keys and values [pictures, heads, longest, d] a layer, left padded
    following: Tensor  # [..., pictures, 1]: the position after each beginning

    def select(self, keys: list[Key]) -> HeldPrefix:
        """Some of them, no more padded than they need."""
        places = list(self.blocks)
        if keys == places:
            return self
        chosen = [places.index(key) for key in keys]
        begins = [self.begins[n] for n in chosen]
        cache, length = alias(self.cache), max(map(len, begins))
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[..., -length:, :], layer.values[..., -length:, :]
        return HeldPrefix(
            {key: self.blocks[key] for key in keys}, begins, repeat(cache, chosen), self.following[..., chosen, :]
        )

    def join(self, other: HeldPrefix) -> HeldPrefix:
        """Both, left padded to one length."""
        length = max(self.cache.get_seq_length(), other.cache.get_seq_length())
        joined = alias(self.cache)
        for layer, added in zip(joined.layers, other.cache.layers, strict=True):
            layer.keys = torch.cat([_widen(layer.keys, length), _widen(added.keys, length)])
            layer.values = torch.cat([_widen(layer.values, length), _widen(added.values, length)])
        following = torch.cat([self.following, other.following], dim=-2)
        return HeldPrefix({**self.blocks, **other.blocks}, self.begins + other.begins, joined, following)


@dataclass(frozen=True)
class PrefilledRows:
    """Whole rows of tokens, and the beginnings that they go on from."""

    held: HeldPrefix
    rows: list[Ids]
    which: list[int]  # of the beginnings is each row's
    milliseconds: float  # of the forward that read new beginnings


@dataclass(frozen=True)
class Continued:
    """What a forward, or generate, reads to go on from the beginnings."""

    inputs: Inputs  # whole rows and their mask [B, T]; positions of what is not in the cache [..., B, rest]
    cache: DynamicCache
    milliseconds: float  # of the forward that read new beginnings


class SharedPrefill:
    """Encodes batch after batch of rows that share pictures; a picture is opened, prepared and read once a batch."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.held: HeldPrefix | None = None  # of the last batch
        self.special = special_ids(backbone.tokenizer)

    def encode(self, images: Sequence[Picture | None], prompts: Sequence[str], times: int = 1) -> Continued:
        """Rows of picture and prompt, ready to go on with; the cache holds each of them `times` times, one after the other."""
        begun = self.begin(images, prompts)
        cache = repeat(begun.held.cache, [n for n in begun.which for _ in range(times)])
        return Continued(self._go_on(begun.held, begun.rows, begun.which), cache, begun.milliseconds)

    def begin(self, images: Sequence[Picture | None], prompts: Sequence[str]) -> PrefilledRows:
        """Read the beginnings that are new and hold all that these rows need."""
        if len(images) != len(prompts):
            raise PromptError(f"{len(images)} images but {len(prompts)} prompts: give one image a prompt")
        texts = [self.backbone.render(prompt) for prompt in prompts]
        pictures, shown = _distinct(images)
        around = [around_picture(self.backbone, text) for text in texts]
        keys: list[Key] = [(name, tuple(before)) for name, (before, _) in zip(shown, around, strict=True)]
        held, self.held = self._kept(keys), None
        blocks = {} if held is None else dict(held.blocks)
        new = {key: keys.index(key) for key in keys if key not in blocks}  # and the first row of each
        encoded: Inputs = {}
        if new:
            firsts = list(new.values())
            encoded = self.backbone.encode_rendered([pictures[shown[n]] for n in firsts], [texts[n] for n in firsts])
            expanded = zip(new, split_rows(encoded), firsts, strict=True)
            name = self.backbone.name
            blocks.update({key: block_between(row, *around[n], self.special, name) for key, row, n in expanded})
        rows = [before + blocks[key] + after for key, (before, after) in zip(keys, around, strict=True)]
        started = time.perf_counter()
        if new:
            by_key = {key: [row for row, of in zip(rows, keys, strict=True) if of == key] for key in new}
            fresh = self._read(encoded, by_key, blocks)
            held = fresh if held is None else held.join(fresh)
        elapsed = 1000 * (time.perf_counter() - started)
        if held is None:
            raise PromptError("there is no row to encode: give at least one picture and prompt")
        self.held = held
        places = list(held.blocks)
        return PrefilledRows(held, rows, [places.index(key) for key in keys], elapsed)

    def _kept(self, keys: list[Key]) -> HeldPrefix | None:
        """Those of the last batch's beginnings that this one goes on with."""
        kept = [] if self.held is None else [key for key in self.held.blocks if key in keys]
        return self.held.select(kept) if self.held is not None and kept else None

    def _read(self, encoded: Inputs, rows: dict[Key, list[Ids]], blocks: dict[Key, Ids]) -> HeldPrefix:
        """Run the beginnings of new pictures: up to the picture, and as many tokens more as all of them have in common."""
        backbone = self.backbone
        shared = {key: min(common(own), *(len(row) - 1 for row in own)) for key, own in rows.items()}
        ends = {key: len(key[1]) + len(blocks[key]) for key in rows}
        more = min(shared[key] - ends[key] for key in rows)
        begins = [own[0][: ends[key] + more + 1] for key, own in rows.items()]  # and one token that is not run
        ahead = join_rows(begins, encoded, pad=backbone.pad_id, image=backbone.image_token_id)
        shown = {key: value for key, value in encoded.items() if key not in ALONG}
        positions = backbone.positions({**ahead, **shown})  # [..., pictures, T + 1]
        inputs = {key: value[:, :-1] for key, value in ahead.items()}
        cache = DynamicCache(config=backbone.config)
        with torch.no_grad(), backbone.clock.stage(READING):
            backbone.model(
                **inputs, **shown, position_ids=positions[..., :-1], past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        return HeldPrefix({key: blocks[key] for key in rows}, [ids[:-1] for ids in begins], cache, positions[..., -1:])

    def _go_on(self, held: HeldPrefix, rows: list[Ids], which: list[int]) -> Inputs:
        """Rows [B, T] behind their beginnings. What fills them up is masked, and repeats a token that the row has anyway."""
        begins = [held.begins[n] for n in which]
        shared = [min(common([begin, row]), len(row) - 1) for begin, row in zip(begins, rows, strict=True)]
        front = held.cache.get_seq_length()
        length = max(len(row) - known for row, known in zip(rows, shared, strict=True))
        ids, mask, steps = [], [], []
        for row, begin, known in zip(rows, begins, shared, strict=True):
            fill, rest = [row[0]], len(row) - known
            over, gap = len(begin) - known, length - rest
            start = front - len(begin)
            ids.append(fill * start + row[:known] + fill * (over + gap) + row[known:])
            mask.append([0] * start + [1] * known + [0] * (over + gap) + [1] * rest)
            steps.append([0] * gap + [n - over for n in range(rest)])
        device = self.backbone.device
        positions = held.following[..., which, :] + torch.tensor(steps, device=device)  # [..., B, length]
        return {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": torch.tensor(mask, device=device),
            "position_ids": positions,
        }


def repeat(cache: DynamicCache, places: list[int]) -> DynamicCache:
    """A cache of the rows at these places, as often as they are named; the given one stays as it is."""
    chosen = alias(cache)
    chosen.batch_select_indices(torch.tensor(places))
    return chosen


def alias(cache: DynamicCache) -> DynamicCache:
    """The same tensors in a cache of its own."""
    own = copy(cache)
    own.layers = [copy(layer) for layer in cache.layers]
    return own


def _widen(states: Tensor, length: int) -> Tensor:
    return F.pad(states, (0, 0, length - states.shape[-2], 0))  # [pictures, heads, length, d]


def common(rows: list[Ids]) -> int:
    """How many tokens the rows begin with alike."""
    ends = zip(min(rows), max(rows), strict=False)  # of sorted rows the first and the last differ first
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))


def _distinct(images: Sequence[Picture | None]) -> tuple[dict[bytes, Image.Image | Prepared], list[bytes]]:
    """Each distinct picture by its key, and the key of every row's; a file, or an object, is opened once."""
    opened: dict[str | int, bytes] = {}
    pictures: dict[bytes, Image.Image | Prepared] = {}
    shown = []
    for image in images:
        if image is None:
            raise PromptError('a row without a picture has no prefill to share: use prefill="own", or give it a picture')
        source = id(image) if isinstance(image, Image.Image | Prepared) else str(image)
        if source not in opened:
            picture = image if isinstance(image, Prepared) else open_image(image)
            key = picture.key if isinstance(picture, Prepared) else picture_key(picture.size, picture_digest(picture))
            opened[source] = key
            pictures.setdefault(key, picture)
        shown.append(opened[source])
    return pictures, shown
