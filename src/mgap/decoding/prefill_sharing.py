"""Check whether the mode, the model and the attached methods allow a shared prefill (backbones/shared_prefill.py)."""

from __future__ import annotations

from typing import Any

from mgap.backbones.base import Backbone
from mgap.backbones.shared_prefill import unshareable
from mgap.decoding.attach import attached
from mgap.decoding.fast.captured_loop import uses_captured_loop
from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Method
from mgap.types import Mode

PREFILLS = ("own", "shared")
MODES = frozenset(
    {Mode.GREEDY, Mode.SAMPLE, Mode.BEAM, Mode.BATCH, Mode.SEQUENCES}
)  # in which `generate` can continue from a cache


def can_share(model: Any, method: Method | None = None) -> str:
    """Why the model, or a method on it, cannot share a picture's prefill among rows; "" if it can."""
    if method is not None and not method.shares_prefill:
        return f"{method.name} needs the whole prompt in one forward, so that pictures cannot share their prefill"
    return unshareable(Backbone.of(model))


def refuse_unshared(backbone: Backbone, modes: frozenset[Mode], *, is_traced: bool = False) -> None:
    """Raise, before any token is generated, if the mode, the model or an attached method rules out a shared prefill."""
    refused = sorted(mode.value for mode in modes - MODES)
    if refused and not uses_captured_loop(backbone, modes, is_traced=is_traced):
        raise UnsupportedDecoding(f'prefill="shared" does not work with {", ".join(refused)} decoding: leave it, or use "own"')
    active: list[Method | None] = [attachment.method for attachment in attached(backbone.model)]
    for method in active or [None]:
        if reason := can_share(backbone, method):
            raise UnsupportedDecoding(f'{reason}: use prefill="own"')
