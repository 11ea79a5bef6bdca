"""A second branch inside an ordinary `generate`: hooks on the model, and a cache that carries both branches.

Before a forward the branch's rows join the main ones, [main_0 .. main_B-1, branch_0 .. branch_B-1], left padded to one length;
afterwards the two halves of the logits become one. The caller sees B rows throughout, so sampling, beams, stopping and
streaming are transformers' own. Everything that belongs to one generation lives in the cache that the first forward hands out:
two generations never meet. Pictures that both branches see go through the vision tower once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache

from mgap.backbones.base import Backbone
from mgap.backbones.rows import ALONG
from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Observation, Tap
from mgap.methods.lanes import lanes_of

if TYPE_CHECKING:
    from mgap.methods.branch import BranchMethod

Call = dict[str, Any]  # named arguments of a forward
Inputs = dict[str, Tensor]  # as Backbone.encode gives them: left padded, one row a sample
Kept = dict[str, Tensor]  # what is remembered of each row [B, ...] from one token to the next
ALONE = "alone"  # in a branch's inputs, bool [B]: rows that have nothing to contrast with, and decode plainly


class PairedCache(DynamicCache):
    """Keys and values of the main rows, and of the branch's: behind them, or in a cache of its own (`aside`)."""

    def __init__(self, config: Any, mask: Tensor, positions: Tensor, aside: DynamicCache | None) -> None:
        super().__init__(config=config)
        self.mask = mask  # of the rows that need one from us: both branches, or the branch aside
        self.positions = positions[..., -1:]  # their last ones, [..., rows, 1]
        self.aside, self.steps = aside, 1
        self.waiting: Call = {}  # what the branch aside reads next
        self.kept: Kept = {}

    def step(self) -> tuple[Tensor, Tensor]:
        """The mask and positions for one more token."""
        self.mask = F.pad(self.mask, (0, 1), value=1)
        self.positions = self.positions + 1
        self.steps += 1
        return self.mask, self.positions

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Both branches follow the beams, and what is remembered of them."""
        self.kept = {key: value.index_select(0, beam_idx.to(value.device)) for key, value in self.kept.items()}
        if self.aside is None:
            beam_idx = torch.cat([beam_idx, beam_idx + len(beam_idx)])
        else:
            self.aside.reorder_cache(beam_idx)
        super().reorder_cache(beam_idx)
        self.mask, self.positions = self.mask[beam_idx], self.positions.index_select(-2, beam_idx)

    def crop(self, *_: Any, **__: Any) -> None:
        raise UnsupportedDecoding("a second branch cannot take tokens back: no assisted decoding")


class Pairing:
    """The hooks of one attached method. `remove` takes them off again."""

    def __init__(self, backbone: Backbone, method: BranchMethod, tap: Tap) -> None:
        self.backbone, self.method, self.tap = backbone, method, tap
        self.build = method.prepare(backbone, tap)
        self.is_aside = method.branch_mode == "sequential"
        self.is_busy = False  # while we run the model or its tower ourselves
        self.lanes = lanes_of(backbone.model)
        self.seen: Inputs = {}  # the pictures that went through the tower last
        self.handles: list[RemovableHandle] = [
            backbone.vision.register_forward_pre_hook(self.see, with_kwargs=True),
            backbone.model.register_forward_pre_hook(self.before, with_kwargs=True),
            backbone.model.register_forward_hook(self.after, with_kwargs=True),
        ]

    @property
    def is_idle(self) -> bool:
        return self.is_busy or self.lanes.is_paused

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.lanes.main = None

    def see(self, _tower: nn.Module, args: tuple[Any, ...], kwargs: Call) -> None:
        """Generate encodes the pictures before the first forward: keep what it shows to the tower."""
        if not self.is_idle:
            self.seen = self.backbone.seen(args, kwargs)

    def before(self, _model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        """Add the branch's rows, or get its own forward ready."""
        if self.is_idle:
            return args, kwargs
        name, cache = self.method.name, kwargs.get("past_key_values")
        if kwargs.get("logits_to_keep", 1) != 1:  # a draft is being checked, or this is no generate
            raise UnsupportedDecoding(f"{name} does not work with assisted decoding: one token at a time")
        self.lanes.main = None if self.is_aside else len(kwargs["input_ids"])
        if isinstance(cache, PairedCache):
            return (), self._next(kwargs, cache)
        if args or cache is None or kwargs.get("use_cache") is False:
            raise UnsupportedDecoding(f"{name} keeps its branch in the cache: call generate, with use_cache on")
        if cache.is_compileable:
            raise UnsupportedDecoding(f"{name} does not work with static or compiled decoding: use the dynamic cache")
        if cache.get_seq_length() > 0 or kwargs.get("input_ids") is None:
            raise UnsupportedDecoding(f"{name} needs the whole prompt as input_ids: no cache from before, no inputs_embeds")
        if kwargs.get("pixel_values") is not None:
            raise UnsupportedDecoding(f"{name} needs a model whose generate encodes pictures beforehand: this one does not")
        return (), self._first(kwargs)

    def after(self, model: nn.Module, _args: tuple[Any, ...], kwargs: Call, output: Any) -> Any:
        """Two logits become one."""
        if self.is_idle:
            return output
        self.lanes.main = None
        cache: PairedCache = kwargs["past_key_values"]
        logits = output.logits[:, -1].float()
        main, branch = self._both(model, logits, cache)
        combined, values = self.method.weigh(main, branch.to(main.device), cache.steps, cache.kept)
        if ALONE in cache.kept:
            combined = torch.where(cache.kept[ALONE].to(main.device).unsqueeze(-1), main, combined)
        if self.tap.listener is not None:
            traced = {name: value.unsqueeze(1) for name, value in values.items()}
            self.tap.listener(Observation(traced, main.unsqueeze(1), combined.unsqueeze(1)))
        output.logits = combined.unsqueeze(1)  # [B, 1, vocab], in float32: what follows works in it anyway
        for key in ("hidden_states", "attentions"):  # what else was asked for is that of the main rows
            if output.get(key) is not None:
                output[key] = tuple(tensor[: len(main)] for tensor in output[key])
        return output

    def _main(self, kwargs: Call) -> tuple[Inputs, Any]:
        """The prompt as generate was given it, and its pictures as the language model reads them."""
        features = (kwargs.get("mm_encoder_outputs") or {}).get("image")
        main: Inputs = {key: kwargs[key] for key in ALONG if kwargs.get(key) is not None}
        main.setdefault("attention_mask", torch.ones_like(main["input_ids"]))
        if features is not None:
            main.update(self.seen)  # pictures as generate was given them; it may have repeated their rows since
        return main, features

    def _first(self, kwargs: Call) -> Call:
        main, features = self._main(kwargs)
        with self._apart():  # the method may run the model to find out what its branch sees
            branch = self.build(main)
        other = self._features(features, main, branch)
        rows = branch if self.is_aside else _stack(main, branch, self.backbone.pad_id)
        shown = [part for part in ([other] if self.is_aside else [features, other]) if part is not None]
        pictures = join_pictures(shown)
        positions = self._positions(rows, shown)
        cache = PairedCache(
            self.backbone.config,
            rows["attention_mask"],
            positions,
            DynamicCache(config=self.backbone.config) if self.is_aside else None,
        )
        if ALONE in branch:
            cache.kept[ALONE] = branch[ALONE]
        read: Call = {key: rows[key] for key in ALONG if key in rows}
        read["position_ids"] = positions
        read["mm_encoder_outputs"] = {} if pictures is None else {"image": pictures}
        if self.is_aside:
            cache.waiting = read
            return {**kwargs, "past_key_values": cache}
        return {**kwargs, **read, "past_key_values": cache}

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        mask, positions = cache.step()
        token = {key: kwargs[key][:, -1:] for key in ALONG if key != "attention_mask" and kwargs.get(key) is not None}
        if self.is_aside:
            cache.waiting = {**token, "attention_mask": mask, "position_ids": positions}
            return kwargs
        twice = {key: value.repeat(2, 1) for key, value in token.items()}
        return {**kwargs, **twice, "attention_mask": mask, "position_ids": positions}

    def _features(self, features: Any, main: Inputs, branch: Inputs) -> Any:
        """What the branch's pictures look like to the language model: those of the main rows if they are the same."""
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
        given = {key: value for key, value in rows.items() if key in ALONG}
        grid = self.seen.get("image_grid_thw")
        if grid is not None and shown:
            grids = [grid.repeat_interleave(len(part.pooler_output) // len(grid), 0) for part in shown]
            given["image_grid_thw"] = torch.cat(grids)
        return self.backbone.positions(given)

    def _both(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, Tensor]:
        """Logits of the main rows and of the branch's, from those of this forward."""
        if self.is_aside:
            return logits, self._run_aside(model, cache.waiting, cache.aside)
        main, branch = logits.chunk(2)
        return main, branch

    def _run_aside(self, model: nn.Module, read: Call, cache: DynamicCache | None) -> Tensor:
        with self._apart():
            out = model(**read, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits: Tensor = out.logits[:, -1].float()
        return logits

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """The plain model, for us: no branch is added, and what acts at the head stays away."""
        before = self.lanes.main
        self.is_busy, self.lanes.main = True, 0
        try:
            yield
        finally:
            self.is_busy, self.lanes.main = False, before


def _stack(main: Inputs, branch: Inputs, pad: int) -> Inputs:
    """Main rows above branch rows, left padded to one length."""
    length = max(main["input_ids"].shape[1], branch["input_ids"].shape[1])

    def widen(rows: Inputs, key: str) -> Tensor:
        return F.pad(rows[key], (length - rows[key].shape[1], 0), value=pad if key == "input_ids" else 0)

    return {key: torch.cat([widen(main, key), widen(branch, key)]) for key in ALONG if key in main}


def join_pictures(parts: list[Any], times: int = 1) -> Any:
    """Encoded pictures one after the other, each `times` times; None for no parts."""
    if not parts:
        return None

    def repeated(lists: list[Any]) -> Any:
        if isinstance(lists[0], Tensor):  # [pictures, tokens, d]
            return torch.cat(lists).repeat_interleave(times, 0)
        return [picture for pictures in lists for picture in pictures for _ in range(times)]

    joined = copy(parts[0])
    joined.pooler_output = repeated([part.pooler_output for part in parts])
    if getattr(joined, "deepstack_features", None) is not None:
        levels = zip(*(part.deepstack_features for part in parts), strict=True)
        joined.deepstack_features = [repeated(list(level)) for level in levels]
    return joined
