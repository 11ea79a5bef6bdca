"""A second branch inside an ordinary `generate`, or several: hooks on the model, and a cache that carries all of them.

Before a forward the branch's rows join the main ones, [main_0 .. main_B-1, branch_0 .. branch_B-1], left padded to one length,
those of a further branch behind them; afterwards the parts of the logits become one. The caller sees B rows throughout, so
sampling, beams, stopping and streaming are transformers' own. Everything that belongs to one generation lives in the cache that
the first forward hands out: two generations never meet. Pictures that a branch shares with the main rows are encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call, ImageEmbedder, join_pictures
from mgap.backbones.token_rows import TOKEN_KEYS
from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Observation, Tap
from mgap.methods.kinds.decode_positions import DecodePositions
from mgap.methods.kinds.main_rows import row_split_of

if TYPE_CHECKING:
    from mgap.methods.kinds.branch import PairedMethod

Inputs = dict[str, Tensor]  # as Backbone.encode gives them: left padded, one row a sample
Merge = Callable[[Tensor, "PairedCache"], Tensor]  # logits of all rows [rows, vocab] -> of the main ones [B, vocab]
Kept = dict[str, Tensor]  # what is remembered of each row [B, ...] from one token to the next
Weigh = Callable[[Tensor, Sequence[Tensor], int, Kept], tuple[Tensor, dict[str, Tensor]]]  # logits [B, vocab] of all -> one
KINDS = tuple(key for key in TOKEN_KEYS if key not in ("input_ids", "attention_mask"))
ALONE = "alone"  # in a branch's inputs, bool [B]: rows that have nothing to contrast with, and decode plainly


class PairedCache(DynamicCache):
    """Keys and values of the main rows, and of each branch's: behind them, or in a cache of its own (`aside`)."""

    def __init__(self, config: Any, rows: list[DecodePositions], aside: list[DynamicCache]) -> None:
        super().__init__(config=config)
        self.rows = rows  # of the forwards that need positions from us: the one of all, or each branch's aside
        self.aside, self.steps = aside, 1
        self.waiting: list[Call] = []  # what each branch aside reads next
        self.kinds: Inputs = {}  # [rows, 1] each: what else a forward reads of a token, the same for every new one
        self.kept: Kept = {}
        self.has_alone = False  # whether any row decodes plainly
        self.merge: Merge | None = None  # for a loop that runs the steps of all rows without our hooks

    def step(self) -> None:
        """One more token."""
        self.steps += 1
        for rows in self.rows:
            rows.step()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Every branch follows the beams, and what is remembered of them."""
        self.kept = {key: value.index_select(0, beam_idx.to(value.device)) for key, value in self.kept.items()}
        every = beam_idx
        if not self.aside:
            every = torch.cat([beam_idx + first for first in range(0, len(self.rows[0].mask), len(beam_idx))])
        for rows in self.rows:
            rows.reorder(every)
        for other in self.aside:
            other.reorder_cache(beam_idx)
        super().reorder_cache(every)

    def crop(self, *_: Any, **__: Any) -> None:
        raise UnsupportedDecoding("a second branch cannot take tokens back: no assisted decoding")


class ObservedCache(PairedCache):
    """One branch aside, and what was said so far, for a branch that does not read it as it comes."""

    def __init__(self, config: Any, prompt: Call) -> None:
        super().__init__(
            config, [DecodePositions(prompt["attention_mask"], prompt["position_ids"])], [DynamicCache(config=config)]
        )
        self.waiting = [prompt]
        self.said: Inputs = {}  # [B, new] each: the answer so far

    def hear(self, token: Inputs) -> None:
        """One token more."""
        self.step()
        self.said = {key: torch.cat([self.said[key], new], 1) if self.said else new for key, new in token.items()}

    def answer(self, read: int = 0) -> Call | None:
        """What was said after the first `read` tokens, as a forward behind these reads it; None: nothing."""
        (rows,), rest = self.rows, {key: value[:, read:] for key, value in self.said.items()}
        if not rest or not rest["input_ids"].shape[1]:
            return None
        back = torch.arange(1 - rest["input_ids"].shape[1], 1, device=rows.positions.device)
        return {**rest, "attention_mask": rows.whole_mask(), "position_ids": rows.positions + back}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.said = {key: value[beam_idx] for key, value in self.said.items()}


class PairedForward:
    """The hooks of one attached method. `remove` takes them off again."""

    def __init__(self, backbone: Backbone, method: PairedMethod, tap: Tap) -> None:
        self.backbone, self.method, self.tap = backbone, method, tap
        self.builders, self.weigh = method.builders(backbone, tap), method.weigher(backbone)
        self.is_aside = method.branch_mode != "batched"
        self.is_busy = False  # while we run the model or its tower ourselves
        self.row_split = row_split_of(backbone.model)
        self.showing = ImageEmbedder(backbone)
        self.text_config = backbone.config.get_text_config(decoder=True)
        self.pixels: Inputs = {}  # of the pictures that went through the tower last
        self.handles: list[RemovableHandle] = [
            backbone.vision.register_forward_pre_hook(self.keep_pixels, with_kwargs=True),
            backbone.model.register_forward_pre_hook(self.before, with_kwargs=True),
            backbone.model.register_forward_hook(self.after, with_kwargs=True),
            *self.showing.attach(),
        ]

    @property
    def is_idle(self) -> bool:
        return self.is_busy or self.row_split.is_paused

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.row_split.main = None

    def keep_pixels(self, _tower: nn.Module, args: tuple[Any, ...], kwargs: Call) -> None:
        """Pictures are encoded before the first forward: keep what the tower is shown."""
        if not self.is_idle:
            self.pixels = self.backbone.tower_inputs(args, kwargs)

    def before(self, _model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        """Add the branches' rows, or get their own forwards ready."""
        if self.is_idle:
            return args, kwargs
        name, cache = self.method.name, kwargs.get("past_key_values")
        if kwargs.get("logits_to_keep", 1) != 1:  # a draft is being checked, or this is no generate
            raise UnsupportedDecoding(f"{name} does not work with assisted decoding: one token at a time")
        self.row_split.main = None if self.is_aside else len(kwargs["input_ids"])
        if isinstance(cache, PairedCache):
            return (), self._next(kwargs, cache)
        if args or cache is None or kwargs.get("use_cache") is False:
            raise UnsupportedDecoding(f"{name} keeps its branch in the cache: call generate, with use_cache on")
        if cache.is_compileable:
            raise UnsupportedDecoding(
                f"{name} does not work with static or compiled decoding here: use the dynamic cache, or model.answer and "
                "its like with a batched branch and without beams"
            )
        if cache.get_seq_length() > 0 or kwargs.get("input_ids") is None:
            raise UnsupportedDecoding(f"{name} needs the whole prompt as input_ids: no cache from before, no inputs_embeds")
        return (), self._first(self.showing.encode_pixels(name, kwargs))

    def after(self, model: nn.Module, _args: tuple[Any, ...], kwargs: Call, output: Any) -> Any:
        """The logits of all branches become one."""
        if self.is_idle:
            return output
        self.row_split.main = None
        cache: PairedCache = kwargs["past_key_values"]
        combined = self._weigh(*self._each(model, output.logits[:, -1].float(), cache), cache)
        output.logits = combined.unsqueeze(1)  # [B, 1, vocab], in float32: what follows works in it anyway
        for key in ("hidden_states", "attentions"):  # what else was asked for is that of the main rows
            if output.get(key) is not None:
                output[key] = tuple(tensor[: len(combined)] for tensor in output[key])
        return output

    def merge(self, logits: Tensor, cache: PairedCache) -> Tensor:
        """One of the branches' logits, where all are rows of one forward: [rows, vocab] -> [B, vocab]."""
        main, *branches = logits.chunk(1 + len(self.builders))
        return self._weigh(main, branches, cache)

    def _weigh(self, main: Tensor, branches: list[Tensor], cache: PairedCache) -> Tensor:
        branches = [branch.to(main.device) for branch in branches]
        combined, values = self.weigh(main, branches, cache.steps, cache.kept)
        if cache.has_alone:
            combined = torch.where(cache.kept[ALONE].to(main.device).unsqueeze(-1), main, combined)
        if self.tap.listener is not None:
            values = {**values, **self.method.traced(main, branches, cache.steps)}
            if ALONE in cache.kept:
                values[ALONE] = cache.kept[ALONE].to(main)
            traced = {name: value.unsqueeze(1) for name, value in values.items()}
            states = self._read_states(cache)
            self.tap.listener(Observation(traced, main.unsqueeze(1), combined.unsqueeze(1), branches=states))
        return combined

    def _read_states(self, cache: PairedCache) -> tuple[Tensor, ...] | None:  # noqa: ARG002
        """The head's inputs [B, d] of each branch, of a method that may have them from before; None: what the head reads."""
        return None

    def _main(self, kwargs: Call) -> tuple[Inputs, Any]:
        """The prompt as generate was given it, and its pictures as the language model reads them."""
        features = self.showing.features(kwargs)
        main: Inputs = {key: kwargs[key] for key in TOKEN_KEYS if kwargs.get(key) is not None}
        main.setdefault("attention_mask", torch.ones_like(main["input_ids"]))
        if features is not None:
            main.update(self.pixels)  # pictures as generate was given them; it may have repeated their rows since
        return main, features

    def _first(self, kwargs: Call) -> Call:
        main, features = self._main(kwargs)
        with self._apart():  # the method may run the model to find out what its branch sees
            branches = [build(main) for build in self.builders]
        parts, shown = branches, [self._features(features, main, branch) for branch in branches]
        if not self.is_aside:
            parts, shown = [main, *parts], [features, *shown]
        rows = _stack(parts, self.backbone.pad_id)
        positions = self._positions(rows, [pictures for pictures in shown if pictures is not None])
        aside = [DynamicCache(config=self.backbone.config) for _ in branches if self.is_aside]
        read = {**rows, "position_ids": positions}
        reads = _split(read, len(branches)) if self.is_aside else [read]
        stepping = [DecodePositions(each["attention_mask"], each["position_ids"]) for each in reads]
        cache = PairedCache(self.backbone.config, stepping, aside)
        cache.merge = None if self.is_aside else self.merge
        for branch in branches:
            if ALONE in branch:
                cache.kept[ALONE] = branch[ALONE] | cache.kept.get(ALONE, False)
                cache.has_alone = bool(cache.kept[ALONE].any())
        if self.is_aside:
            apart = zip(reads, shown, strict=True)
            cache.waiting = [{**call, **self.showing.arguments(call["input_ids"], pictures)} for call, pictures in apart]
            return {**kwargs, "past_key_values": cache}
        pictures = join_pictures([pictures for pictures in shown if pictures is not None])
        return {**kwargs, **read, **self.showing.arguments(rows["input_ids"], pictures), "past_key_values": cache}

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        cache.step()
        kernel: str = self.text_config._attn_implementation
        ids = newest(kwargs["input_ids"])
        times = len(cache.rows[0].mask) // len(ids)
        if not cache.kinds:
            cache.kinds = {key: newest(kwargs[key]).repeat(times, 1) for key in KINDS if kwargs.get(key) is not None}
        if self.is_aside:
            token = {"input_ids": ids, **cache.kinds}
            own = zip(cache.rows, cache.aside, strict=True)
            cache.waiting = [{**token, **rows.arguments(aside, kernel)} for rows, aside in own]
            return kwargs
        (rows,) = cache.rows
        return {**kwargs, "input_ids": torch.cat([ids] * times), **cache.kinds, **rows.arguments(cache, kernel)}

    def _features(self, features: Any, main: Inputs, branch: Inputs) -> Any:
        """What a branch's pictures look like to the language model: those of the main rows if they are the same."""
        key = self.backbone.pixel_keys[0]
        if key not in branch:
            return None
        if branch[key] is main[key]:
            return features
        with self._apart():
            encoded = self.backbone.encode_pictures(branch)
        times, rest = divmod(len(features.pooler_output), len(encoded.pooler_output))
        if rest:
            raise UnsupportedDecoding(f"{self.method.name}: generate repeats rows unevenly; give one picture a row")
        return join_pictures([encoded], times)

    def _positions(self, rows: Inputs, shown: list[Any]) -> Tensor:
        """Of all rows; a grid of patches is needed for every picture in them, and beams have repeated each in its place."""
        given = {key: value for key, value in rows.items() if key in TOKEN_KEYS}
        grid = self.pixels.get("image_grid_thw")
        if grid is not None and shown:
            grids = [grid.repeat_interleave(len(part.pooler_output) // len(grid), 0) for part in shown]
            given["image_grid_thw"] = torch.cat(grids)
        return self.backbone.positions(given)

    def _each(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        """Logits of the main rows and of each branch's, from those of this forward."""
        if self.is_aside:
            return logits, [self._run_aside(model, *own) for own in zip(cache.waiting, cache.aside, strict=True)]
        main, *branches = logits.chunk(1 + len(self.builders))
        return main, branches

    def _run_aside(self, model: nn.Module, read: Call, cache: DynamicCache) -> Tensor:
        with self._apart():
            out = model(**read, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits: Tensor = out.logits[:, -1].float()
        return logits

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """The plain model, for us: no branch is added, and what acts at the head stays away."""
        before = self.row_split.main
        self.is_busy, self.row_split.main = True, 0
        try:
            yield
        finally:
            self.is_busy, self.row_split.main = False, before


def newest(row: Tensor) -> Tensor:
    """The last column, [B, 1]."""
    return row if row.shape[1] == 1 else row[:, -1:]


def _stack(parts: list[Inputs], pad: int) -> Inputs:
    """The rows of one part above those of the next, left padded to one length."""
    length = max(rows["input_ids"].shape[1] for rows in parts)

    def widen(rows: Inputs, key: str) -> Tensor:
        return F.pad(rows[key], (length - rows[key].shape[1], 0), value=pad if key == "input_ids" else 0)

    return {key: torch.cat([widen(rows, key) for rows in parts]) for key in TOKEN_KEYS if key in parts[0]}


def _split(read: Inputs, count: int) -> list[Call]:
    """Stacked rows, [..., rows, T] each, one part at a time."""
    parts = {key: value.chunk(count, dim=-2) for key, value in read.items()}
    return [{key: value[n] for key, value in parts.items()} for n in range(count)]
