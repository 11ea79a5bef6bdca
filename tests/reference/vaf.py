"""VAF, written out: no cache, so every query behind the picture is edited again in every forward, head by head."""

import math
from contextlib import contextmanager

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tests.reference import contrast


@contextmanager
def edited(backbone, blocks, images, prompt, *, enhance, suppress, heads):
    """Inside: attention of the text decoder in float64, edited in some blocks; `images` are positions, `prompt` a length."""

    def attention(module, query, key, value, mask, scaling, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1).double(), value.repeat_interleave(groups, 1).double()
        scores = query.double() @ key.transpose(-1, -2) * scaling  # [1, heads, T, T]
        if module.layer_idx in blocks:
            mass = (scores + mask.double()).softmax(-1)[0, :, :, images].sum(-1)  # [heads, T]
            for t in range(images[-1] + 1, query.shape[2]):
                chooser = max(t, prompt - 1)  # the last query of the forward that would have read this position
                order = sorted(range(len(mass)), key=lambda head: -float(mass[head, chooser]))
                for head in order[: math.ceil(heads * len(order))]:
                    scores[0, head, t, images] *= enhance
                    scores[0, head, t, : images[0]] *= suppress
        return ((scores + mask.double()).softmax(-1) @ value).transpose(1, 2).to(query.dtype), None

    AttentionInterface.register("reference_vaf", attention)
    AttentionMaskInterface.register("reference_vaf", eager_mask)
    config = backbone.language.config
    before, config._attn_implementation = config._attn_implementation, "reference_vaf"
    try:
        yield
    finally:
        config._attn_implementation = before


def decode(model, main, blocks, new, **settings):
    """Greedy tokens of one row, and the logits that each was chosen from."""
    ids, seen = main["input_ids"][0].tolist(), []
    images = [j for j, token in enumerate(ids) if token == model.backbone.image_token_id]

    def step(logits, _t):
        seen.append(logits)
        return logits

    with edited(model.backbone, blocks, images, len(ids), **settings):
        return contrast.decode(model, main, [], step, new), seen
