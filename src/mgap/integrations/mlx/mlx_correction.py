"""MGAP's correction of one step in MLX: the formulas of methods/mgap.py, in float32 and on MLX's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
from torch import Tensor

from mgap.integrations.mlx.mlx_head import MlxHead
from mgap.methods.mgap import Settings


class MlxGate(NamedTuple):
    """What determines the strength of one step, as `mgap.methods.mgap.Gate`; all [...]."""

    entropy: Any
    cosine: Any
    gamma: Any
    delta: Any
    beta: Any


def entropy_of(logits: Any, epsilon: float = 0.0) -> Any:
    """-sum p ln(p + epsilon) in nats over [..., vocab]; a masked token (-inf) adds nothing."""
    x = logits - mx.max(logits, axis=-1, keepdims=True)
    e = mx.exp(x)
    total = mx.sum(e, axis=-1, keepdims=True)
    p = e / total
    if epsilon:
        return -mx.sum(p * mx.log(p + epsilon), axis=-1)
    return mx.log(total.squeeze(-1)) - mx.sum(mx.where(p > 0, p * x, 0.0), axis=-1)


class MlxCorrection:
    """MGAP bound to one head."""

    def __init__(self, basis: Tensor, head: MlxHead, settings: Settings) -> None:
        self.basis = mx.array(basis.float().numpy())  # [d, K]
        self.head, self.settings = head, settings
        self.table = head.table(self.basis) if head.linear else None  # [K, vocab]; None: the head runs a second time
        mx.eval(self.basis, *([] if self.table is None else [self.table]))

    def read(self, h: Any, logits: Any) -> tuple[Any, Any, MlxGate]:
        """c = V'h [..., K], |h| [...] and the gate, from states [..., d] and the head's output for them [..., vocab]."""
        s = self.settings
        coeff, norm = h @ self.basis, mx.linalg.norm(h, axis=-1)
        entropy = entropy_of(self.head.post(logits), s.epsilon)
        cosine = mx.minimum(mx.where(norm > 0, mx.linalg.norm(coeff, axis=-1) / norm, 0.0), 1.0)
        gamma = mx.tanh(s.lam * entropy) if s.gate else mx.ones_like(entropy)
        delta = mx.clip((1 - cosine) / (1 - s.threshold), 0.0, 1.0) if s.protect else mx.ones_like(cosine)
        return coeff, norm, MlxGate(entropy, cosine, gamma, delta, s.alpha * gamma * delta)

    def __call__(self, h: Any, logits: Any) -> Any:
        """What replaces the head's output [..., vocab] for states [..., d], both in float32."""
        coeff, norm, gate = self.read(h, logits)
        beta = gate.beta[..., None]
        scale = self._restore_scale(norm, gate)[..., None] if self.settings.restore else None
        if self.table is None:
            cut = h - beta * (coeff @ self.basis.T)
            return self.head.product(cut if scale is None else cut * scale)
        cut = logits - (beta * coeff) @ self.table
        if scale is None:
            return cut
        bias = self.head.bias
        return scale * cut if bias is None else scale * (cut - bias) + bias

    @staticmethod
    def _restore_scale(norm: Any, gate: MlxGate) -> Any:
        shrink = (2 * gate.beta - gate.beta**2) * gate.cosine**2
        return norm / (norm * mx.sqrt(mx.maximum(1 - shrink, 0.0)) + 1e-6)
