"""AvisC, written out: no cache; all attention weights of the prompt kept, tokens zeroed one by one."""

import math
from types import SimpleNamespace

import torch

from tests.reference import contrast
from tests.reference.attention import eager
from tests.reference.mod import zeroed


def blind(attentions, images, gamma, lam):
    """The blind tokens among the positions `images` of one row, how many blocks chose them, and their threshold."""
    rows = []  # r_i
    for block in attentions:  # [1, heads, T, T]
        heads = [block[0, :, -1, j].double().tolist() for j in images]
        rows.append([sum(each) / len(each) for each in heads])
    total = sum(sum(row) for row in rows)
    layers, covered = [], 0.0
    for i in sorted(range(len(rows)), key=lambda i: (-sum(rows[i]), i)):
        layers.append(i)
        covered += sum(rows[i]) / total
        if covered >= gamma:
            break
    a = [sum(rows[i][j] for i in layers) / len(layers) for j in range(len(images))]
    mean = sum(a) / len(a)
    std = math.sqrt(sum((each - mean) ** 2 for each in a) / (len(a) - 1)) if len(a) > 1 else 0.0
    threshold = mean + lam * std
    return [j for j, each in zip(images, a, strict=True) if each >= threshold], len(layers), threshold


def chosen(backbone, inputs, gamma, lam):
    """The picture's positions in one row, and `blind` of it."""
    images = [j for j, token in enumerate(inputs["input_ids"][0].tolist()) if token == backbone.image_token_id]
    with eager(backbone), torch.no_grad():
        attentions = backbone.model(**inputs, use_cache=False, output_attentions=True).attentions
    return images, *blind(attentions, images, gamma, lam)


def decode(model, main, settings, new):
    """Greedy tokens of one row; `settings` are alpha, beta, gamma and lam."""
    backbone = model.backbone
    images, kept, _, _ = chosen(backbone, main, settings["gamma"], settings["lam"])

    def forward(is_branch, **inputs):
        with zeroed(backbone, [j for j in images if is_branch and j not in kept]):
            return backbone.model(**inputs)

    forward.generation_config = backbone.model.generation_config
    twin = SimpleNamespace(backbone=SimpleNamespace(model=forward, image_token_id=backbone.image_token_id))
    step = contrast.contrastive(settings["alpha"], settings["beta"])
    return contrast.decode(twin, {**main, "is_branch": False}, {**main, "is_branch": True}, step, new)
