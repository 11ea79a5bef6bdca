"""The constant shift, written out: every token by a full forward over everything so far, one logit at a time."""

from tests.reference.loop import decode


def answer(model, inputs, up, down, shift, new):
    """Greedy tokens; `up` and `down` are token ids."""

    def step(states, head, _norm):
        scores = [float(value) for value in head(states[-1])]
        for token in up:
            scores[token] += shift / 2
        for token in down:
            scores[token] -= shift / 2
        return scores

    return decode(model, inputs, step, new)
