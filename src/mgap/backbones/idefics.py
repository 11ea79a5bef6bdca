"""Idefics3 and SmolVLM: pictures cut into tiles, with row and column markers between them."""

from __future__ import annotations

from mgap.backbones.base import Backbone


class Idefics3(Backbone):
    """Encoding its tiles takes more than their pixels, so it does not accept encoded pictures."""

    prepares_pictures = shares_prefill = captures_steps = True


class SmolVLM(Idefics3):
    """Uses Idefics3's processor, which treats pictures the same way; its own class also needs video packages."""

    processor_class = "Idefics3Processor"
