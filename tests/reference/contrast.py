"""Two branches or more, written out: a full forward of each for every token, no cache, and the scores one token at a time."""

import math

import torch

from mgap.decoding.generate import end_ids


def decode(model, main, branch, step, new):
    """Greedy tokens of one row; `step(l, l', t)` gives scores from two lists of logits at the t-th new token.

    A list of branches is read in its order: `step(l, l', l'', t)`.
    """
    own, tokens = model.backbone.model, []
    every = [dict(main), *map(dict, branch if isinstance(branch, list) else [branch])]
    for t in range(1, new + 1):
        with torch.no_grad():
            logits = [own(**inputs, use_cache=False).logits[0, -1].double().tolist() for inputs in every]
        scores = step(*logits, t)
        best = max(range(len(scores)), key=lambda token: scores[token])
        tokens.append(best)
        if best in {*end_ids(model.backbone), model.backbone.image_token_id}:
            break
        for inputs in every:
            chosen = torch.tensor([[best]], device=inputs["input_ids"].device)
            inputs["input_ids"] = torch.cat([inputs["input_ids"], chosen], dim=1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if "mm_token_type_ids" in inputs:
                inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(chosen)], dim=1)
    return tuple(tokens)


def probabilities(logits):
    top = max(logits)
    weights = [math.exp(value - top) for value in logits]
    return [weight / sum(weights) for weight in weights]


def cut(scores, logits, beta):
    """-inf where p < beta max p."""
    p = probabilities(logits)
    return [score if q >= beta * max(p) else -math.inf for score, q in zip(scores, p, strict=True)]


def contrastive(alpha, beta):
    def step(main, branch, _t):
        return cut([(1 + alpha) * a - alpha * b for a, b in zip(main, branch, strict=True)], main, beta)

    return step


def m3id(lam, beta):
    def step(main, branch, t):
        gamma = math.exp(-lam * t)
        c, u = ([math.log(p) for p in probabilities(logits)] for logits in (main, branch))
        return cut([a + (1 - gamma) / gamma * (a - b) for a, b in zip(c, u, strict=True)], main, beta)

    return step


def noised(pixels, noise, t):
    """The schedule, product by product."""
    kept = 1.0
    for j in range(t + 1):
        x = -6 + 12 * j / 999
        kept *= 1 - (1 / (1 + math.exp(-x)) * (0.005 - 1e-5) + 1e-5)
    return math.sqrt(kept) * pixels + math.sqrt(1 - kept) * noise


def without_image(backbone, inputs):
    """One row: every token of the picture's block taken out."""
    ids = [token for token in inputs["input_ids"][0].tolist() if token not in backbone.image_block_ids]
    rows = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if "mm_token_type_ids" in inputs:
        rows["mm_token_type_ids"] = torch.zeros(1, len(ids), dtype=torch.long)
    return rows
