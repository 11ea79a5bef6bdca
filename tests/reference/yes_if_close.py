"""Yes if close, written out: every token by a full forward over everything so far, one probability at a time."""

import math

from tests.reference.deco import softmax
from tests.reference.loop import decode


def answer(model, inputs, up, down, mass, margin, new):
    """Greedy tokens; `up` and `down` are token ids."""

    def step(states, head, _norm):
        scores = [float(value) for value in head(states[-1])]
        p = softmax(scores)
        yes, no = sum(p[token] for token in up), sum(p[token] for token in down)
        if yes + no > mass and abs(yes - no) < margin:
            return [score if token in up else -math.inf for token, score in enumerate(scores)]
        return scores

    return decode(model, inputs, step, new)
