"""SID, written out: no cache, all scores in float64; every query is masked as in the forward that reads it first."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tests.reference import contrast


def count(keep, n):
    """k: a whole number, or a share of n tokens."""
    return keep if isinstance(keep, int) else max(1, round(keep * n))


def least(w, k):
    """The k of least w; the first of equal ones."""
    return sorted(w, key=lambda j: (w[j], j))[:k]


@contextmanager
def masked(backbone, start, keep, images, prompt):
    """Inside: blocks from `start` on see some of the positions `images`; the prompt's queries share the choice of its last."""
    hidden = {}  # by query

    def attention(module, query, key, value, mask, scaling, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1).double(), value.repeat_interleave(groups, 1).double()
        scores = query.double() @ key.transpose(-1, -2) * scaling + mask.double()  # [1, heads, T, T]
        if module.layer_idx == start - 1:
            for t in range(prompt - 1, query.shape[2]):
                weights = scores[0, :, t].softmax(-1).mean(0).tolist()
                seen = {j: weights[j] for j in images if mask[0, 0, t, j] == 0}  # there may be a window
                hidden[t] = set(seen) - set(least(seen, count(keep, len(seen))))
        if module.layer_idx >= start:
            for t in range(query.shape[2]):
                gone = hidden[max(t, prompt - 1)]
                if gone.issuperset(range(t + 1)):
                    gone = gone - {t}  # nothing else is left to see
                scores[0, :, t, sorted(gone)] = -torch.inf
        return (scores.softmax(-1) @ value).transpose(1, 2).to(query.dtype), None

    AttentionInterface.register("reference_sid", attention)
    AttentionMaskInterface.register("reference_sid", eager_mask)
    config = backbone.language.config
    before, config._attn_implementation = config._attn_implementation, "reference_sid"
    try:
        yield
    finally:
        config._attn_implementation = before


def decode(model, main, settings, new):
    """Greedy tokens of one row; `settings` are alpha, beta, keep and start."""
    backbone = model.backbone
    ids = main["input_ids"][0].tolist()
    images = [j for j, token in enumerate(ids) if token == backbone.image_token_id]

    def forward(is_branch, **inputs):
        if not is_branch:
            return backbone.model(**inputs)
        with masked(backbone, settings["start"], settings["keep"], images, len(ids)):
            return backbone.model(**inputs)

    forward.generation_config = backbone.model.generation_config
    twin = SimpleNamespace(backbone=SimpleNamespace(model=forward, image_token_id=backbone.image_token_id))
    step = contrast.contrastive(settings["alpha"], settings["beta"])
    return contrast.decode(twin, {**main, "is_branch": False}, {**main, "is_branch": True}, step, new)
