"""PAI, written out: no cache, so every position from the end of the prompt on is edited again in every forward."""

import math
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tests.reference import contrast


@contextmanager
def edited(backbone, alpha, blocks, images, first):
    """Inside: attention of the text decoder in float64, edited for the queries from `first` on at the positions `images`."""

    def attention(module, query, key, value, mask, scaling, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1).double(), value.repeat_interleave(groups, 1).double()
        scores = query.double() @ key.transpose(-1, -2) * scaling + mask.double()  # [1, heads, T, T]
        if module.layer_idx in blocks:
            for t in range(first, query.shape[2]):
                for j in images:
                    scores[0, :, t, j] += alpha * scores[0, :, t, j].abs()
        return (scores.softmax(-1) @ value).transpose(1, 2).to(query.dtype), None

    AttentionInterface.register("reference_pai", attention)
    AttentionMaskInterface.register("reference_pai", eager_mask)
    config = backbone.language.config
    before, config._attn_implementation = config._attn_implementation, "reference_pai"
    try:
        yield
    finally:
        config._attn_implementation = before


def decode(model, main, alpha, gamma, blocks, new):
    """Greedy tokens of one row."""
    backbone, own = model.backbone, model.backbone.model
    ids = main["input_ids"][0].tolist()
    images = [j for j, token in enumerate(ids) if token == backbone.image_token_id]

    def forward(**inputs):
        if "pixel_values" not in inputs:
            return own(**inputs)
        with edited(backbone, alpha, blocks, images, first=len(ids) - 1):
            return own(**inputs)

    def step(main, branch, _t):
        c, u = ([math.log(p) for p in contrast.probabilities(logits)] for logits in (main, branch))
        scores = [gamma * a + (1 - gamma) * b for a, b in zip(c, u, strict=True)]
        return contrast.cut(scores, main, 0.1) if gamma != 1 else c

    forward.generation_config = backbone.model.generation_config
    twin = SimpleNamespace(backbone=SimpleNamespace(model=forward, image_token_id=backbone.image_token_id))
    with torch.no_grad():
        return contrast.decode(twin, main, contrast.without_image(backbone, main), step, new)
