"""Load `pocket/natural`, or what a training run of it wrote: the final tensors or those of a step on the way."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from mgap.decoding.model import Model, load, wrap
from mgap.pocket import smollm2
from mgap.pocket.natural import ADAPTERS, build, merge


def load_trained(name: str, language_model: Path | None = None, *, device: str | None = None, dtype: str = "bfloat16") -> Model:
    """A model by name, or a folder with the trained tensors, which are merged into SmolLM2; its file is fetched by default."""
    folder = Path(name)
    if not (folder / ADAPTERS).is_file():
        return load(name, device=device, dtype=dtype)
    network, processor = build(language_model or smollm2.fetch())
    merge(network, load_file(folder / ADAPTERS))
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    # as the assembled checkpoint: 16 bits are all that is saved
    return wrap(network.to(torch.bfloat16).to(place, getattr(torch, dtype)), processor, name="pocket/natural")
