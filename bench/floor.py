"""The least memory traffic of a decoding step: the weights of the language model and its head, and the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from measure import Bandwidth
from torch import Tensor

from mgap.backbones.base import Backbone


@dataclass(frozen=True)
class Floor:
    """Bytes read by one step in the middle of an answer, and their time at the measured bandwidth."""

    weights: int
    cache: int
    bandwidth: float  # bytes per second

    @property
    def ms(self) -> float:
        return 1000 * (self.weights + self.cache) / self.bandwidth


def floor(backbone: Backbone, inputs: dict[str, Tensor], new_tokens: int, speed: Bandwidth) -> Floor:
    """The floor of a plain step for these rows, at the faster of copying and reading, so that nothing can be below it."""
    rows, length = inputs["input_ids"].shape
    middle = length + new_tokens / 2
    return Floor(weights_read(backbone, rows), round(cache_bytes(backbone, inputs) * middle / length), speed.best)


def weights_read(backbone: Backbone, rows: int) -> int:
    """Bytes of weights read per step: no vision tower, and one row of the input embedding per token."""
    embedding = backbone.model.get_input_embeddings().weight
    parts = [*backbone.language.parameters(), *backbone.head_module.parameters()]
    read = {id(part): part.nbytes for part in parts if part is not embedding or embedding is backbone.head_module.weight}
    return sum(read.values()) + rows * embedding[0].nbytes


def cache_bytes(backbone: Backbone, inputs: dict[str, Tensor]) -> int:
    """Bytes of the prompt's keys and values."""
    with torch.no_grad():
        cache = backbone.model(**inputs, use_cache=True, logits_to_keep=1).past_key_values
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
