"""Reference vectors of other sizes than the shipped ones: MGAP's formulas in NumPy, and the others' files with fewer rows."""

import numpy as np

EPSILON = 1e-6


def entropy(logits, epsilon=0.0):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return -(p * np.log(p + epsilon)).sum(-1)


def subspace(states, rank):
    mean = states.mean(0)
    _, s, v = np.linalg.svd(states - mean, full_matrices=False)
    return mean, s, v[:rank]  # [K, d]


def cosine(h, basis):
    return np.linalg.norm(h @ basis.T, axis=-1, keepdims=True) / np.linalg.norm(h, axis=-1, keepdims=True)


def mgap_files(rank, width, vocab, rows, states):
    """The three files of MGAP for a subspace of this rank."""
    rng = np.random.default_rng(rank)
    blind = rng.normal(size=(states, rank)) @ rng.normal(size=(rank, width)) * 3 + rng.normal(size=(states, width)) * 0.1
    h, weight, bias = rng.normal(size=(rows, width)), rng.normal(size=(vocab, width)) / 4, rng.normal(size=vocab)
    paper = _paper(blind, h, weight, bias, rank)
    edges = _edges(paper["basis"], rows, vocab, rng)
    return {"mgap_paper": paper, "mgap_refcode": _refcode(blind, h, weight, bias, rank), "mgap_edges": edges}


def _paper(blind, h, weight, bias, rank, alpha=0.75, lam=0.5):
    mean, s, basis = subspace(blind, rank)
    logits, cos = h @ weight.T, cosine(h, basis)
    ent = entropy(logits)
    gamma, delta = np.tanh(lam * ent)[:, None], 1 - cos
    beta = alpha * gamma * delta
    cut = h - beta * (h @ basis.T @ basis)
    cut_logits = cut @ weight.T
    return {
        "blind_states": blind, "blind_mean": mean, "singular_values": s, "basis": basis, "projector": basis.T @ basis,
        "K": rank, "alpha": alpha, "lam": lam, "h": h, "head_weight": weight, "head_bias": bias, "logits": logits,
        "entropy": ent, "gamma": gamma, "cos": cos, "delta": delta, "beta": beta, "h_cut": cut, "logits_cut": cut_logits,
        "logits_cut_with_bias": cut_logits + bias, "WV": weight @ basis.T, "coeff": h @ basis.T,
        "norm_cut_sq": (cut**2).sum(-1, keepdims=True), "argmax": cut_logits.argmax(-1),
    }  # fmt: skip


def _step(h, weight, basis, alpha, slope, threshold, *, restore=True, protect=True, gate=True):
    """The authors' step; half precision stays half where theirs does."""
    ent, cos = entropy((h @ weight.T).astype(np.float64), EPSILON), cosine(h.astype(np.float64), basis)
    g = np.tanh(slope * ent)[:, None] if gate else np.ones((len(h), 1))
    kept = np.where(cos <= threshold, 1.0, np.maximum(0.0, (1 - cos) / (1 - threshold))) if protect else np.ones((len(h), 1))
    cut = h - alpha * g * kept * (h @ basis.T @ basis)
    scale = np.linalg.norm(h, axis=-1, keepdims=True) / (np.linalg.norm(cut, axis=-1, keepdims=True) + EPSILON)
    final = cut * scale if restore else cut
    logits = final @ weight.T
    return {"entropy": ent, "gate": g, "cos": cos, "protection": kept, "effective_alpha": alpha * g * kept, "h_final": final,
            "logits": logits, "argmax": logits.argmax(-1), "restore_scale": scale}  # fmt: skip


def _refcode(blind, h, weight, bias, rank, alpha=0.75, slope=0.6, threshold=0.25):
    _, _, basis = subspace(blind, rank)
    settings = (alpha, slope, threshold)
    found = {"basis": basis, "h": h, "head_weight": weight, "head_bias": bias}
    found |= {"alpha": alpha, "gate_sensitivity": slope, "cos_threshold": threshold}
    runs = {"default": {}, "no_restore": {"restore": False}, "no_protection": {"protect": False}, "no_gate": {"gate": False}}
    for run, switched in runs.items():
        found |= {f"{run}_{name}": value for name, value in _step(h, weight, basis, *settings, **switched).items()}
    found["default_logits_with_bias"] = found["default_logits"] + bias
    half = blind.astype(np.float16)
    _, _, native = subspace(half.astype(np.float64), rank)
    step = _step(h.astype(np.float16).astype(np.float64), weight.astype(np.float16).astype(np.float64), native, *settings)
    found |= {"native_blind_states_f16": half, "native_basis_f32": native, "native_projector_f32": native.T @ native}
    native_names = {"entropy": "entropy", "effective_alpha": "effective_alpha", "logits": "logits_f16", "argmax": "argmax"}
    return found | {f"native_{theirs}": step[ours] for ours, theirs in native_names.items()}


def _edges(basis, rows, vocab, rng):
    h = rng.normal(size=(rows + 2, basis.shape[1]))
    h[0], h[1] = basis[0] * 3, h[1] - h[1] @ basis.T @ basis  # inside, and orthogonal
    p = np.full((rows, vocab), 1e-12)
    p[:, 0] = 1 - p[:, 1:].sum(-1)
    return {"h": h, "basis": basis, "cos": cosine(h, basis)[:, 0], "onehot_probs": p,
            "entropy_exact": entropy(np.log(p)), "entropy_with_eps": entropy(np.log(p), EPSILON)}  # fmt: skip


def fewer(stem, arrays):
    """The same with two of the three rows; and of what has no rows, fewer steps, captions or heads."""
    if stem == "vcd_noise":
        return {**arrays, "steps": arrays["steps"][1:], "noised": arrays["noised"][1:]}
    few = {name: _two_rows(array) for name, array in arrays.items()}
    if stem == "haltrapper":
        few |= {"attn_context": few["attn_context"][..., 2:7, :], "ig_similarity": few["ig_similarity"][2:7]}
    if stem == "m3id":
        few |= {name: few[name][2:] for name in ("t", "out", "argmax", "out_gate_variant")}
    if stem == "pai":
        few |= {name: value[:, 1:] for name, value in few.items() if name.startswith("attn")}
    return few


def _two_rows(array):
    for axis, size in enumerate(array.shape):
        if size == 3:
            return array.take([2, 0], axis=axis)
    return array
