"""MGAP, section 4.2: shrink the language-prior part of the state that the head reads.

    h_cut = h - beta V V'h,   beta = alpha * gamma * delta,   gamma = tanh(lam * H),   delta = 1 - cos(h, V V'h)

The head is linear, so W h_cut = W h - beta (W V)(V'h): one [K, vocab] table, built once, replaces a second pass through the
head. Cost per token: 1 forward, 2 K (d + vocab) flops. All decoding modes; any attention kernel.

The authors' code differs (preset "reference-code"): slope 0.6, rank 3, full strength below a cosine of 0.25 and a rescaled
delta above it, 1e-6 inside the entropy's logarithm, and the norm of h restored afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.base import Need, Observation, Tap
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.head import HeadMethod
from mgap.methods.mgap_fused import FusedStep, gate_values, why_not
from mgap.priors.subspace import Subspace
from mgap.settings import check_choice, check_count, check_strength, check_switch

_CACHE_LOGITS = 1 << 17  # logits that a CPU core works on at a time
_MIN_EXPONENT = -200.0  # exp of it is 0 in float32, and so is its product with it, where -inf would give nan


@dataclass(frozen=True)
class Settings:
    """The numbers of one step. `threshold=0, epsilon=0, restore=False` is the paper."""

    alpha: float
    lam: float
    gate: bool = True  # off: gamma = 1
    protect: bool = True  # off: delta = 1
    threshold: float = 0.0  # full strength up to this cosine, then falling to 0 at cosine 1
    epsilon: float = 0.0  # inside the logarithm of the entropy
    restore: bool = False  # give h_cut the norm of h


class Gate(NamedTuple):
    """What determines the strength of one step, as used; all [...]."""

    entropy: Tensor  # nats, of the plain prediction
    cosine: Tensor  # |V'h| / |h|, which equals cos(h, V V'h)
    gamma: Tensor
    delta: Tensor
    beta: Tensor  # in [0, alpha)


def entropy_of(logits: Tensor, epsilon: float = 0.0) -> Tensor:
    """-sum p ln(p + epsilon) in nats over [..., vocab]; a masked token (-inf) adds nothing."""
    if epsilon == 0.0 and logits.is_cpu and not torch.compiler.is_compiling() and not _needs_grad(logits):
        return _entropy_in_cache(logits)
    p = logits.softmax(-1)
    if epsilon == 0.0:
        plain: Tensor = torch.special.entr(p).sum(-1)
        return plain
    return -(p * (p + epsilon).log()).sum(-1)


def _needs_grad(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def _entropy_in_cache(logits: Tensor) -> Tensor:
    """ln(sum e^x) - sum x e^x / sum e^x with x = l - max l, a few rows at a time: intermediates stay in the CPU cache."""
    rows = logits.reshape(-1, logits.shape[-1])  # [n, vocab]
    wide = torch.promote_types(logits.dtype, torch.float32)
    chunk = max(_CACHE_LOGITS * torch.get_num_threads() // max(rows.shape[1], 1), 1)
    entropy = torch.empty(len(rows), dtype=wide)
    x, e = (torch.empty(min(chunk, len(rows)), rows.shape[1], dtype=wide) for _ in range(2))
    for start in range(0, len(rows), chunk):
        part = rows[start : start + chunk]
        x_, e_ = x[: len(part)], e[: len(part)]
        x_.copy_(part).sub_(part.amax(-1, keepdim=True)).clamp_(min=_MIN_EXPONENT)
        torch.exp(x_, out=e_)
        total = e_.sum(-1)
        entropy[start : start + chunk] = total.log() - torch.linalg.vecdot(e_, x_) / total
    return entropy.view(logits.shape[:-1])


def gate_of(norm: Tensor, coeff: Tensor, entropy: Tensor, s: Settings, alphas: Tensor | None = None) -> Gate:
    """beta from |h| [...], c = V'h [..., K] and the entropy [...]; `alphas` [...], if given, replace the settings' alpha."""
    cosine = torch.where(norm > 0, torch.linalg.vector_norm(coeff, dim=-1) / norm, 0.0).clamp(max=1.0)
    gamma = torch.tanh(s.lam * entropy) if s.gate else torch.ones_like(entropy)
    delta = ((1 - cosine) / (1 - s.threshold)).clamp(0.0, 1.0) if s.protect else torch.ones_like(cosine)
    return Gate(entropy, cosine, gamma, delta, (s.alpha if alphas is None else alphas) * gamma * delta)


def restore_scale(norm: Tensor, cosine: Tensor, beta: Tensor) -> Tensor:
    """|h| / (|h_cut| + 1e-6), with |h_cut|^2 = |h|^2 - (2 beta - beta^2) |c|^2."""
    shrink = (2 * beta - beta**2) * cosine**2
    return norm / (norm * (1 - shrink).clamp(min=0.0).sqrt() + 1e-6)


def cut_state(h: Tensor, basis: Tensor, coeff: Tensor, gate: Gate, norm: Tensor, s: Settings) -> Tensor:
    """h_cut [..., d], rescaled to |h| if the settings say so."""
    cut = h - gate.beta.unsqueeze(-1) * (coeff @ basis.T)
    return cut * restore_scale(norm, gate.cosine, gate.beta).unsqueeze(-1) if s.restore else cut


def cut_logits(
    logits: Tensor, table: Tensor, bias: Tensor | None, coeff: Tensor, gate: Gate, norm: Tensor, s: Settings
) -> Tensor:
    """head(h_cut) [..., vocab] from head(h), without a second product: l - beta (W V) c. The bias is not rescaled."""
    cut = logits - (gate.beta.unsqueeze(-1) * coeff) @ table
    if not s.restore:
        return cut
    scale = restore_scale(norm, gate.cosine, gate.beta).unsqueeze(-1)
    return scale * cut if bias is None else scale * (cut - bias) + bias


def take_away(logits: Tensor, beta: Tensor, coeff: Tensor, table: Tensor) -> Tensor:
    """l - beta (W V) c in the logits' own memory; beta [...], c [..., K]."""
    flat = logits.reshape(-1, logits.shape[-1])  # [n, vocab], the same memory
    flat.addmm_((beta.unsqueeze(-1) * coeff).reshape(len(flat), -1), table, alpha=-1)
    return logits


class Correction:
    """MGAP bound to one head. Used as that head's forward hook."""

    def __init__(self, basis: Tensor, head: Head, settings: Settings, tap: Tap, *, fused: bool | None = None) -> None:
        """`fused`: True for the step of `mgap_fused.py`, False for the plain one; None: fused if possible."""
        self.basis = basis.to(head.device, head.wide)  # [d, K]
        self.table = head.table(self.basis) if head.linear else None  # [K, vocab]; None: the exact path
        self.head, self.settings, self.tap = head, settings, tap
        reason = "it was not asked for" if fused is False else why_not(head, self.basis.shape[1], settings)
        if fused and reason:
            raise SettingError(f"fused=True cannot be had, because {reason}: leave fused out, and the plain step is taken")
        self.fused = None if self.table is None or reason else FusedStep(self.basis, self.table, head, settings)

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if self.settings.alpha == 0 and self.tap.listener is None:
            return output
        return self.step(args[0], output)

    def step(self, h: Tensor, output: Tensor, alphas: Tensor | None = None, *, may_overwrite: bool = False) -> Tensor:
        """What replaces the head's output [..., vocab] for states [..., d], in float32.

        `alphas` [...] are strengths per row, instead of the settings' alpha. With `may_overwrite` an output in float32 may be
        modified in place.
        """
        listener = self.tap.listener
        # torch.compile gets the plain step, and fuses it itself
        if self.fused is not None and not torch.compiler.is_compiling() and self.fused.takes(h, output):
            corrected, scratch = self.fused(h, output, alphas)
            if listener is not None:
                listener(self.observe(Gate(*gate_values(scratch, output.shape[:-1])), output, corrected))
            return corrected
        h = h.to(self.basis)  # to the head's device and float32
        logits = output.to(self.basis.dtype)
        coeff, norm, gate = self.read(h, logits, alphas)
        if may_overwrite and listener is None and self.table is not None and not self.settings.restore:
            return take_away(logits, gate.beta, coeff, self.table)
        corrected = self.correct(h, output, logits, coeff, norm, gate, self.settings, alphas)
        if listener is not None:
            listener(self.observe(gate, logits, corrected))
        return corrected

    def observe(self, gate: Gate, output: Tensor, corrected: Tensor) -> Observation:
        """The gate as used, and the logits before and after the correction."""
        post, wide = self.head.post, self.basis.dtype
        return Observation(gate._asdict(), post(output.to(wide)), post(corrected.to(wide)))

    def read(self, h: Tensor, logits: Tensor, alphas: Tensor | None = None) -> tuple[Tensor, Tensor, Gate]:
        """c [..., K], |h| [...] and the gate, from states [..., d] and the head's output for them [..., vocab]."""
        coeff, norm = h @ self.basis, torch.linalg.vector_norm(h, dim=-1)
        gate = gate_of(norm, coeff, entropy_of(self.head.post(logits), self.settings.epsilon), self.settings, alphas)
        return coeff, norm, gate

    def correct(
        self,
        h: Tensor,
        output: Tensor,
        logits: Tensor,
        coeff: Tensor,
        norm: Tensor,
        gate: Gate,
        s: Settings,
        alphas: Tensor | None = None,
    ) -> Tensor:
        """What replaces the head's output [..., vocab]; `logits` is the same output in float32."""
        if s.alpha == 0 and alphas is None:
            return output  # bit-equal
        if self.table is None:
            return self.head.product(cut_state(h, self.basis, coeff, gate, norm, s))
        return cut_logits(logits, self.table, self.head.bias, coeff, gate, norm, s)

    def cut(self, h: Tensor) -> Tensor:
        """h_cut [..., d] itself; decoding needs only its logits."""
        h = h.to(self.basis)
        with torch.no_grad():
            coeff, norm, gate = self.read(h, self.head.product(h))
        return cut_state(h, self.basis, coeff, gate, norm, self.settings)


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"alpha": 0.75, "lam": 0.5},
    "table-random": {"alpha": 0.75, "lam": 1.0},
    "table-hard": {"alpha": 1.0, "lam": 0.5},
    "reference-code": {"alpha": 0.75, "lam": 0.6, "rank": 3, "threshold": 0.25, "epsilon": 1e-6, "restore": True},
}
TUNED = "tuned"  # the preset stored in the prior
TUNABLE = ("alpha", "lam", "rank", "gate", "protect")


@dataclass(frozen=True)
class MGAP(HeadMethod):
    """Manifold-guided adaptive projection. Settings that are not given come from the preset; "tuned" is `mgap tune`'s choice.

    `gate=False` and `protect=False` are the paper's ablations. `rank` uses only the first directions of the prior.
    """

    name: ClassVar[str] = "mgap"
    summary: ClassVar[str] = "attenuate the language-prior part of the head's input"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {**PRESETS, TUNED: {}}
    moved_by: ClassVar[str] = "alpha"
    needs: ClassVar[Mapping[str, Need]] = MappingProxyType({"prior": Need("subspace")})
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0})

    prior: Subspace
    alpha: float | None = None
    lam: float | None = None
    gate: bool | None = None  # on, unless the preset says otherwise
    protect: bool | None = None  # the same
    preset: str = "paper"
    rank: int | None = None
    threshold: float | None = None
    epsilon: float | None = None
    restore: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Subspace):
            raise SettingError(f"prior must be a Subspace, not {type(self.prior).__name__}: use mgap.Subspace.load(...)")
        self.fill_from_preset()
        self.fill_in({"gate": True, "protect": True})
        self.check_settings()
        if self.settings.alpha > 1:
            warnings.warn(f"alpha={self.settings.alpha} > 1 can flip the sign of the prior's part", stacklevel=3)
        self.subspace  # noqa: B018  refuses a rank that the prior does not have

    def check_settings(self) -> None:
        check_choice("preset", self.preset, self.presets)
        for name in ("gate", "protect", "restore"):
            if getattr(self, name) is not None:
                check_switch(name, getattr(self, name))
        for name in ("alpha", "lam", "threshold", "epsilon"):
            if getattr(self, name) is not None:
                check_strength(name, getattr(self, name))
        if self.rank is not None:
            check_count("rank", self.rank, least=1)
        if self.threshold is not None and self.threshold >= 1:
            raise SettingError(f"threshold={self.threshold} must be below 1")

    def fill_from_preset(self) -> None:
        super().fill_from_preset()
        if self.preset == TUNED:
            self.fill_in(tuned_settings(self.prior))

    @property
    def settings(self) -> Settings:
        given = {f.name: getattr(self, f.name) for f in fields(Settings)}
        return Settings(**{name: value for name, value in given.items() if value is not None})

    @property
    def subspace(self) -> Subspace:
        return self.prior if self.rank is None else self.prior.truncate(self.rank)

    @property
    def learnt(self) -> Subspace:
        return self.prior

    def correction(self, backbone: Backbone, head: Head, tap: Tap) -> Correction:
        self.prior.require(backbone)
        return self.bind(head, tap)

    def bind(self, head: Head, tap: Tap) -> Correction:
        return Correction(self.subspace.basis, head, self.settings, tap)

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:
        return Correction(self.subspace.basis, head, replace(self.settings, alpha=float(strength)), Tap()).cut(inputs.h)

    def betas(self, head: Head, h: Tensor, strength: float) -> Tensor:
        """beta [B] of head inputs [B, d] at a strength: the share of the prior's part that is removed."""
        return self.read(head, h, strength).beta

    def read(self, head: Head, h: Tensor, strength: float | None = None) -> Gate:
        """The gate at head inputs [B, d], at a strength; None: at its own."""
        settings = self.settings if strength is None else replace(self.settings, alpha=strength)
        correction = Correction(self.subspace.basis, head, settings, Tap())
        h = h.to(correction.basis)
        with torch.no_grad():
            return correction.read(h, head.product(h))[2]


def tuned_settings(prior: Subspace) -> dict[str, Any]:
    """The settings that tuning stored in the prior; refuses a prior without tuning, or with other settings than MGAP's."""
    if prior.tuning is None:
        raise SettingError(f"preset={TUNED!r}: this prior has no tuning; make one with `mgap tune`, or name another preset")
    tuned: dict[str, Any] = prior.tuning["settings"]
    if set(tuned) != set(TUNABLE):
        raise SettingError(f"the prior's tuning sets {', '.join(tuned)}, not {', '.join(TUNABLE)}: tune it again")
    return tuned
