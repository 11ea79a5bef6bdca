"""VISTA, written out: no cache, so every position is steered again in every forward, one by one and in float64."""

from contextlib import contextmanager

import torch

from tests.reference import contrast, loop


def last_outputs(backbone, inputs):
    """The output of every block at the last position of one row, before the final norm."""
    found = []
    handles = [
        block.register_forward_hook(lambda _block, _args, output: found.append(output[0, -1].double()))
        for block in backbone.layers
    ]
    with torch.no_grad():
        backbone.model(**inputs, use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def vectors(backbone, main):
    shown, unshown = last_outputs(backbone, main), last_outputs(backbone, contrast.without_image(backbone, main))
    return [a - b for a, b in zip(shown, unshown, strict=True)]


def turn(m, v, lam, gain):
    if m.norm() == 0 or v.norm() == 0:
        return m
    m_unit, u = m / m.norm(), v / v.norm()
    g = 1 + max(0.0, float(-(m_unit @ u))) if gain else 1.0
    moved = m_unit + lam * g * u
    return m.norm() * moved / moved.norm()


@contextmanager
def steered(backbone, given, lam, gain, site, layers):
    """Inside: every position is steered in the blocks `layers`, from 1, by one vector for each block of the model."""

    def hook_of(v):
        def hook(_module, _args, output):
            return torch.stack([turn(m, v, lam, gain) for m in output[0].double()]).unsqueeze(0).to(output.dtype)

        return hook

    blocks = [backbone.layers[i - 1] for i in layers]
    modules = [block.mlp if site == "mlp" else block for block in blocks]
    handles = [module.register_forward_hook(hook_of(given[i - 1])) for i, module in zip(layers, modules, strict=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def decode(model, main, new, *, lam, alpha, window, layers, gain=True, site="mlp", normed=False):
    """Greedy tokens of one row, and the scores that each was chosen from; `window` and `layers` are indices of hs."""
    seen = []

    def step(states, head, norm):
        final = head(states[-1])
        early = [head(norm(states[i]) if normed else states[i]) for i in window]
        mean = [sum(values) / len(early) for values in zip(*(each.tolist() for each in early), strict=True)]
        seen.append([(1 - alpha) * a + alpha * b for a, b in zip(final.tolist(), mean, strict=True)])
        return seen[-1]

    given = vectors(model.backbone, main)
    with steered(model.backbone, given, lam, gain, site, layers):
        return loop.decode(model, main, step, new), seen
