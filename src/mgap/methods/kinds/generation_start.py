"""Tell the forward that reads a prompt from those that read one more token, for methods that keep something per generation.

What such a method finds in a prompt is stored by the cache of that generation, so generations never mix. The beams of a row are
rows from the first forward on and change places only among each other, so what is stored by row needs no reordering.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from transformers import Cache

from mgap.backbones.image_embeddings import Call
from mgap.errors import UnsupportedDecoding


def starts_generation(name: str, args: tuple[Any, ...], kwargs: Call, known: Container[Cache]) -> bool:
    """Whether a forward of the model reads a whole prompt; False if it reads the next token of a `known` cache.

    Refuses any other forward, for the method `name`: one without a cache, with a static one, a draft that is checked, a chunk.
    """
    cache, ids = kwargs.get("past_key_values"), kwargs.get("input_ids")
    if args or cache is None or ids is None or kwargs.get("use_cache") is False:
        raise UnsupportedDecoding(f"{name} follows the cache of a generation: call generate with input_ids, use_cache on")
    if cache.is_compileable:
        raise UnsupportedDecoding(f"{name} does not work with static or compiled decoding: use the dynamic cache")
    if cache in known and ids.shape[1] == 1:
        return False
    if cache.get_seq_length() > 0 or kwargs.get("logits_to_keep", 1) != 1:
        raise UnsupportedDecoding(f"{name} reads the whole prompt, then one token at a time: no assisted decoding, no chunks")
    return True
