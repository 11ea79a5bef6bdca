"""The head of a model of mlx-vlm: found by running it, and measured like transformers' (backbones/head.py).

The head is an `lm_head`, or the input embedding's `as_linear` where the two are tied. What acts there shadows it on the object:
the module stays where it is, so that weights and their names do not change, and no class is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from mlx import nn
from mlx_vlm.models.cache import make_prompt_cache

from mgap.backbones.head import measure_post, ramp
from mgap.errors import ModelError, UnsupportedHead, one_line

Product = Callable[[Any], Any]  # states [..., d] to logits [..., vocab]
_ROWS = 8192  # weight rows widened at a time
_PLAIN = (nn.Linear, nn.Embedding)
_FUSED = "fused_greedy_decode"  # of some models: picks tokens from the head's weights, past the head


@dataclass(frozen=True)
class HeadPlace:
    """Where a model calls its head: `owner.name(h)`."""

    language: Any  # the language model
    owner: Any
    name: str  # "lm_head" or "as_linear"

    @property
    def module(self) -> Any:
        """The module with the weights."""
        return self.owner["lm_head"] if self.name == "lm_head" else self.owner

    def own(self, h: Any) -> Any:
        """The head as the model has it."""
        return self.module(h) if self.name == "lm_head" else type(self.owner).as_linear(self.owner, h)

    @property
    def shadow(self) -> Any:
        """What acts there; None: the model's own."""
        return vars(self.owner).get(self.name)

    def set(self, product: Product) -> None:
        """Call `product` instead, until `clear`. Fused steps, which would pass it by, are off meanwhile."""
        object.__setattr__(self.owner, self.name, product)
        if callable(getattr(self.language, _FUSED, None)):
            object.__setattr__(self.language, _FUSED, None)

    def clear(self) -> None:
        vars(self.owner).pop(self.name, None)
        if _FUSED in vars(self.language):
            del vars(self.language)[_FUSED]

    @property
    def weights(self) -> tuple[int, ...]:
        """Which arrays the head holds now, to notice others."""
        return (id(self.module), *(id(value) for value in self.module.values()))


@contextmanager
def hooked(place: HeadPlace, product: Product) -> Iterator[None]:
    place.set(product)
    try:
        yield
    finally:
        place.clear()


@dataclass(frozen=True)
class MlxHead:
    """logits = post(head(h)), as `mgap.backbones.head.Head`."""

    place: HeadPlace
    hidden_size: int
    vocab_size: int
    bias: Any | None  # [vocab] float32
    linear: bool  # head(a + b) = head(a) + head(b) up to rounding (and bias)
    scale: float
    cap: float | None

    def post(self, z: Any) -> Any:
        """Apply the model's scale and soft cap [..., vocab]."""
        z = z if self.scale == 1.0 else z * self.scale
        return z if self.cap is None else self.cap * mx.tanh(z / self.cap)

    def product(self, h: Any) -> Any:
        """The head's product [..., d] -> [..., vocab] in float32; 16-bit weights are widened a few thousand rows at a time."""
        h, module = h.astype(mx.float32), self.place.module
        if type(module) not in _PLAIN or module["weight"].dtype == mx.float32:
            return self.place.own(h).astype(mx.float32)
        weight = module["weight"]
        parts = [h @ weight[start : start + _ROWS].astype(mx.float32).T for start in range(0, len(weight), _ROWS)]
        product = mx.concatenate(parts, axis=-1)
        return product if self.bias is None else product + self.bias

    def table(self, basis: Any) -> Any:
        """W V as [K, vocab] in float32, for a basis [d, K]."""
        table = self.product(basis.T)
        return table if self.bias is None else table - self.bias

    @classmethod
    def of(cls, model: Any) -> MlxHead:
        """Find and measure the head: three forwards of one token, and four products."""
        place, state = find_head_place(model)
        zero = place.own(mx.zeros((1, state.shape[-1]), dtype=mx.float32)).astype(mx.float32)[0]  # [vocab]
        scale, cap = _post_of(place, model)
        return cls(
            place=place,
            hidden_size=state.shape[-1],
            vocab_size=len(zero),
            bias=zero if mx.any(zero != 0).item() else None,
            linear=_is_linear(place, state.shape[-1], zero),
            scale=scale,
            cap=cap,
        )


def find_head_place(model: Any) -> tuple[HeadPlace, Any]:
    """The place through which all logits go, and a state [1, 1, d] that came by. Refuses a model that has no such place."""
    language = language_of(model)
    named = [module for _, module in language.named_modules()]
    places = [HeadPlace(language, module, "lm_head") for module in named if module.get("lm_head") is not None]
    places += [HeadPlace(language, module, "as_linear") for module in named if callable(getattr(module, "as_linear", None))]
    taken = [place for place in places if place.shadow is not None]
    if taken:
        raise UnsupportedHead(f"{type(model).__name__}: something acts at its head already: detach it first")
    for place in places:
        states: list[Any] = []

        def catch(h: Any, place: HeadPlace = place, states: list[Any] = states) -> Any:
            states.append(h)
            return place.own(h)

        with hooked(place, catch):
            _one_token(language)
        if len(states) == 1:
            return place, states[0]
    raise UnsupportedHead(
        f"{type(model).__name__} gets its logits neither from one lm_head nor from a tied embedding's as_linear: its logits "
        "cannot be corrected there"
    )


def language_of(model: Any) -> Any:
    """The part of a model of mlx-vlm that makes logits."""
    language = getattr(model, "language_model", None)
    if not isinstance(language, nn.Module):
        raise ModelError(f"{type(model).__name__} is no model of mlx-vlm with a language_model: pass what mlx_vlm.load returns")
    return language


def _post_of(place: HeadPlace, model: Any) -> tuple[float, float | None]:
    ramps: list[Any] = []

    def replace(h: Any) -> Any:
        output = place.own(h)
        values = mx.array(ramp(output.shape[-1]).numpy()).astype(output.dtype)
        ramps.append(mx.broadcast_to(values, output.shape))
        return ramps[-1]

    with hooked(place, replace):
        logits = _one_token(place.language)
    eps = float(mx.finfo(ramps[0].dtype).eps)
    return measure_post(to_torch(ramps[0]), to_torch(logits), eps, type(model).__name__)


def _one_token(language: Any) -> Any:
    """Logits of one token [1, 1, vocab]; what the model remembers of its last picture is put back."""
    attributes, entries = dict(vars(language)), dict(language)
    try:
        output = language(mx.array([[0]]), cache=make_prompt_cache(language))
        logits = output.logits
        mx.eval(logits)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{type(language).__name__} cannot be run on one token, so that its head is not found ({one_line(error)}): "
            "MGAP cannot act on it"
        ) from error
    finally:
        vars(language).clear()
        vars(language).update(attributes)
        dict.clear(language)
        dict.update(language, entries)  # not Module.update, which sets parameters
    return logits


def _is_linear(place: HeadPlace, width: int, bias: Any) -> bool:
    """As `mgap.backbones.head`: additivity on vectors with disjoint supports, whose sum is exact."""
    total = mx.array(np.random.default_rng(0).standard_normal((8, width)).astype(np.float32))
    is_even = (mx.arange(width) % 2 == 0).astype(mx.float32)
    f_total, f_even, f_odd = (place.own(x).astype(mx.float32) - bias for x in (total, total * is_even, total * (1 - is_even)))
    error = mx.sqrt(mx.mean(mx.square(f_total - f_even - f_odd)))
    return bool((error <= 1e-5 * mx.sqrt(mx.mean(mx.square(f_total)))).item())


def to_torch(array: Any) -> torch.Tensor:
    """A copy in float32 on the CPU."""
    return torch.from_numpy(np.array(array.astype(mx.float32)))
