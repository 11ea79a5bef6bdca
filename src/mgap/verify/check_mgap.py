"""Checks MGAP against reference vectors, through the hook that decoding attaches to the head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mgap.backbones.head import Head
from mgap.methods.base import Observation, Tap
from mgap.methods.mgap import PRESETS, Correction, Settings, cut_logits, cut_state, entropy_of, gate_of, restore_scale
from mgap.priors.subspace import Subspace
from mgap.verify.compare import VectorDifference, Vectors, differ


def _linear(weight: Any, bias: Any = None) -> nn.Linear:
    tensor = torch.from_numpy(weight)
    head = nn.Linear(tensor.shape[1], tensor.shape[0], bias=bias is not None, dtype=tensor.dtype)
    head.weight.data = tensor
    if bias is not None:
        head.bias.data = torch.from_numpy(bias)
    return head


def _decode(
    module: nn.Linear, basis: Tensor, h: Tensor, settings: Settings, *, exact: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """One decoding step: the head runs and its hook corrects. Returns logits [B, vocab] and the gate."""
    observations: list[Observation] = []
    tap = Tap()
    tap.listener = observations.append
    head = Head.measure(module, h)
    handle = module.register_forward_hook(Correction(basis, replace(head, linear=False) if exact else head, settings, tap))
    try:
        with torch.no_grad():
            logits: Tensor = module(h.unsqueeze(1))  # [B, 1, vocab]
    finally:
        handle.remove()
    return logits[:, 0], {name: value[:, 0] for name, value in observations[0].values.items()}


def check_paper(vectors: Vectors) -> Iterator[VectorDifference]:
    """Sections 2.1, 2.2 and 2.4 of the specification: subspace, gate, and both ways to compute the logits."""
    states, h = torch.from_numpy(vectors["blind_states"]), torch.from_numpy(vectors["h"])
    prior = Subspace.from_states(states, rank=int(vectors["K"]))
    yield differ("blind_mean", prior.mean, vectors["blind_mean"])
    yield differ("singular_values", prior.singular_values, vectors["singular_values"])
    yield differ("projector", prior.projector, vectors["projector"])
    settings = Settings(alpha=float(vectors["alpha"]), lam=float(vectors["lam"]))
    head = _linear(vectors["head_weight"])
    yield differ("logits", head(h), vectors["logits"])
    logits, gate = _decode(head, prior.basis, h, settings)
    for ours, name in (("entropy", "entropy"), ("gamma", "gamma"), ("cosine", "cos"), ("delta", "delta"), ("beta", "beta")):
        yield differ(name, gate[ours], vectors[name])
    yield differ("logits_cut", logits, vectors["logits_cut"])
    yield differ("logits_cut, exact path", _decode(head, prior.basis, h, settings, exact=True)[0], vectors["logits_cut"])
    yield differ("argmax", logits.argmax(-1), vectors["argmax"])

    coeff, norm = h @ prior.basis, torch.linalg.vector_norm(h, dim=-1)
    step = gate_of(norm, coeff, entropy_of(head(h)), settings)
    cut = cut_state(h, prior.basis, coeff, step, norm, settings)
    yield differ("h_cut", cut, vectors["h_cut"])
    yield differ("norm_cut_sq", cut.square().sum(-1), vectors["norm_cut_sq"])
    yield differ("logits_cut_with_bias", _biased(vectors, prior.basis, h, settings), vectors["logits_cut_with_bias"])
    stored = torch.from_numpy(vectors["basis"]).T  # the reference's own signs
    yield differ("WV", Head.measure(head, h).table(stored).T, vectors["WV"])
    yield differ("coeff", h @ stored, vectors["coeff"])


def check_reference_code(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2.3: the step of the authors' code with threshold, epsilon and norm restoration, and its ablations."""
    basis, h = torch.from_numpy(vectors["basis"]).T.contiguous(), torch.from_numpy(vectors["h"])
    preset = {name: value for name, value in PRESETS["reference-code"].items() if name != "rank"}
    own = {
        "alpha": float(vectors["alpha"]),
        "lam": float(vectors["gate_sensitivity"]),
        "threshold": float(vectors["cos_threshold"]),
    }
    default = Settings(**{**preset, **own})
    runs = {
        "default": default,
        "no_restore": replace(default, restore=False),
        "no_protection": replace(default, protect=False),
        "no_gate": replace(default, gate=False),
    }
    head = _linear(vectors["head_weight"])
    names = (("entropy", "entropy"), ("gamma", "gate"), ("cosine", "cos"), ("delta", "protection"), ("beta", "effective_alpha"))
    for run, settings in runs.items():
        logits, gate = _decode(head, basis, h, settings)
        for ours, name in names:
            yield differ(f"{run}_{name}", gate[ours], vectors[f"{run}_{name}"])
        yield differ(f"{run}_logits", logits, vectors[f"{run}_logits"])
        yield differ(f"{run}_argmax", logits.argmax(-1), vectors[f"{run}_argmax"])
        exact, _ = _decode(head, basis, h, settings, exact=True)
        yield differ(f"{run}_logits, exact path", exact, vectors[f"{run}_logits"])
        coeff, norm = h @ basis, torch.linalg.vector_norm(h, dim=-1)
        step = gate_of(norm, coeff, gate["entropy"], settings)
        yield differ(f"{run}_h_final", cut_state(h, basis, coeff, step, norm, settings), vectors[f"{run}_h_final"])
        if settings.restore:
            scale = restore_scale(norm, step.cosine, step.beta)
            yield differ(f"{run}_restore_scale", scale, vectors[f"{run}_restore_scale"])
    yield differ("default_logits_with_bias", _biased(vectors, basis, h, default), vectors["default_logits_with_bias"])
    yield from _check_native(vectors, h, default)


def _biased(vectors: Vectors, basis: Tensor, h: Tensor, settings: Settings) -> Tensor:
    """Corrected logits of a head with a bias; the reference takes the entropy without the bias."""
    head = Head.measure(_linear(vectors["head_weight"], vectors["head_bias"]), h)
    coeff, norm = h @ basis, torch.linalg.vector_norm(h, dim=-1)
    logits = head.product(h)
    plain = torch.from_numpy(vectors["head_weight"]) @ h.T  # [vocab, B]
    gate = gate_of(norm, coeff, entropy_of(plain.T, settings.epsilon), settings)
    return cut_logits(logits, head.table(basis), head.bias, coeff, gate, norm, settings)


def _check_native(vectors: Vectors, h: Tensor, settings: Settings) -> Iterator[VectorDifference]:
    """The authors' mixed precision: float16 state and head, and a basis from float16 states."""
    rank = len(vectors["native_basis_f32"])
    prior = Subspace.from_states(torch.from_numpy(vectors["native_blind_states_f16"]), rank=rank)
    yield differ("native_projector_f32", prior.projector, vectors["native_projector_f32"], 1e-2)
    head = _linear(vectors["head_weight"].astype("float16"))
    logits, gate = _decode(head, prior.basis, h.half(), settings)
    yield differ("native_entropy", gate["entropy"], vectors["native_entropy"], 1e-2)
    yield differ("native_effective_alpha", gate["beta"], vectors["native_effective_alpha"], 1e-2)
    yield differ("native_logits_f16", logits, vectors["native_logits_f16"], 1e-2)
    yield differ("native_argmax", logits.argmax(-1), vectors["native_argmax"])


def check_edges(vectors: Vectors) -> Iterator[VectorDifference]:
    """States inside, orthogonal to and across the subspace; distributions with almost all mass on one token."""
    h, basis = torch.from_numpy(vectors["h"]), torch.from_numpy(vectors["basis"]).T
    logits = torch.from_numpy(vectors["onehot_probs"]).log()
    gate = gate_of(torch.linalg.vector_norm(h, dim=-1), h @ basis, torch.zeros(len(h)), Settings(alpha=1.0, lam=1.0))
    yield differ("cos", gate.cosine, vectors["cos"])
    yield differ("entropy_exact", entropy_of(logits), vectors["entropy_exact"])
    yield differ("entropy_with_eps", entropy_of(logits, PRESETS["reference-code"]["epsilon"]), vectors["entropy_with_eps"])
