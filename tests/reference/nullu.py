"""Nullu, written out in NumPy, state by state and pair by pair; and a model whose down projections are edited by hand."""

from contextlib import contextmanager

import numpy as np
import torch

from tests.reference import loop


def states(model, image, prompt, caption, *, whole, normed):
    """Mean state [L, d] of each block, from a forward over prompt and caption; `whole`: over all positions."""
    backbone = model.backbone
    inputs = dict(backbone.encode([image], [prompt]))
    tokens = torch.tensor([backbone.tokenizer(caption, add_special_tokens=False)["input_ids"]])
    inputs["input_ids"] = torch.cat([inputs["input_ids"], tokens], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tokens)], 1)
    seen = []
    handles = [layer.register_forward_hook(lambda _, __, out: seen.append(out)) for layer in backbone.layers]
    with torch.no_grad():
        hidden = backbone.model(**inputs, output_hidden_states=True, use_cache=False).hidden_states
    for handle in handles:
        handle.remove()
    rows = [*seen[:-1], hidden[-1]] if normed else seen  # the library's last one is after the final norm
    first = 0 if whole else inputs["input_ids"].shape[1] - tokens.shape[1]
    means = []
    for row in rows:
        taken = [row[0, t].double().numpy() for t in range(first, row.shape[1])]
        means.append(sum(taken) / len(taken))
    return np.stack(means)


def projector(true, false, rank, centring=0.0):
    """P = V_K V_K' of one block, from states [N, d]."""
    rows = [(t - f) / 2 for t, f in zip(true, false, strict=True)]
    if centring:
        p = np.linalg.svd(np.stack(true), full_matrices=False)[2][0]
        rows = [row - centring * (row @ p) * p for row in rows]
    basis = np.linalg.svd(np.stack(rows), full_matrices=False)[2][:rank]
    return sum(np.outer(v, v) for v in basis)


@contextmanager
def edited(model, projectors, strength=1.0):
    """Inside: W_down <- (I - strength P) W_down of these blocks {number: P}."""
    kept = {}
    for number, p in projectors.items():
        weight = model.backbone.layers[number].mlp.down_proj.weight
        kept[number] = weight.detach().clone()
        new = (np.eye(len(p)) - strength * p) @ weight.detach().double().numpy()
        weight.data = torch.from_numpy(new).to(weight.dtype)
    try:
        yield
    finally:
        for number, before in kept.items():
            model.backbone.layers[number].mlp.down_proj.weight.data = before


def decode(model, inputs, projectors, new, strength=1.0):
    """Greedy tokens of one row."""
    with edited(model, projectors, strength):
        return loop.decode(model, inputs, lambda states, head, _norm: head(states[-1]).tolist(), new)
