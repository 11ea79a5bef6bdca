"""InternVL: a vision transformer whose patches are merged (pixel shuffle) before the language model reads them."""

from __future__ import annotations

from mgap.backbones.base import Backbone


class InternVL(Backbone):
    """The generic backbone, with capabilities that tests check."""

    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = True
