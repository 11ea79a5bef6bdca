"""DeCo as its specification writes it: every token by a full forward, one layer and one word at a time, in plain floats."""

import math

from tests.reference.loop import decode


def softmax(logits):
    top = max(logits)
    parts = [math.exp(value - top) for value in logits]
    total = sum(parts)
    return [part / total for part in parts]


def answer(model, inputs, layers, new, *, alpha=0.6, top_p=0.9, top_k=20):
    """Greedy tokens, and the anchor layer, weight and number of candidates of each."""
    seen = []

    def step(states, head, norm):
        final = [float(value) for value in head(states[-1])]
        p = softmax(final)
        candidates, held = [], 0.0
        for token in sorted(range(len(p)), key=lambda token: -p[token])[:top_k]:
            candidates.append(token)
            held += p[token]
            if held >= top_p:
                break
        weight, anchor, anchor_logits = -1.0, None, None
        for layer in layers:
            logits = [float(value) for value in head(norm(states[layer]))]
            probabilities = softmax(logits)
            for token in candidates:
                if probabilities[token] > weight:
                    weight, anchor, anchor_logits = probabilities[token], layer, logits
        seen.append((anchor, weight, len(candidates)))
        scores = [-math.inf] * len(final)
        for token in candidates:
            scores[token] = final[token] + alpha * weight * anchor_logits[token]
        return scores

    return decode(model, inputs, step, new), seen
