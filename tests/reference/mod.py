"""MoD, written out: no cache; every forward over prompt and answer, all attention weights kept, tokens zeroed one by one."""

import math
from contextlib import contextmanager

import torch

from mgap.decoding.generate import end_ids
from tests.reference.attention import eager
from tests.reference.contrast import cut, probabilities


@contextmanager
def zeroed(backbone, positions):
    """Inside: the embeddings at `positions` are 0, and nothing is added to them at deeper blocks."""

    def clear(_language, args, kwargs):
        embeds = kwargs["inputs_embeds"].clone()
        for j in positions:
            embeds[0, j] = 0
        kwargs = {**kwargs, "inputs_embeds": embeds}
        if kwargs.get("deepstack_visual_embeds") is not None:
            places = kwargs["visual_pos_masks"][0].nonzero()[:, 0].tolist()
            levels = [level.clone() for level in kwargs["deepstack_visual_embeds"]]
            for level in levels:
                for j in positions:
                    level[places.index(j)] = 0
            kwargs["deepstack_visual_embeds"] = levels
        return args, kwargs

    handle = backbone.language.register_forward_pre_hook(clear, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def attended(attentions, images):
    """w_j: over blocks the sum, over heads the mean, of the last query."""
    found = {}
    for j in images:
        found[j] = 0.0
        for block in attentions:  # [1, heads, T, T]
            heads = block[0, :, -1, j].double().tolist()
            found[j] += sum(heads) / len(heads)
    return found


def least(w, rho):
    """The floor(n (1 - rho)) of least w; the first of equal ones."""
    return sorted(w, key=lambda j: (w[j], j))[: math.floor(len(w) * (1 - rho) + 1e-9)]


def js(main, branch):
    total = 0.0
    for p, q in zip(probabilities(main), probabilities(branch), strict=True):
        p, q = (min(max(x, 5e-8), 1 - 5e-8) for x in (p, q))
        m = (p + q) / 2
        total += p * math.log(p / m) / 2 + q * math.log(q / m) / 2
    return total


def decode(model, inputs, settings, new):
    """Greedy tokens of one row, and the divergence that chose its mode; `settings` are those of the method."""
    backbone, own, tokens, low, first = model.backbone, model.backbone.model, [], None, None
    inputs = dict(inputs)
    images = [j for j, token in enumerate(inputs["input_ids"][0].tolist()) if token == backbone.image_token_id]
    for _ in range(new):
        with torch.no_grad():
            with eager(backbone):
                out = own(**inputs, use_cache=False, output_attentions=True)
            if low is None or settings["refresh"] == "every_step":
                low = least(attended(out.attentions, images), settings["rho"])
            with zeroed(backbone, low):
                masked = own(**inputs, use_cache=False)
        main, branch = (each.logits[0, -1].double().tolist() for each in (out, masked))
        if first is None:
            first = js(main, branch)
        if first < settings["theta"]:
            scores = [a + settings["a1"] * b for a, b in zip(main, branch, strict=True)]
        else:
            scores = [(1 + settings["a2"]) * a - settings["a2"] * b for a, b in zip(main, branch, strict=True)]
        scores = cut(scores, main, settings["beta"])
        best = max(range(len(scores)), key=lambda token: scores[token])
        tokens.append(best)
        if best in {*end_ids(model.backbone), backbone.image_token_id}:
            break
        chosen = torch.tensor([[best]])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], chosen], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(chosen)], dim=1)
    return tuple(tokens), first
