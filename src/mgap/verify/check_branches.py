"""Checks methods with a second branch against reference vectors, through the functions that decoding calls."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mgap.methods.code import CODE
from mgap.methods.icd import ICD
from mgap.methods.m3id import M3ID
from mgap.methods.ritual import RITUAL, blur_kernel
from mgap.methods.vcd import VCD, add_noise, schedule
from mgap.verify.compare import VectorDifference, Vectors, differ, tensor


def check_vcd(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2 of the specification: contrast and plausibility."""
    method = VCD(alpha=float(vectors["alpha"]), beta=float(vectors["beta"]))
    out, _ = method.combine(tensor(vectors, "logits"), tensor(vectors, "logits_cd"), step=1)
    yield differ("out", out, vectors["out"])
    yield differ("keep", out.isfinite(), vectors["keep"])
    yield differ("probs", out.softmax(-1), vectors["probs"])
    yield differ("argmax", out.argmax(-1), vectors["argmax"])


def check_noise(vectors: Vectors) -> Iterator[VectorDifference]:
    """The noise schedule; the authors' code has float32 coefficients."""
    signal, spread = schedule()
    yield differ("sqrt_alpha_bar_f64", signal, vectors["sqrt_alpha_bar_f64"])
    yield differ("sqrt_one_minus_alpha_bar_f64", spread, vectors["sqrt_one_minus_alpha_bar_f64"])
    yield differ("sqrt_alpha_bar_f32", signal, vectors["sqrt_alpha_bar_f32"], 2e-5)
    yield differ("sqrt_one_minus_alpha_bar_f32", spread, vectors["sqrt_one_minus_alpha_bar_f32"], 2e-5)
    image, noise = tensor(vectors, "image"), tensor(vectors, "noise")
    noised = torch.stack([add_noise(image, noise, int(step)) for step in vectors["steps"]])
    yield differ("noised", noised, vectors["noised"], 2e-5)


def check_code(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the divergence, and the strength and cutoff that it sets."""
    main, branch = tensor(vectors, "logits"), tensor(vectors, "logits_description")
    out, traced = CODE(k=float(vectors["k"])).combine(main, branch, step=1)
    yield differ("divergence", traced["divergence"], vectors["divergence"])
    yield differ("alpha_t", traced["weight"], vectors["alpha_t"])
    yield differ("cutoff_prob", traced["divergence"] * main.softmax(-1).max(-1).values, vectors["cutoff_prob"])
    yield differ("out", out, vectors["out"])
    yield differ("keep", out.isfinite(), vectors["keep"])
    yield differ("argmax", out.argmax(-1), vectors["argmax"])


def check_icd(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the contrast, alone and summed with that of a noised picture."""
    main, *branches = (tensor(vectors, name) for name in ("logits", "logits_disturbed", "logits_image_cd"))
    for suffix, with_vcd in (("", False), ("_with_vcd", True)):
        method = ICD(alpha=float(vectors["alpha"]), beta=float(vectors["beta"]), with_vcd=with_vcd)
        out, _ = method.weigh(main, branches[: 1 + with_vcd], step=1, kept={})
        yield differ(f"out{suffix}", out, vectors[f"out{suffix}"])
        yield differ(f"argmax{suffix}", out.argmax(-1), vectors[f"argmax{suffix}"])


def check_m3id(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the growing weight, with the plausibility cut and with the confidence gate."""
    main, branch = tensor(vectors, "logits"), tensor(vectors, "logits_uncond")
    lam, beta, tau = (float(vectors[key]) for key in ("lam", "beta", "gate_threshold"))
    cut, gated = M3ID(lam=lam, beta=beta), M3ID(lam=lam, constraint="confidence_gate", tau=tau)
    out = torch.stack([cut.combine(main, branch, int(t))[0] for t in vectors["t"]])
    yield differ("out", out, vectors["out"])
    yield differ("argmax", out.argmax(-1), vectors["argmax"])
    yield differ("out_gate_variant", torch.stack([gated.combine(main, branch, int(t))[0] for t in vectors["t"]]),
                 vectors["out_gate_variant"])  # fmt: skip


def check_ritual(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the sum with the transformed view, and the weights of the blur."""
    method = RITUAL(alpha=float(vectors["alpha"]), beta=float(vectors["beta"]))
    out, _ = method.combine(tensor(vectors, "logits"), tensor(vectors, "logits_transformed"), step=1)
    yield differ("out", out, vectors["out"])
    yield differ("argmax", out.argmax(-1), vectors["argmax"])
    yield differ("blur_kernel", blur_kernel(float(vectors["blur_sigma"])), vectors["blur_kernel"])
