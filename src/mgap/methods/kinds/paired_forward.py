"""One or more extra branches inside an ordinary `generate`: hooks on the model, and a cache that holds all branches.

Before a forward the branch's rows are appended to the main ones, [main_0 .. main_B-1, branch_0 .. branch_B-1], left padded to
one length, followed by those of a further branch. Afterwards the logits are combined into one. The caller sees B rows
throughout, so sampling, beams, stopping and streaming are transformers' own. All state of a generation lives in the cache that
its first forward returns, so generations never mix. Pictures that a branch shares with the main rows are encoded once.
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
from mgap.backbones.image_embeddings import Call, ImageEmbedder, by_row, join_pictures
from mgap.backbones.token_rows import TOKEN_KEYS
from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Observation, Tap
from mgap.methods.kinds.decode_positions import DecodePositions
from mgap.methods.kinds.main_rows import row_split_of

if TYPE_CHECKING:
    from mgap.methods.kinds.branch import PairedMethod

Inputs = dict[str, Tensor]  # as from Backbone.encode: left padded, one row per sample
Merge = Callable[[Tensor, "PairedCache"], Tensor]  # logits of all rows [rows, vocab] -> of the main ones [B, vocab]
RowState = dict[str, Tensor]  # state of each row [B, ...] from one token to the next
Weigh = Callable[[Tensor, Sequence[Tensor], int, RowState], tuple[Tensor, dict[str, Tensor]]]  # combines logits [B, vocab]
TYPE_KEYS = tuple(key for key in TOKEN_KEYS if key not in ("input_ids", "attention_mask"))
GRID = "image_grid_thw"  # the patches of each picture, in families whose pictures keep their shape
ALONE = "alone"  # in a branch's inputs, bool [B]: rows that have nothing to contrast with, and decode plainly
COUNT = "branches"  # in the first branch's inputs, [B]: how many of the branches are the row's own; the others only fill up
SHOWS = "shows"  # in a branch's inputs, [B]: which of its own pictures each row shows; -1: the main row's
ROW_KEYS = (ALONE, COUNT)  # what a branch's inputs may say of rows, for `weigh` and a trace


class PairedCache(DynamicCache):
    """Keys and values of the main rows and of each branch: appended to the main rows, or in `branch_caches`."""

    def __init__(self, config: Any, rows: list[DecodePositions], branch_caches: list[DynamicCache]) -> None:
        super().__init__(config=config)
        self.rows = rows  # of the forwards whose positions we set: the single one, or each separate branch's
        self.branch_caches, self.steps = branch_caches, 1  # one cache per separate branch
        self.branch_count = 1
        self.branch_inputs: list[Call] = []  # what each separate branch reads next
        self.token_types: Inputs = {}  # [rows, 1] each: token types, the same for every new token
        self.row_state: RowState = {}
        self.has_alone = False  # whether any row decodes plainly
        self.merge: Merge | None = None  # for a loop that runs the steps of all rows without our hooks

    def step(self) -> None:
        """Advance by one token."""
        self.steps += 1
        for rows in self.rows:
            rows.step()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder every branch, and the state of its rows, with the beams."""
        self.row_state = {key: value.index_select(0, beam_idx.to(value.device)) for key, value in self.row_state.items()}
        all_rows = beam_idx
        if not self.branch_caches:
            all_rows = torch.cat([beam_idx + first for first in range(0, len(self.rows[0].mask), len(beam_idx))])
        for rows in self.rows:
            rows.reorder(all_rows)
        for cache in self.branch_caches:
            cache.reorder_cache(beam_idx)
        super().reorder_cache(all_rows)

    def crop(self, *_: Any, **__: Any) -> None:
        raise UnsupportedDecoding("a second branch cannot take tokens back: no assisted decoding")


class ObservedCache(PairedCache):
    """One separate branch, and the answer so far, for a branch that does not read every token at once."""

    def __init__(self, config: Any, prompt: Call) -> None:
        super().__init__(
            config, [DecodePositions(prompt["attention_mask"], prompt["position_ids"])], [DynamicCache(config=config)]
        )
        self.branch_inputs = [prompt]
        self.answer: Inputs = {}  # [B, new] each: the answer so far

    def append(self, token: Inputs) -> None:
        """Add one token to the answer."""
        self.step()
        self.answer = {key: torch.cat([self.answer[key], new], 1) if self.answer else new for key, new in token.items()}

    def answer_after(self, read: int = 0) -> Call | None:
        """Forward arguments for the answer after its first `read` tokens; None: nothing is left."""
        (rows,), rest = self.rows, {key: value[:, read:] for key, value in self.answer.items()}
        if not rest or not rest["input_ids"].shape[1]:
            return None
        back = torch.arange(1 - rest["input_ids"].shape[1], 1, device=rows.positions.device)
        return {**rest, "attention_mask": rows.whole_mask(), "position_ids": rows.positions + back}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.answer = {key: value[beam_idx] for key, value in self.answer.items()}


class PairedForward:
    """The hooks of one attached method."""

    def __init__(self, backbone: Backbone, method: PairedMethod, tap: Tap) -> None:
        self.backbone, self.method, self.tap = backbone, method, tap
        self.build, self.weigh = method.branches(backbone, tap), method.weigher(backbone)
        self.is_separate = method.branch_mode != "batched"  # branches run in forwards of their own
        self.is_running = False  # we are running the model or its vision tower ourselves
        self.row_split = row_split_of(backbone.model)
        self.embedder = ImageEmbedder(backbone)
        self.text_config = backbone.config.get_text_config(decoder=True)
        self.pixels: Inputs = {}  # the vision tower's last inputs
        self.handles: list[RemovableHandle] = [
            backbone.vision.register_forward_pre_hook(self.keep_pixels, with_kwargs=True),
            backbone.model.register_forward_pre_hook(self.before, with_kwargs=True),
            backbone.model.register_forward_hook(self.after, with_kwargs=True),
            *self.embedder.attach(),
        ]

    @property
    def is_idle(self) -> bool:
        return self.is_running or self.row_split.is_paused

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.row_split.main = None

    def keep_pixels(self, _tower: nn.Module, args: tuple[Any, ...], kwargs: Call) -> None:
        """Keep the vision tower's inputs: pictures are encoded before the first forward."""
        if not self.is_idle:
            self.pixels = self.backbone.tower_inputs(args, kwargs)

    def before(self, _model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        """Append the branches' rows, or prepare their separate forwards."""
        if self.is_idle:
            return args, kwargs
        name, cache = self.method.name, kwargs.get("past_key_values")
        if kwargs.get("logits_to_keep", 1) != 1:  # a draft is being checked, or this is not `generate`
            raise UnsupportedDecoding(f"{name} does not work with assisted decoding: one token at a time")
        self.row_split.main = None if self.is_separate else len(kwargs["input_ids"])
        if isinstance(cache, PairedCache):
            if kwargs["input_ids"].shape[1] > 1:
                raise UnsupportedDecoding(f"{name} reads a prompt in one piece: call generate without prefill_chunk_size")
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
        return (), self._first(self.embedder.encode_pixels(name, kwargs))

    def after(self, model: nn.Module, _args: tuple[Any, ...], kwargs: Call, output: Any) -> Any:
        """Combine the logits of all branches."""
        if self.is_idle:
            return output
        self.row_split.main = None
        cache: PairedCache = kwargs["past_key_values"]
        combined = self._weigh(*self._split_logits(model, output.logits[:, -1].float(), cache), cache)
        output.logits = combined.unsqueeze(1)  # [B, 1, vocab], in float32, as what follows uses it anyway
        for key in ("hidden_states", "attentions"):  # other outputs are those of the main rows
            if output.get(key) is not None:
                output[key] = tuple(tensor[: len(combined)] for tensor in output[key])
        return output

    def merge(self, logits: Tensor, cache: PairedCache) -> Tensor:
        """Combine the logits of branches that are rows of one forward: [rows, vocab] -> [B, vocab]."""
        main, *branches = logits.chunk(1 + cache.branch_count)
        return self._weigh(main, branches, cache)

    def _weigh(self, main: Tensor, branches: list[Tensor], cache: PairedCache) -> Tensor:
        branches = [branch.to(main.device) for branch in branches]
        combined, values = self.weigh(main, branches, cache.steps, cache.row_state)
        if cache.has_alone:
            combined = torch.where(cache.row_state[ALONE].to(main.device).unsqueeze(-1), main, combined)
        if self.tap.listener is not None:
            values = {**values, **self.method.traced(main, branches, cache.steps)}
            values |= {key: cache.row_state[key].to(main) for key in ROW_KEYS if key in cache.row_state}
            traced = {name: value.unsqueeze(1) for name, value in values.items()}
            states = self._read_states(cache)
            self.tap.listener(Observation(traced, main.unsqueeze(1), combined.unsqueeze(1), branches=states))
        return combined

    def _read_states(self, cache: PairedCache) -> tuple[Tensor, ...] | None:  # noqa: ARG002
        """Each branch's head inputs [B, d], for a method that may have cached them; None: what the head reads."""
        return None

    def _main(self, kwargs: Call) -> tuple[Inputs, Any]:
        """The prompt as passed to `generate`, and its encoded pictures."""
        features = self.embedder.features(kwargs)
        main: Inputs = {key: kwargs[key] for key in TOKEN_KEYS if kwargs.get(key) is not None}
        main.setdefault("attention_mask", torch.ones_like(main["input_ids"]))
        if features is not None:
            main.update(self.pixels)  # as passed to `generate`, which may have repeated their rows since
        return main, features

    def _first(self, kwargs: Call) -> Call:
        main, features = self._main(kwargs)
        with self._plain_model():  # the method may run the model to build its branch
            branches = self.build(main)
        parts, shown = branches, [self._features(features, main, branch) for branch in branches]
        if not self.is_separate:
            parts, shown = [main, *parts], [features, *shown]
        rows = _stack(parts, self.backbone.pad_id)
        positions = self._positions(rows, list(zip(parts, shown, strict=True)))
        branch_caches = [DynamicCache(config=self.backbone.config) for _ in branches if self.is_separate]
        inputs = {**rows, "position_ids": positions}
        calls = _split(inputs, len(branches)) if self.is_separate else [inputs]
        stepping = [DecodePositions(call["attention_mask"], call["position_ids"]) for call in calls]
        cache = PairedCache(self.backbone.config, stepping, branch_caches)
        cache.merge, cache.branch_count = None if self.is_separate else self.merge, len(branches)
        for branch in branches:
            if ALONE in branch:
                cache.row_state[ALONE] = branch[ALONE] | cache.row_state.get(ALONE, False)
                cache.has_alone = bool(cache.row_state[ALONE].any())
            if COUNT in branch:
                cache.row_state[COUNT] = branch[COUNT]
        if self.is_separate:
            pairs = zip(calls, shown, strict=True)
            cache.branch_inputs = [{**call, **self.embedder.arguments(call["input_ids"], images)} for call, images in pairs]
            return {**kwargs, "past_key_values": cache}
        pictures = join_pictures([pictures for pictures in shown if pictures is not None])
        return {**kwargs, **inputs, **self.embedder.arguments(rows["input_ids"], pictures), "past_key_values": cache}

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        cache.step()
        kernel: str = self.text_config._attn_implementation
        ids = newest(kwargs["input_ids"])
        times = len(cache.rows[0].mask) // len(ids)
        if not cache.token_types:
            types = {key: newest(kwargs[key]) for key in TYPE_KEYS if kwargs.get(key) is not None}
            cache.token_types = {key: value.repeat(times, 1) for key, value in types.items()}
        if self.is_separate:
            token = {"input_ids": ids, **cache.token_types}
            pairs = zip(cache.rows, cache.branch_caches, strict=True)
            cache.branch_inputs = [{**token, **rows.arguments(branch, kernel)} for rows, branch in pairs]
            return kwargs
        (rows,) = cache.rows
        return {**kwargs, "input_ids": torch.cat([ids] * times), **cache.token_types, **rows.arguments(cache, kernel)}

    def _features(self, features: Any, main: Inputs, branch: Inputs) -> Any:
        """A branch's encoded pictures; those of the main rows if the pixels are the same."""
        key = self.backbone.pixel_keys[0]
        if key not in branch:
            return None
        if branch[key] is main[key]:
            return features
        with self._plain_model():
            encoded = self.backbone.encode_pictures(branch)
        if SHOWS in branch:
            return self._choose(features, main, encoded, branch)
        times, rest = divmod(len(features.pooler_output), len(encoded.pooler_output))
        if rest:
            raise UnsupportedDecoding(f"{self.method.name}: generate repeats rows unevenly; give one picture a row")
        return join_pictures([encoded], times)

    def _choose(self, features: Any, main: Inputs, encoded: Any, branch: Inputs) -> Any:
        """The picture that each row of a branch shows: its own, or the main row's, which is not encoded again."""
        shows, counts = branch[SHOWS].tolist(), self.backbone.image_mask(branch).sum(-1).tolist()
        main_rows = by_row(features, self.backbone.image_mask(main).sum(-1).tolist())
        own = by_row(encoded, [counts[shows.index(number)] for number in range(max(shows) + 1)])
        return join_pictures([main_rows[row] if number < 0 else own[number] for row, number in enumerate(shows)])

    def _positions(self, rows: Inputs, shown: list[tuple[Inputs, Any]]) -> Tensor:
        """Position ids of all rows, given the inputs and encoded pictures (or None) of each part of them.

        M-RoPE needs a patch grid for every picture, and a branch's may have its own; beams repeat each picture in place.
        """
        inputs = {key: value for key, value in rows.items() if key in TOKEN_KEYS}
        if grids := [self._grid(part, len(of.pooler_output)) for part, of in shown if of is not None and GRID in part]:
            inputs[GRID] = torch.cat(grids)
        return self.backbone.positions(inputs)

    def _grid(self, part: Inputs, count: int) -> Tensor:
        """The patch grids of a part's `count` pictures, [count, 3]."""
        if SHOWS not in part:
            return part[GRID].repeat_interleave(count // len(part[GRID]), 0)
        main = self.pixels[GRID].repeat_interleave(count // len(self.pixels[GRID]), 0)
        return torch.stack([main[row] if own < 0 else part[GRID][own] for row, own in enumerate(part[SHOWS].tolist())])

    def _split_logits(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        """Logits of the main rows and of each branch, given this forward's logits; runs separate branches."""
        if self.is_separate:
            pairs = zip(cache.branch_inputs, cache.branch_caches, strict=True)
            return logits, [self._run_branch(model, *pair) for pair in pairs]
        main, *branches = logits.chunk(1 + cache.branch_count)
        return main, branches

    def _run_branch(self, model: nn.Module, call: Call, cache: DynamicCache) -> Tensor:
        with self._plain_model():
            out = model(**call, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits: Tensor = out.logits[:, -1].float()
        return logits

    @contextmanager
    def _plain_model(self) -> Iterator[None]:
        """Inside the block the model runs plainly: no branch is added, and head methods do not act."""
        main = self.row_split.main
        self.is_running, self.row_split.main = True, 0
        try:
            yield
        finally:
            self.is_running, self.row_split.main = False, main


def newest(row: Tensor) -> Tensor:
    """The last column, [B, 1]."""
    return row if row.shape[1] == 1 else row[:, -1:]


def _stack(parts: list[Inputs], pad: int) -> Inputs:
    """Concatenate the rows of all parts, left padded to one length."""
    length = max(rows["input_ids"].shape[1] for rows in parts)

    def left_pad(rows: Inputs, key: str) -> Tensor:
        return F.pad(rows[key], (length - rows[key].shape[1], 0), value=pad if key == "input_ids" else 0)

    return {key: torch.cat([left_pad(rows, key) for rows in parts]) for key in TOKEN_KEYS if key in parts[0]}


def _split(inputs: Inputs, count: int) -> list[Call]:
    """Split stacked rows, [..., rows, T] each, into `count` parts."""
    parts = {key: value.chunk(count, dim=-2) for key, value in inputs.items()}
    return [{key: value[n] for key, value in parts.items()} for n in range(count)]
