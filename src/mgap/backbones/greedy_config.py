"""Plain greedy decoding: how a model speaks when nothing acts on it, for what is read off its own answers."""

from __future__ import annotations

from transformers import GenerationConfig

from mgap.backbones.base import Backbone


def greedy_config(backbone: Backbone, length: int) -> GenerationConfig:
    """At most `length` new tokens, the likeliest each time, whatever the checkpoint suggests; its special tokens stay."""
    own = backbone.model.generation_config
    return GenerationConfig(
        max_new_tokens=length, num_beams=1, do_sample=False, temperature=1.0, top_p=1.0, top_k=50,
        repetition_penalty=1.0, bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=backbone.pad_id,
    )  # fmt: skip
