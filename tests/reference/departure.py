"""The mean distance to the k nearest states, and a state that a contrast amounts to: in plain Python, nothing clever."""

import math


def mean_of_nearest(state, others, k, metric):
    apart = sorted(distance(state, other, metric) for other in others)
    return sum(apart[:k]) / k


def distance(a, b, metric):
    if metric == "euclidean":
        return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return 1 - product / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def last_state(model, inputs):
    """What the head reads of one row at its last position, from a forward of its own: a list of numbers."""
    import torch

    inputs = {name: value.to(model.backbone.device) for name, value in inputs.items()}
    with torch.no_grad():
        hidden = model.backbone.model(**inputs, output_hidden_states=True, use_cache=False).hidden_states
    return hidden[-1][0, -1].double().tolist()
