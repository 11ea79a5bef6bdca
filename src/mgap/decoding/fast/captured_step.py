"""One decoding step at fixed addresses: from the last token to the state that the head reads.

The step is the text decoder alone. The head, the methods that act there and the choice of a token are ordinary code that runs
while the GPU is busy with the step: they add only their own few kernels, and no hook is skipped. On a CUDA device the step is
captured as a graph, optionally compiled by inductor first. A replay is one launch, where eager decoding of a 7B model waits for
a thousand. A captured step survives attaching and detaching methods. One that acts inside the decoder, and says that a step may
hold its hooks (`Method.capturable`), is captured with it: it has steps of its own, which only that same method uses.

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
from mgap.backbones.decoding_limits import check_memory
from mgap.backbones.hooks import hooks_in, is_hooked
from mgap.backbones.image_embeddings import embed_pictures
from mgap.decoding.attach import attached
from mgap.decoding.fast.fixed_cache import FixedCache, fixed_attention
from mgap.methods.base import Method

MAX_STEPS = 4  # captured steps kept per model, the most recently used
LENGTH_MULTIPLE = 256  # cache lengths are rounded up to this
WARMUP_RUNS = 3  # before a capture: the first compiles, and libraries initialise

Notify = Callable[[str], None]  # called with a line of text about what delays a token


def uncapturable(backbone: Backbone) -> str:
    """Why the model's step cannot run at fixed addresses; "" if it can."""
    name, kind = backbone.name, backbone.config.model_type
    if not backbone.captures_steps:
        return f"{name}: {kind} has not been checked; checked: {', '.join(families_that('captures_steps'))}"
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=backbone.config).layers):
        return f"{name}: its cache forgets (a sliding window, or a state)"
    language = backbone.language
    if len({parameter.device for parameter in language.parameters()}) > 1:
        return f"{name}: its blocks are on several devices"
    captured = [hook for one in attached(backbone.model) if one.method.capturable for hook in one.hooks]
    if is_hooked(language, besides=[embed_pictures, *captured]):  # the first inserts a prompt's pictures; a step has none
        return f"{name}: there are hooks inside its text decoder, which would not run"
    return ""


def methods_inside(model: nn.Module) -> tuple[Method, ...]:
    """The attached methods that a step of this model must be captured with."""
    active = (attachment.method for attachment in attached(model))
    return tuple(method for method in active if method.capturable and not method.is_zero)


class CapturedStep:
    """The text decoder on one token per row, with its cache; `run` returns the head's input [rows, 1, d]."""

    def __init__(self, backbone: Backbone, cache: FixedCache, positions: Tensor, *, is_compiled: bool) -> None:
        self.language, self.cache, self.is_compiled = backbone.language, cache, is_compiled
        rows = len(cache.mask)
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=cache.mask.device)
        self.positions = positions.new_zeros(*positions.shape[:-2], rows, 1)  # [..., rows, 1]
        self.weights = addresses(self.language)
        self.held = methods_inside(backbone.model), list(hooks_in(self.language))  # the graph reads their tensors
        self._forward: Any = self.language
        if is_compiled:
            tuned = rows == 1 and self.token.is_cuda  # gives one-row products fused kernels at full memory bandwidth
            options: dict[str, Any] = {"coordinate_descent_tuning": True} if tuned else {}
            self._forward = torch.compile(self.language, dynamic=False, options=options)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._state: Tensor | None = None  # [rows, 1, d], the graph's output buffer

    def start(self, prompt: DynamicCache, attention_mask: Tensor, positions: Tensor, times: int) -> None:
        """Continue a prompt: its keys and values, its mask [B, T], and the positions of its last tokens [..., B, 1]."""
        if self.token.is_cuda and self._graph is None:
            self._capture()
        self.cache.fill(prompt, attention_mask, times)
        last = positions.repeat_interleave(times, -2)
        self.positions.zero_()
        self.positions[..., : last.shape[-2], :] = last

    def run(self, token: Tensor) -> Tensor:
        """Decode one more token [B]; returns the head's input [rows, 1, d], valid until the next call."""
        self.token[: len(token), 0] = token
        self.positions += 1
        self.cache.mask.index_fill_(3, self.cache.index, 0)
        if self._graph is None:
            state = self._body()
        else:
            self._graph.replay()
            assert self._state is not None
            state = self._state
        self.cache.index += 1
        return state

    def _body(self) -> Tensor:
        with fixed_attention(self.language.config), torch._dynamo.config.patch(recompile_limit=64):
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
        warmup = torch.cuda.Stream(self.token.device)
        warmup.wait_stream(torch.cuda.current_stream(self.token.device))
        with torch.cuda.stream(warmup):
            for _ in range(WARMUP_RUNS):
                self._body()
        torch.cuda.current_stream(self.token.device).wait_stream(warmup)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._state = self._body()
        self._graph = graph


_steps: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], CapturedStep]] = WeakKeyDictionary()


def step_for(
    backbone: Backbone, prompt: DynamicCache, positions: Tensor, rows: int, length: int, *, compiled: bool, notify: Notify
) -> CapturedStep:
    """A step for `rows` rows of up to `length` tokens: a kept one, or a new one."""
    if compiled or positions.is_cuda:
        rows, length = 1 << (rows - 1).bit_length(), -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    inside = map(id, methods_inside(backbone.model))  # kept by their step, so no other method ever has such an id
    steps, key = _steps.setdefault(backbone.model, {}), (rows, length, compiled, *inside)
    step = steps.pop(key, None)
    if step is None or step.weights != addresses(backbone.language):
        while len(steps) >= MAX_STEPS:
            steps.pop(next(iter(steps)))
        check_memory(backbone, rows, length)
        if compiled:
            notify(f"compiling the decoding step for {rows} row{'s' * (rows > 1)} of up to {length} tokens, once")
        step = CapturedStep(backbone, FixedCache(prompt, rows, length), positions, is_compiled=compiled)
    steps[key] = step  # last in the dict: the most recently used
    return step


def forget(model: nn.Module) -> None:
    """Free the memory of a model's captured steps."""
    _steps.pop(model, None)


def addresses(module: nn.Module) -> tuple[int, ...]:
    """The addresses of the weights; a captured step reads them there and is invalid once they move."""
    return tuple(parameter.data_ptr() for parameter in module.parameters())
