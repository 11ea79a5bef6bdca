"""Gemma 3: a SigLIP tower, and a language model in which most blocks attend to a sliding window only."""

from __future__ import annotations

from mgap.backbones.base import Backbone
from mgap.backbones.picture_layout import FixedGrid


class Gemma3(Backbone):
    """Its cache is a sliding window, so it supports neither a shared prefill nor captured steps."""

    embeds_pictures = True
    picture_layout = FixedGrid()  # with pan and scan, which is off by default, every crop is a picture of the prompt
