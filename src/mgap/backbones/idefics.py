"""Idefics3 and SmolVLM: pictures cut into tiles, with row and column marks between them."""

from __future__ import annotations

from mgap.backbones.base import Backbone


class Idefics3(Backbone):
    """Encoding its tiles takes more than their pixels, so that encoded pictures are not put in from outside."""

    prepares_pictures = shares_prefill = captures_steps = True


class SmolVLM(Idefics3):
    """For pictures its processor does what Idefics3's does; its own class wants video packages as well."""

    processor_class = "Idefics3Processor"
