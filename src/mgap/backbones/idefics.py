"""Idefics3 and SmolVLM: pictures cut into tiles, with row and column marks between them."""

from __future__ import annotations

from mgap.backbones.base import Backbone


class SmolVLM(Backbone):
    """For pictures its processor does what Idefics3's does; its own class wants video packages as well."""

    processor_class = "Idefics3Processor"
