"""One decoding step at fixed addresses: from the last token to the state that the head reads.

The step is the text decoder alone. What comes after it, the head with the methods that act there and the choice of a token, is
ordinary code: it runs while the card is busy with the step, so that it costs the card its own few kernels and nobody's hook is
skipped. On a CUDA device the step is captured as a graph, compiled by inductor before or not; a replay launches it at once,
where eager decoding of a 7B model waits for a thousand launches. A captured step outlives attaching and detaching of methods.

Shapes are bucketed: rows to powers of two, lengths to multiples of 256. The last few steps are kept, each with its cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mgap.backbones.base import Backbone, families_that
from mgap.backbones.hooks import is_hooked
from mgap.backbones.image_embeddings import embed_pictures
from mgap.decoding.fast.fixed_cache import FixedCache, attending

KEPT = 4  # steps of one model, the latest
LENGTHS = 256  # cache lengths are multiples of this
WARM = 3  # runs before a capture: the first compiles, and libraries settle

Notify = Callable[[str], None]  # hears what keeps a token waiting, a line at a time


def uncapturable(backbone: Backbone) -> str:
    """Why the model's step cannot be run at fixed addresses; "" where it can."""
    name, kind = backbone.name, backbone.config.model_type
    if not backbone.captures_steps:
        return f"{name}: {kind} has not been checked; checked: {', '.join(families_that('captures_steps'))}"
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=backbone.config).layers):
        return f"{name}: its cache forgets (a sliding window, or a state)"
    language = backbone.language
    if len({parameter.device for parameter in language.parameters()}) > 1:
        return f"{name}: its blocks are on several devices"
    if is_hooked(language, besides=[embed_pictures]):  # a prompt's pictures come in there, a step has none
        return f"{name}: there are hooks inside its text decoder, which would not run"
    return ""


class CapturedStep:
    """The text decoder on one token of `rows` rows, with its cache; `run` gives the head's input [rows, 1, d]."""

    def __init__(self, backbone: Backbone, cache: FixedCache, positions: Tensor, *, is_compiled: bool) -> None:
        self.language, self.cache, self.is_compiled = backbone.language, cache, is_compiled
        rows = len(cache.mask)
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=cache.mask.device)
        self.positions = positions.new_zeros(*positions.shape[:-2], rows, 1)  # [..., rows, 1]
        self.weights = addresses(self.language)
        self._forward: Any = self.language
        if is_compiled:
            tuned = rows == 1 and self.token.is_cuda  # products with one row are then fused kernels that read at full speed
            options: dict[str, Any] = {"coordinate_descent_tuning": True} if tuned else {}
            self._forward = torch.compile(self.language, dynamic=False, options=options)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._state: Tensor | None = None  # [rows, 1, d], where the graph leaves it

    def start(self, prompt: DynamicCache, attention_mask: Tensor, positions: Tensor, times: int) -> None:
        """Go on from a prompt: its keys and values, its mask [B, T], and the positions of its last tokens [..., B, 1]."""
        if self.token.is_cuda and self._graph is None:
            self._capture()
        self.cache.fill(prompt, attention_mask, times)
        last = positions.repeat_interleave(times, -2)
        self.positions.zero_()
        self.positions[..., : last.shape[-2], :] = last

    def run(self, token: Tensor) -> Tensor:
        """One token [B] further: the head's input [rows, 1, d], valid until the next call."""
        self.token[: len(token), 0] = token
        self.positions += 1
        self.cache.mask.index_fill_(3, self.cache.place, 0)
        if self._graph is None:
            state = self._body()
        else:
            self._graph.replay()
            assert self._state is not None
            state = self._state
        self.cache.place += 1
        return state

    def _body(self) -> Tensor:
        with attending(self.language.config), torch._dynamo.config.patch(recompile_limit=64):
            out = self._forward(
                input_ids=self.token,
                attention_mask=self.cache.mask,
                position_ids=self.positions,
                past_key_values=self.cache,
                use_cache=True,
            )
        state: Tensor = out.last_hidden_state
        return state

    def _capture(self) -> None:
        aside = torch.cuda.Stream(self.token.device)
        aside.wait_stream(torch.cuda.current_stream(self.token.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self._body()
        torch.cuda.current_stream(self.token.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._state = self._body()
        self._graph = graph


_steps: WeakKeyDictionary[nn.Module, dict[tuple[int, int, bool], CapturedStep]] = WeakKeyDictionary()


def step_for(
    backbone: Backbone, prompt: DynamicCache, positions: Tensor, rows: int, length: int, *, compiled: bool, notify: Notify
) -> CapturedStep:
    """A step that holds `rows` rows of up to `length` tokens: one that is there already, or a new one."""
    if compiled or positions.is_cuda:
        rows, length = 1 << (rows - 1).bit_length(), -(-length // LENGTHS) * LENGTHS
    kept, key = _steps.setdefault(backbone.model, {}), (rows, length, compiled)
    step = kept.pop(key, None)
    if step is None or step.weights != addresses(backbone.language):
        while len(kept) >= KEPT:
            kept.pop(next(iter(kept)))
        if compiled:
            notify(f"compiling the decoding step for {rows} row{'s' * (rows > 1)} of up to {length} tokens, once")
        step = CapturedStep(backbone, FixedCache(prompt, rows, length), positions, is_compiled=compiled)
    kept[key] = step  # at the end: the latest
    return step


def forget(model: nn.Module) -> None:
    """Give the memory of a model's steps back."""
    _steps.pop(model, None)


def addresses(module: nn.Module) -> tuple[int, ...]:
    """Where the weights are: a captured step reads them there, and is of no use once they have moved."""
    return tuple(parameter.data_ptr() for parameter in module.parameters())
