"""MGAP as the paper writes it: one state at a time, in plain Python floats and numpy, no shortcuts."""

import math

import numpy as np


def step(h, basis, weight, bias, alpha, lam, *, gate=True, protect=True):
    """Returns h_cut and the logits of the head on it. basis: [d, K]; weight: [vocab, d]."""
    logits = weight @ h + bias
    p = np.exp(logits - logits.max())
    p = p / p.sum()
    entropy = 0.0
    for probability in p:
        if probability > 0:
            entropy -= probability * math.log(probability)
    h_proj = np.zeros_like(h)
    for k in range(basis.shape[1]):
        h_proj = h_proj + (basis[:, k] @ h) * basis[:, k]
    cosine = (h @ h_proj) / (np.linalg.norm(h) * np.linalg.norm(h_proj)) if np.linalg.norm(h_proj) > 0 else 0.0
    gamma = math.tanh(lam * entropy) if gate else 1.0
    delta = 1 - cosine if protect else 1.0
    h_cut = h - alpha * gamma * delta * h_proj
    return h_cut, weight @ h_cut + bias


def step_of_the_authors_code(h, basis, weight, alpha, slope, threshold, *, restore=True):
    """The released implementation's rule: epsilon in the entropy, a threshold on the cosine, the norm restored."""
    logits = weight @ h
    p = np.exp(logits - logits.max())
    p = p / p.sum()
    entropy = -np.sum(p * np.log(p + 1e-6))
    h_proj = basis @ (basis.T @ h)
    cosine = (h @ h_proj) / (np.linalg.norm(h) * np.linalg.norm(h_proj))
    protection = 1.0 if cosine <= threshold else max(0.0, (1 - cosine) / (1 - threshold))
    h_cut = h - alpha * math.tanh(slope * entropy) * protection * h_proj
    if restore:
        h_cut = h_cut / (np.linalg.norm(h_cut) + 1e-6) * np.linalg.norm(h)
    return h_cut, weight @ h_cut
