"""Gemma 3: a SigLIP tower, and a language model in which most blocks see a sliding window only."""

from __future__ import annotations

from mgap.backbones.base import Backbone


class Gemma3(Backbone):
    """Its cache forgets, so that neither a picture's prefill nor a captured step can be had."""

    embeds_pictures = True
