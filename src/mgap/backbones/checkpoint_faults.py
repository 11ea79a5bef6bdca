"""What a checkpoint whose files contradict each other makes transformers stumble over, as one error with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from mgap.backbones.hooks import is_hooked
from mgap.errors import MgapError, ModelError, one_line

if TYPE_CHECKING:
    from mgap.backbones.base import Backbone

DEEPEST = 10_000  # blocks or experts; building more would take hours before a weight is missed
_COUNTS = ("num_hidden_layers", "num_layers", "n_layers", "depth", "num_experts", "num_local_experts", "n_routed_experts")
_OWN_LOOPS = ("blip", "blip-2", "diffusion_gemma", "instructblipvideo", "kosmos-2")  # of transformers' `generate`
_NO_MEMORY = ("out of memory", "can't allocate memory")


@contextmanager
def checkpoint_faults(backbone: Backbone) -> Iterator[None]:
    """Inside the block, an error of the plain model becomes a ModelError; one under somebody's hooks, maybe theirs, stays."""
    try:
        yield
    except (MgapError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if is_hooked(backbone.model) or any(words in str(error) for words in _NO_MEMORY):
            raise
        raise ModelError(
            f"{backbone.name} cannot answer ({type(error).__name__}: {one_line(error)}); its files may contradict each other: "
            "fetch the checkpoint again"
        ) from error


@contextmanager
def tokenizer_faults(name: str) -> Iterator[None]:
    """Inside the block, what the tokenizers library raises of its own becomes a ModelError: bare Exceptions, and panics.

    A panic is no Exception, and passes by every handler of those.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":  # which cannot be imported
            raise
        raise ModelError(
            f"{name}: its tokenizer.json cannot be used ({one_line(error)}): fetch the checkpoint again"
        ) from error


def check_counts(keys: dict[str, Any], name: str) -> None:
    """Refuse a configuration, as plain keys, with a number of blocks that no model has."""
    for key, value in _items(keys):
        if key in _COUNTS and isinstance(value, int) and value > DEEPEST:
            raise ModelError(f"{name}: its config.json has {key}={value!r:.40}, and {DEEPEST:,} is the most that is read")


def check_end_tokens(generation: Any, name: str) -> None:
    """Refuse end tokens that are no token ids. One that is not in the vocabulary never occurs, and does no harm."""
    end = generation.eos_token_id
    for token in end if isinstance(end, list) else [] if end is None else [end]:
        if isinstance(token, bool) or not isinstance(token, int) or abs(token) >= 2**63:
            raise ModelError(f"{name}: its generation_config.json has eos_token_id={end!r:.40}: it must be whole numbers")


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else ((None, one) for one in value) if isinstance(value, list) else ()
    for key, one in inner:
        yield key, one
        yield from _items(one)


def refuse_own_loop(kind: str) -> str:
    """The model type itself; refuses one whose `generate` hooks would not see."""
    if kind in _OWN_LOOPS:
        raise ModelError(
            f"{kind} models generate around their own forward, where methods cannot follow: they need a backbone whose "
            "model has a forward and a generate for them, as instructblip has"
        )
    return kind
