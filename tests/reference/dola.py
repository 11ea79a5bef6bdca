"""DoLa as its specification writes it: every token by a full forward, one layer and one word at a time, in plain floats."""

import math

from tests.reference.loop import decode


def log_softmax(logits):
    logits = [float(value) for value in logits]
    top = max(logits)
    total = top + math.log(sum(math.exp(value - top) for value in logits))
    return [value - total for value in logits]


def divergence_of_the_code(q, r):
    first = second = 0.0
    for a, b in zip(q, r, strict=True):
        m = (math.exp(a) + math.exp(b)) / 2
        if m > 0:
            first += m * (math.log(m) - a)
            second += m * (math.log(m) - b)
    return (first / len(q) + second / len(q)) / 2


def divergence_of_the_paper(q, r):
    total = 0.0
    for a, b in zip(q, r, strict=True):
        m = (math.exp(a) + math.exp(b)) / 2
        if m > 0:
            total += math.exp(a) * (a - math.log(m)) / 2 + math.exp(b) * (b - math.log(m)) / 2
    return total


def answer(model, inputs, layers, new, *, relative_top=0.1, divergence=divergence_of_the_code, lens_norm=False):
    """Greedy tokens, and the layer chosen for each."""
    chosen = []

    def step(states, head, norm):
        q = log_softmax(head(states[-1]))
        best, furthest, r_best = None, -math.inf, None
        for layer in layers:
            r = log_softmax(head(norm(states[layer]) if lens_norm else states[layer]))
            apart = divergence(q, r)
            if apart > furthest:
                best, furthest, r_best = layer, apart, r
        chosen.append(best)
        cutoff = max(q) + math.log(relative_top)
        return [a - b if a >= cutoff else -math.inf for a, b in zip(q, r_best, strict=True)]

    return decode(model, inputs, step, new), chosen
