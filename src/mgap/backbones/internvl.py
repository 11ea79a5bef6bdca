"""InternVL: a vision transformer whose patches are shuffled together before the language model reads them."""

from __future__ import annotations

from mgap.backbones.base import Backbone


class InternVL(Backbone):
    """As the generic backbone reads it."""

    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = True
