"""Shared prefill: run the common prefix of all rows of a picture once, and share its keys and values among them.

Benchmarks ask many questions about few pictures, and most of a prompt is the picture. Rows of one picture agree up to the
picture's last token, and further as far as their text agrees. That prefix goes through the model once per picture; decoding
continues from the cache with the rest:

    [padding | prefix of the row's picture | padding | rest of the row]

Padding is masked. Positions are the model's own: each row's rest starts at the position that the model gives to the token after
its prefix (M-RoPE counts a picture by its sides, not by its tokens). Only the prefixes of the last batch are kept, for rows of
the next batch about the same picture.
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
from mgap.backbones.checkpoint_faults import checkpoint_faults
from mgap.backbones.clock import READING
from mgap.backbones.decoding_limits import check_memory, room_behind
from mgap.backbones.prepared_pictures import (
    Prepared,
    Shown,
    around_picture,
    block_between,
    picture_digest,
    picture_key,
    special_ids,
)
from mgap.backbones.token_rows import TOKEN_KEYS, Ids, join_rows, split_rows
from mgap.errors import PromptError
from mgap.io.images import open_image

KERNELS = ("sdpa", "eager")  # of attention

Key = tuple[bytes, tuple[int, ...]]  # a picture's key, and the tokens before it
Inputs = dict[str, Tensor]


def unshareable(backbone: Backbone) -> str:
    """Why rows of the model cannot share a picture's prefill; "" if they can."""
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
    """The prefixes in the cache, one per picture."""

    blocks: dict[Key, Ids]  # the tokens that replace each picture's placeholder, in the order of the cache
    prefixes: list[Ids]
    cache: DynamicCache  # keys and values [pictures, heads, longest, d] per layer, left padded
    next_positions: Tensor  # [..., pictures, 1]: the position after each prefix

    def select(self, keys: list[Key]) -> HeldPrefix:
        """The prefixes of these keys, without needless padding."""
        order = list(self.blocks)
        if keys == order:
            return self
        chosen = [order.index(key) for key in keys]
        prefixes = [self.prefixes[n] for n in chosen]
        cache, length = shallow_copy(self.cache), max(map(len, prefixes))
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[..., -length:, :], layer.values[..., -length:, :]
        blocks = {key: self.blocks[key] for key in keys}
        return HeldPrefix(blocks, prefixes, select_rows(cache, chosen), self.next_positions[..., chosen, :])

    def join(self, other: HeldPrefix) -> HeldPrefix:
        """The prefixes of both, left padded to one length."""
        length = max(self.cache.get_seq_length(), other.cache.get_seq_length())
        joined = shallow_copy(self.cache)
        for layer, added in zip(joined.layers, other.cache.layers, strict=True):
            layer.keys = torch.cat([_left_pad(layer.keys, length), _left_pad(added.keys, length)])
            layer.values = torch.cat([_left_pad(layer.values, length), _left_pad(added.values, length)])
        next_positions = torch.cat([self.next_positions, other.next_positions], dim=-2)
        return HeldPrefix({**self.blocks, **other.blocks}, self.prefixes + other.prefixes, joined, next_positions)


@dataclass(frozen=True)
class PrefilledRows:
    """Complete rows of tokens, and the prefixes they continue."""

    held: HeldPrefix
    rows: list[Ids]
    prefix_of: list[int]  # each row's index into the prefixes
    milliseconds: float  # of the forward that ran new prefixes


@dataclass(frozen=True)
class Continued:
    """Inputs for a forward, or for `generate`, that continues from the prefixes."""

    inputs: Inputs  # complete rows and their mask [B, T]; positions of what is not in the cache [..., B, rest]
    cache: DynamicCache
    milliseconds: float  # of the forward that ran new prefixes


class SharedPrefill:
    """Encodes successive batches of rows that share pictures; a picture is opened, prepared and run once per batch."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.held: HeldPrefix | None = None  # of the last batch
        self.special = special_ids(backbone.tokenizer)

    def encode(self, images: Sequence[Shown], prompts: Sequence[str], times: int = 1) -> Continued:
        """Encode rows of picture and prompt; the cache holds each row `times` times in succession."""
        done = self.prefill(images, prompts)
        check_memory(self.backbone, times * len(done.rows), max(map(len, done.rows)))
        cache = select_rows(done.held.cache, [n for n in done.prefix_of for _ in range(times)])
        return Continued(self._continue(done.held, done.rows, done.prefix_of), cache, done.milliseconds)

    def prefill(self, images: Sequence[Shown], prompts: Sequence[str]) -> PrefilledRows:
        """Run the prefixes that are new, and hold all that these rows need."""
        if len(images) != len(prompts):
            raise PromptError(f"{len(images)} images but {len(prompts)} prompts: give one image a prompt")
        texts = [self.backbone.render(prompt) for prompt in prompts]
        pictures, shown = _distinct(images)
        around = [around_picture(self.backbone, text) for text in texts]
        keys: list[Key] = [(name, tuple(before)) for name, (before, _) in zip(shown, around, strict=True)]
        held, self.held = self._reusable(keys), None
        blocks = {} if held is None else dict(held.blocks)
        new = {key: keys.index(key) for key in keys if key not in blocks}  # key -> its first row
        encoded: Inputs = {}
        if new:
            firsts = list(new.values())
            encoded = self.backbone.encode_rendered([pictures[shown[n]] for n in firsts], [texts[n] for n in firsts])
            expanded = zip(new, split_rows(encoded), firsts, strict=True)
            name = self.backbone.name
            blocks.update({key: block_between(row, *around[n], self.special, name) for key, row, n in expanded})
        rows = [before + blocks[key] + after for key, (before, after) in zip(keys, around, strict=True)]
        room_behind(self.backbone, max(map(len, rows), default=0))
        started = time.perf_counter()
        if new:
            by_key = {key: [row for row, own in zip(rows, keys, strict=True) if own == key] for key in new}
            added = self._run(encoded, by_key, blocks)
            held = added if held is None else held.join(added)
        elapsed = 1000 * (time.perf_counter() - started)
        if held is None:
            raise PromptError("there is no row to encode: give at least one picture and prompt")
        self.held = held
        order = list(held.blocks)
        return PrefilledRows(held, rows, [order.index(key) for key in keys], elapsed)

    def _reusable(self, keys: list[Key]) -> HeldPrefix | None:
        """The last batch's prefixes that this batch continues."""
        common = [] if self.held is None else [key for key in self.held.blocks if key in keys]
        return self.held.select(common) if self.held is not None and common else None

    def _run(self, encoded: Inputs, rows: dict[Key, list[Ids]], blocks: dict[Key, Ids]) -> HeldPrefix:
        """Run the prefixes of new pictures: up to the picture, and as many more tokens as the rows of every picture share."""
        backbone = self.backbone
        shared = {key: min(common_length(own), *(len(row) - 1 for row in own)) for key, own in rows.items()}
        ends = {key: len(key[1]) + len(blocks[key]) for key in rows}
        more = min(shared[key] - ends[key] for key in rows)
        prefixes = [own[0][: ends[key] + more + 1] for key, own in rows.items()]  # plus one token that is not run
        joined = join_rows(prefixes, encoded, pad=backbone.pad_id, image=backbone.image_token_id)
        shown = {key: value for key, value in encoded.items() if key not in TOKEN_KEYS}
        positions = backbone.positions({**joined, **shown})  # [..., pictures, T + 1]
        inputs = {key: value[:, :-1] for key, value in joined.items()}
        cache = DynamicCache(config=backbone.config)
        with torch.no_grad(), backbone.clock.stage(READING), checkpoint_faults(backbone):
            backbone.model(
                **inputs, **shown, position_ids=positions[..., :-1], past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        return HeldPrefix({key: blocks[key] for key in rows}, [ids[:-1] for ids in prefixes], cache, positions[..., -1:])

    def _continue(self, held: HeldPrefix, rows: list[Ids], prefix_of: list[int]) -> Inputs:
        """Inputs [B, T] of rows after their prefixes. Padding is masked, and repeats a token that the row has anyway."""
        prefixes = [held.prefixes[n] for n in prefix_of]
        shared = [min(common_length([prefix, row]), len(row) - 1) for prefix, row in zip(prefixes, rows, strict=True)]
        front = held.cache.get_seq_length()
        length = max(len(row) - cached for row, cached in zip(rows, shared, strict=True))
        ids, mask, steps = [], [], []
        for row, prefix, cached in zip(rows, prefixes, shared, strict=True):
            pad, rest = [row[0]], len(row) - cached
            over, gap = len(prefix) - cached, length - rest
            start = front - len(prefix)
            ids.append(pad * start + row[:cached] + pad * (over + gap) + row[cached:])
            mask.append([0] * start + [1] * cached + [0] * (over + gap) + [1] * rest)
            steps.append([0] * gap + [n - over for n in range(rest)])
        device = self.backbone.device
        positions = held.next_positions[..., prefix_of, :] + torch.tensor(steps, device=device)  # [..., B, length]
        return {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": torch.tensor(mask, device=device),
            "position_ids": positions,
        }


def select_rows(cache: DynamicCache, rows: list[int]) -> DynamicCache:
    """A new cache of these rows, with repetitions; the given one does not change."""
    selected = shallow_copy(cache)
    selected.batch_select_indices(torch.tensor(rows))
    return selected


def shallow_copy(cache: DynamicCache) -> DynamicCache:
    """Another cache object with the same tensors."""
    copied = copy(cache)
    copied.layers = [copy(layer) for layer in cache.layers]
    return copied


def _left_pad(states: Tensor, length: int) -> Tensor:
    return F.pad(states, (0, 0, length - states.shape[-2], 0))  # [pictures, heads, length, d]


def common_length(rows: list[Ids]) -> int:
    """The length of the rows' longest common prefix."""
    ends = zip(min(rows), max(rows), strict=False)  # of sorted rows, the first and the last differ earliest
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))


def _distinct(images: Sequence[Shown]) -> tuple[dict[bytes, Image.Image | Prepared], list[bytes]]:
    """The distinct pictures by key, and the key of each row's picture; each file or object is opened once."""
    opened: dict[str | int, bytes] = {}
    pictures: dict[bytes, Image.Image | Prepared] = {}
    shown = []
    for image in images:
        if image is None:
            raise PromptError('a row without a picture has no prefill to share: use prefill="own", or give it a picture')
        if isinstance(image, list | tuple):
            raise PromptError('a row with several pictures has no prefill to share: use prefill="own", or give it one picture')
        source = id(image) if isinstance(image, Image.Image | Prepared) else str(image)
        if source not in opened:
            picture = image if isinstance(image, Prepared) else open_image(image)
            key = picture.key if isinstance(picture, Prepared) else picture_key(picture.size, picture_digest(picture))
            opened[source] = key
            pictures.setdefault(key, picture)
        shown.append(opened[source])
    return pictures, shown
