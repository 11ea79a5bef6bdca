"""ASD, written out: no cache, so every steered position is steered again in every forward, by hand at every block."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch

from tests.reference import contrast


@contextmanager
def steered(backbone, vectors, layers, strength, first):
    """Inside: x_i + strength v_i at the positions from `first` on, one by one."""

    def hook_of(i):
        def shift(_block, _args, output):
            moved = output.double().clone()
            for t in range(first, output.shape[1]):
                moved[0, t] += strength * vectors[i - 1]
            return moved.to(output.dtype)

        return shift

    handles = [backbone.layers[i - 1].register_forward_hook(hook_of(i)) for i in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def decode(model, main, vectors, layers, settings, new):
    """Greedy tokens of one row; `settings` are lam_pos, lam_neg, alpha and positions."""
    backbone = model.backbone
    first = main["input_ids"].shape[1] - 1 if settings["positions"] == "last" else 0

    def forward(strength, **inputs):
        with steered(backbone, vectors, layers, strength, first), torch.no_grad():
            return backbone.model(**inputs)

    def step(plus, minus, _t):
        return [(1 + settings["alpha"]) * a - settings["alpha"] * b for a, b in zip(plus, minus, strict=True)]

    forward.generation_config = backbone.model.generation_config
    twin = SimpleNamespace(backbone=SimpleNamespace(model=forward, image_token_id=backbone.image_token_id))
    plus, minus = {**main, "strength": settings["lam_pos"]}, {**main, "strength": -settings["lam_neg"]}
    return contrast.decode(twin, plus, minus, step, new)
