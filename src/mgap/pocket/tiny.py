"""Tiny checkpoints with random weights: both paper backbones, with the real classes and processors.

Their answers make no sense. They let every code path run anywhere in seconds, without a download.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from os import PathLike

import torch

from mgap.errors import SettingError
from mgap.pocket.architecture import Tower, build
from mgap.priors.prompts import default_prompts

_WIDE = 0.15  # standard deviation of the initial weights, wide enough that tokens differ in probability
_TEXT = Tower(width=64, layers=3, heads=4, key_value_heads=2, inner=128, spread=_WIDE)
TINY_FAMILIES = {
    "llava": Tower(width=32, layers=3, heads=4, inner=64, side=28, patch=7),
    "qwen3-vl": Tower(width=32, layers=3, heads=4, inner=64, side=64, patch=8, spread=_WIDE),
}


def build_tiny(
    family: str, folder: str | PathLike[str], *, seed: int = 0, words: Iterable[str] = (), heads: int = _TEXT.heads
) -> None:
    """Write a random checkpoint (about 0.2 M parameters) that `mgap.load(folder)` reads like any other.

    Its tokenizer is trained on the default prompts; each of `words` becomes one token as well. With 2 heads of size 32 it suits
    vLLM's attention on CPUs, which has no kernel for size 16.
    """
    if family not in TINY_FAMILIES:
        raise SettingError(f"unknown tiny family {family!r}: choose from {', '.join(TINY_FAMILIES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        texts = [*default_prompts(), *(word for word in words for _ in range(20))]
        text = replace(_TEXT, heads=heads, key_value_heads=heads // 2)
        model, processor = build(family, texts, 384, text, TINY_FAMILIES[family])
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
