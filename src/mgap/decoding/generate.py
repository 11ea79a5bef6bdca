"""Turn a `Decoding` into a call of transformers' own `generate`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig

from mgap.backbones.base import Backbone
from mgap.backbones.checked_generate import ends_of, generate_checked
from mgap.decoding.attach import acting
from mgap.decoding.model_lock import lock_of
from mgap.types import Decoding


@dataclass(frozen=True)
class Generated:
    """The new tokens of one `generate` call, without the prompt."""

    tokens: Tensor  # [sequences, new] on the CPU; padded after the end
    beam_rows: Tensor | None  # [sequences, new]: the row of each forward that a token came from, under beam search
    milliseconds: float


def generation_config(backbone: Backbone, decoding: Decoding) -> GenerationConfig:
    """Sampling and search as `decoding` says, never as the checkpoint suggests; its special tokens still apply."""
    checkpoint = backbone.model.generation_config
    words = len(backbone.model.get_input_embeddings().weight)
    pads = [token for token in (checkpoint.pad_token_id, *ends_of(checkpoint)) if token is not None and 0 <= token < words]
    sampling: dict[str, Any] = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
    if decoding.sample:
        sampling = {
            "do_sample": True,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "top_k": decoding.top_k,
            "min_p": decoding.min_p,
        }
    config = GenerationConfig(
        max_new_tokens=decoding.max_new_tokens,
        num_beams=decoding.num_beams,
        num_return_sequences=decoding.num_return_sequences,
        repetition_penalty=decoding.repetition_penalty,
        return_dict_in_generate=True,
        bos_token_id=checkpoint.bos_token_id,
        eos_token_id=checkpoint.eos_token_id,
        pad_token_id=pads[0] if pads else None,
        **sampling,
    )
    if decoding.prompt_lookup:
        config.prompt_lookup_num_tokens = decoding.prompt_lookup
        config.suppress_tokens = [backbone.image_token_id]  # drafts copy the prompt, including image placeholders
    if decoding.static_cache or decoding.compile:
        config.cache_implementation = "static"
        config.disable_compile = not decoding.compile
    if decoding.compile:
        config.compile_config = CompileConfig()
        config.compile_config._compile_all_devices = True  # by default transformers compiles on accelerators only
    return config


def end_ids(backbone: Backbone) -> set[int]:
    """The tokens that end an answer."""
    return set(ends_of(backbone.model.generation_config))


def until_end(tokens: list[int], end: set[int]) -> list[int]:
    """The tokens up to and including the end token, without the padding behind it."""
    return tokens[: next((n for n, token in enumerate(tokens, start=1) if token in end), len(tokens))]


def generate(backbone: Backbone, inputs: dict[str, Tensor], decoding: Decoding, **more: Any) -> Generated:
    """Run `generate` on encoded rows; sampling uses the decoding's seed and leaves the caller's random state alone."""
    config = generation_config(backbone, decoding)
    started = time.perf_counter()
    with lock_of(backbone.model), seeded(decoding, backbone.device), torch.no_grad():
        out = generate_checked(backbone, inputs, config, acting(backbone.model), **more)
    tokens = out.sequences[:, inputs["input_ids"].shape[1] :].cpu()
    beams = getattr(out, "beam_indices", None)
    elapsed = 1000 * (time.perf_counter() - started)
    return Generated(tokens, None if beams is None else beams.cpu(), elapsed)


@contextmanager
def seeded(decoding: Decoding, device: torch.device) -> Iterator[None]:
    if not decoding.sample:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(decoding.seed)
        yield
