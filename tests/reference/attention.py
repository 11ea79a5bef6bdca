"""Attention weights in hand, for references that read them."""

from contextlib import contextmanager


@contextmanager
def eager(backbone):
    """Inside: the text decoder shows its attention weights."""
    config = backbone.language.config
    before, config._attn_implementation = config._attn_implementation, "eager"
    try:
        yield
    finally:
        config._attn_implementation = before
