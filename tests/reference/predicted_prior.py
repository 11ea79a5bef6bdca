"""The predicted prior as its equations stand: one state at a time, in numpy, no shortcuts."""

import math

import numpy as np


def step(h, basis, weight, offset, head, bias, rho, lam, *, gate, protect):
    """Returns h' and the head's logits on it. basis: [d, K]; weight: [K, d]; offset: [K]; head: [vocab, d]."""
    logits = head @ h + bias
    p = np.exp(logits - logits.max())
    p = p / p.sum()
    entropy = -sum(probability * math.log(probability) for probability in p if probability > 0)
    own = basis @ (basis.T @ h)
    gamma = math.tanh(lam * entropy) if gate else 1.0
    delta = 1 - (h @ own) / (np.linalg.norm(h) * np.linalg.norm(own)) if protect else 1.0
    moved = h.copy()
    for k in range(basis.shape[1]):
        predicted = sum(weight[k, j] * h[j] for j in range(len(h))) + offset[k]
        moved = moved - rho * gamma * delta * predicted * basis[:, k]
    return moved, head @ moved + bias


def ridge(h, target, share):
    """(A, a) of the penalised least squares, by the normal equations with the penalty as further rows."""
    centred, level = h - h.mean(0), target - target.mean(0)
    penalty = math.sqrt(share * (centred**2).sum()) * np.eye(h.shape[1])
    rows, wanted = np.vstack([centred, penalty]), np.vstack([level, np.zeros((h.shape[1], target.shape[1]))])
    weight = np.linalg.lstsq(rows, wanted, rcond=None)[0].T
    return weight, target.mean(0) - weight @ h.mean(0)
