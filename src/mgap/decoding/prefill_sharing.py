"""Whether a decoding may go on from a shared prefill (backbones/shared_prefill.py): the mode, the model, the active method."""

from __future__ import annotations

from typing import Any

from mgap.backbones.base import Backbone
from mgap.backbones.shared_prefill import unshareable
from mgap.decoding.attach import attached
from mgap.decoding.fast.captured_loop import is_ours
from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Method
from mgap.types import Mode

PREFILLS = ("own", "shared")
MODES = frozenset({Mode.GREEDY, Mode.SAMPLE, Mode.BEAM, Mode.BATCH, Mode.SEQUENCES})  # of generate, that go on from a cache


def can_share(model: Any, method: Method | None = None) -> str:
    """Why the model, or a method on it, cannot share a picture's prefill among rows; "" where it can."""
    if method is not None and not method.shares_prefill:
        return f"{method.name} needs the whole prompt in one forward, so that pictures cannot share their prefill"
    return unshareable(Backbone.of(model))


def refuse_unshared(backbone: Backbone, modes: frozenset[Mode]) -> None:
    """Raise, before any token is made, if a shared prefill cannot act: the mode, the model, or a method that is on."""
    refused = sorted(mode.value for mode in modes - MODES)
    if refused and not is_ours(backbone, modes):
        raise UnsupportedDecoding(f'prefill="shared" does not work with {", ".join(refused)} decoding: leave it, or use "own"')
    on: list[Method | None] = [attachment.method for attachment in attached(backbone.model)]
    for method in on or [None]:
        if reason := can_share(backbone, method):
            raise UnsupportedDecoding(f'{reason}: use prefill="own"')
