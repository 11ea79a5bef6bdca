"""Plain greedy decoding, for what is learnt from the model's own answers."""

from __future__ import annotations

from transformers import GenerationConfig

from mgap.backbones.base import Backbone


def greedy_config(backbone: Backbone, length: int) -> GenerationConfig:
    """Greedy, at most `length` new tokens, whatever the checkpoint suggests; its special tokens still apply."""
    checkpoint = backbone.model.generation_config
    return GenerationConfig(
        max_new_tokens=length, num_beams=1, do_sample=False, temperature=1.0, top_p=1.0, top_k=50,
        repetition_penalty=1.0, bos_token_id=checkpoint.bos_token_id,
        eos_token_id=checkpoint.eos_token_id, pad_token_id=backbone.pad_id,
    )  # fmt: skip
