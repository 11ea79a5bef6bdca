"""From a Decoding to the fields of vLLM's SamplingParams."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

from mgap.errors import SettingError, UnsupportedDecoding
from mgap.methods.bias import Bias
from mgap.types import Decoding

MAX_BIAS = 100.0  # vLLM's limit for one token, up or down
ALTERNATIVES = {  # by unsupported option: what to do instead
    "num_beams": "vLLM's engine searches among no beams: leave num_beams out",
    "prompt_lookup": 'vLLM drafts tokens by itself: leave prompt_lookup out, and give speculative_config={"method": "ngram", '
    '"num_speculative_tokens": 4} in engine_options',
    "static_cache": "vLLM keeps its cache in pages: leave static_cache out",
    "compile": "vLLM compiles by itself, unless engine_options say enforce_eager: leave compile out",
}


def refuse_decoding(decoding: Decoding) -> None:
    """Raise if vLLM does not support an option of the decoding."""
    default = Decoding()
    for name, instead in ALTERNATIVES.items():
        if getattr(decoding, name) != getattr(default, name):
            raise UnsupportedDecoding(f"engine vllm does not take {name}={getattr(decoding, name)}: {instead}")


def sampling_fields(decoding: Decoding, end: Collection[int], name: str) -> dict[str, Any]:
    """The fields for one sample's request. Answers end at the tokens in `end`, as in transformers.

    Each sample's random seed comes from the decoding's seed and the sample's name, so it does not depend on the batch.
    """
    fields: dict[str, Any] = {
        "max_tokens": decoding.max_new_tokens,
        "temperature": decoding.temperature if decoding.sample else 0.0,
        "n": decoding.num_return_sequences,
        "repetition_penalty": decoding.repetition_penalty,
        "stop_token_ids": sorted(end),
        "ignore_eos": True,  # the tokenizer's EOS may differ from the model's
        "detokenize": False,  # we decode the tokens ourselves, as for any engine
    }
    if decoding.sample:
        digest = hashlib.sha256(f"{decoding.seed}/{name}".encode()).digest()
        seed = int.from_bytes(digest[:7], "big")  # 56 bits: vLLM takes 64, and adds to the seed for further sequences
        fields |= {"top_p": decoding.top_p, "top_k": decoding.top_k, "min_p": decoding.min_p, "seed": seed}
    return fields


def logit_bias(method: Bias, tokenizer: Any) -> dict[int, float]:
    """The constant shift of a bias, by token id."""
    half = method.shift / 2
    if abs(half) > MAX_BIAS:
        raise SettingError(f"shift={method.shift}: vLLM adds at most {MAX_BIAS:g} to a token, a shift of {2 * MAX_BIAS:g}")
    up, down = method.tokens(tokenizer)
    return {**dict.fromkeys(sorted(up), half), **dict.fromkeys(sorted(down), -half)}
