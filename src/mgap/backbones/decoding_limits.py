"""What a model can take: tokens by its positions, characters by its vocabulary, rows by memory. Refused before the model runs.

An answer may be shorter than `max_new_tokens`: it stops, as "length", where prompt, pictures and answer together reach the
model's last position. Memory is counted from below, the keys and values of the prompts and the logits of one step, so that
nothing is refused that fits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mgap.backbones.token_rows import Ids
from mgap.errors import ModelError, NotEnoughMemory, PromptError, SettingError

if TYPE_CHECKING:
    from mgap.backbones.base import Backbone

GIB = 2**30  # what needs less is not compared with the memory that is free


def positions_of(config: Any) -> int | None:
    """How many tokens the model's positions reach, with a stretched rope as far as it is stretched; None: it does not say."""
    text = config.get_text_config()
    most, rope = getattr(text, "max_position_embeddings", None), getattr(text, "rope_parameters", None)
    if not isinstance(most, int) or most < 1:
        return None
    parts = [part for part in (rope, *rope.values()) if isinstance(part, Mapping)] if isinstance(rope, Mapping) else []
    reached = [most]
    for part in parts:  # one, or one a kind of layer
        factor, original = part.get("factor", 1.0), part.get("original_max_position_embeddings", most)
        if isinstance(factor, int | float) and isinstance(original, int) and 1 < factor < 1e6:
            reached.append(int(factor * original))
    return max(reached)


def room_behind(backbone: Backbone, tokens: int, what: str = "the prompt") -> int:
    """How many tokens an answer to a prompt of so many can have; refuses a prompt that leaves none."""
    most = positions_of(backbone.config)
    if most is None:
        return sys.maxsize
    if tokens >= most:
        raise PromptError(
            f"{what} has {tokens:,} tokens, with its picture, and {backbone.name} has {most:,} positions for prompt and "
            "answer: shorten it"
        )
    return most - tokens


def check_tokens(backbone: Backbone, rows: Sequence[Ids], words: int | None = None) -> None:
    """Refuse rows with no token, with too many, or with one that the model has no embedding for: a GPU would go down.

    `words` are the rows of the embedding where another engine has the weights.
    """
    if not all(rows):
        raise PromptError(f"{backbone.name}: its chat template writes nothing for this prompt; mend the template")
    room_behind(backbone, max(map(len, rows)))
    words = len(backbone.model.get_input_embeddings().weight) if words is None else words
    largest = max(set().union(*rows) - {backbone.image_token_id}, default=0)  # which has no row in some models
    if largest >= words:
        raise ModelError(f"{backbone.name}: its tokenizer gives token {largest}, and its embedding has {words} rows")


def new_tokens_that_fit(backbone: Backbone, inputs: Mapping[str, Tensor], wanted: int) -> int:
    """At most `wanted` new tokens, and no more than there are positions behind the longest row."""
    columns, mask = inputs["input_ids"].shape[1], inputs.get("attention_mask")
    most = positions_of(backbone.config)
    if most is None or columns + wanted <= most:
        return wanted
    tokens = columns if mask is None else int(mask.sum(-1).max())  # a shared prefill has padding inside its rows
    return min(wanted, room_behind(backbone, tokens))


def check_characters(backbone: Backbone, text: str) -> str:
    """Refuse a text before it becomes tokens, if it is too long even in the longest tokens of the vocabulary."""
    most = positions_of(backbone.config)
    if most is not None and len(text) > most and len(text) > (longest := most * backbone.longest_token):
        raise PromptError(
            f"the prompt has {len(text):,} characters, and {backbone.name} reads {longest:,} at most ({most:,} positions, "
            f"{backbone.longest_token} characters in its longest token): shorten it"
        )
    return text


def check_beams(backbone: Backbone, beams: int) -> None:
    """Refuse more beams than there are first tokens to tell them apart."""
    words = len(backbone.model.get_input_embeddings().weight)
    if beams > words:
        raise SettingError(f"num_beams={beams:,} is more than the {words:,} tokens of {backbone.name}: ask for fewer beams")


def check_memory(backbone: Backbone, rows: int, tokens: int) -> None:
    """Refuse rows of so many tokens, if their keys, values and logits alone do not fit into the memory that is free."""
    need = bytes_of_rows(backbone, rows, tokens)
    free = None if need < GIB else _free_bytes(backbone)
    if free is not None and need > free:
        raise NotEnoughMemory(
            f"{rows:,} row{'s' * (rows > 1)} of {tokens:,} tokens need at least {need / GIB:,.1f} GiB in {backbone.name}, and "
            f"{free / GIB:,.1f} GiB are free: ask for fewer beams, sequences or rows at a time"
        )


def bytes_of_rows(backbone: Backbone, rows: int, tokens: int) -> int:
    """The least memory of rows of so many tokens: keys and values of layers that keep all of them, and logits in float32."""
    text, model = backbone.config.get_text_config(), backbone.model
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    layers = sum(type(layer) is DynamicLayer for layer in DynamicCache(config=backbone.config).layers)
    cached = 2 * layers * heads * width * next(model.parameters()).element_size()
    return int(rows * (tokens * cached + 4 * len(model.get_input_embeddings().weight)))


def _free_bytes(backbone: Backbone) -> int | None:
    """Free memory of the devices that the text decoder is on; None: not known."""
    devices = {parameter.device for parameter in backbone.language.parameters()}
    free = [_free_on(device) for device in devices]
    return None if None in free else sum(filter(None, free))


def _free_on(device: torch.device) -> int | None:
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for its next tensors
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    memory = Path("/proc/meminfo")
    if device.type != "cpu" or not memory.is_file():
        return None
    lines = dict(line.split(":", 1) for line in memory.read_text().splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0])
