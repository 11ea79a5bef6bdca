"""From a Decoding to the fields of vLLM's SamplingParams."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

from mgap.errors import SettingError, UnsupportedDecoding
from mgap.methods.bias import Bias
from mgap.types import Decoding

MOST_BIAS = 100.0  # of one token, either way: what vLLM lets a request add
ELSEWHERE = {  # what this way of decoding is called there
    "num_beams": "vLLM's engine searches among no beams: leave num_beams out",
    "prompt_lookup": 'vLLM drafts tokens by itself: leave prompt_lookup out, and give speculative_config={"method": "ngram", '
    '"num_speculative_tokens": 4} in engine_options',
    "static_cache": "vLLM keeps its cache in pages: leave static_cache out",
    "compile": "vLLM compiles by itself, unless engine_options say enforce_eager: leave compile out",
}


def refuse_decoding(decoding: Decoding) -> None:
    """Raise if vLLM does not decode so."""
    plain = Decoding()
    for name, instead in ELSEWHERE.items():
        if getattr(decoding, name) != getattr(plain, name):
            raise UnsupportedDecoding(f"engine vllm does not take {name}={getattr(decoding, name)}: {instead}")


def sampling_fields(decoding: Decoding, end: Collection[int], name: str) -> dict[str, Any]:
    """For the request of one sample. Answers end where transformers would end them, at the tokens of `end`.

    Every sample draws its own numbers: they come from the decoding's seed and its name, whatever batch it is in.
    """
    fields: dict[str, Any] = {
        "max_tokens": decoding.max_new_tokens,
        "temperature": decoding.temperature if decoding.sample else 0.0,
        "n": decoding.num_return_sequences,
        "repetition_penalty": decoding.repetition_penalty,
        "stop_token_ids": sorted(end),
        "ignore_eos": True,  # the tokenizer's own, where that is another than the model's
        "detokenize": False,  # the text is made from the tokens, as for any engine
    }
    if decoding.sample:
        digest = hashlib.sha256(f"{decoding.seed}/{name}".encode()).digest()
        seed = int.from_bytes(digest[:7], "big")  # vLLM adds to it for further sequences, and takes 64 bits
        fields |= {"top_p": decoding.top_p, "top_k": decoding.top_k, "seed": seed}
    return fields


def logit_bias(method: Bias, tokenizer: Any) -> dict[int, float]:
    """What a constant shift adds to which token."""
    half = method.shift / 2
    if abs(half) > MOST_BIAS:
        raise SettingError(f"shift={method.shift}: vLLM adds at most {MOST_BIAS:g} to a token, a shift of {2 * MOST_BIAS:g}")
    up, down = method.tokens(tokenizer)
    return {**dict.fromkeys(sorted(up), half), **dict.fromkeys(sorted(down), -half)}
