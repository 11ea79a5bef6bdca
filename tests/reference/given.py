"""Decoding with given evidence, written out: probabilities one by one, every pair of branches, boxes side by side."""

import math

from tests.reference.contrast import cut, probabilities


def mean(branches):
    return [sum(values) / len(values) for values in zip(*branches, strict=True)]


def log_probabilities(logits):
    return [math.log(p) for p in probabilities(logits)]


def js(main, other):
    p, q = probabilities(main), probabilities(other)
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (kl(p, m) + kl(q, m)) / 2


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def contrast(alpha, beta, gate=0.0):
    def step(main, *rest):
        *branches, _t = rest
        e = mean(branches)
        if js(main, e) < gate:
            return main
        return cut([(1 + alpha) * a - alpha * b for a, b in zip(main, e, strict=True)], main, beta)

    return step


def agree(alpha, beta, gate=0.0):
    def step(main, *rest):
        *branches, _t = rest
        e = mean(branches)
        if js(main, e) < gate:
            return main
        return cut([a + alpha * b for a, b in zip(main, e, strict=True)], main, beta)

    return step


def guide(alpha):
    def step(main, *rest):
        *branches, _t = rest
        pairs = zip(log_probabilities(main), log_probabilities(mean(branches)), strict=True)
        return log_probabilities([(1 - alpha) * a + alpha * b for a, b in pairs])

    return step


def pair(weight):
    def step(_main, *rest):
        *branches, _t = rest
        best, chosen = -math.inf, None
        for i in range(len(branches)):
            for j in range(i + 1, len(branches)):
                p, q = probabilities(branches[i]), probabilities(branches[j])
                m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
                d = (kl(m, p) + kl(m, q)) / 2
                if d > best:
                    best, chosen = d, (i, j)
        i, j = chosen
        return [b - weight * a for a, b in zip(branches[i], branches[j], strict=True)]

    return step


def fields(box, count, ratio):
    """HALC's nested boxes: shrunk, as it is, and grown from one to the next."""
    shrink = min(ratio, 0.8)
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    smaller = (left + width * shrink / 2, top + height * shrink / 2, right - width * shrink / 2, bottom - height * shrink / 2)
    found = [smaller, tuple(box)]
    while len(found) < count:
        left, top, right, bottom = found[-1]
        width, height = right - left, bottom - top
        left, right = max(left - width * ratio / 2, 0), min(right + width * ratio / 2, 1)
        top, bottom = max(top - height * ratio / 2, 0), min(bottom + height * ratio / 2, 1)
        found.append((left, top, right, bottom))
    return found
