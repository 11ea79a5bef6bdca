"""`mgap doctor`: what this machine and a model are like, whether the methods are exact there, and what makes them fast."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated

import typer

import mgap
from mgap.cli.options import Device, Dtype, Revision, TrustRemoteCode, load_model
from mgap.errors import UnsupportedHead

if TYPE_CHECKING:
    from mgap.backbones.base import Backbone
    from mgap.backbones.head import Head


def doctor(
    model: Annotated[str | None, typer.Argument(help="Hub id or folder; default: the environment only.")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Show versions and, for a model, what its head is like, whether MGAP is exact there, and which fast ways it can take."""
    _print(_environment())
    if model is None:
        return
    backbone = load_model(model, device, dtype, revision, trust_remote_code).backbone
    _print(_model(backbone))
    try:
        head = backbone.probe_head()
        _print(_head(head))
        _print(_speed(backbone, head))
    except UnsupportedHead as refusal:
        _print({"MGAP": f"refused: {refusal}"})
        raise


def _print(lines: dict[str, str]) -> None:
    for name, value in lines.items():
        print(f"{name:<16} {value}")


def _environment() -> dict[str, str]:
    import torch

    found = {"mgap": mgap.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "triton", "torchvision", "scipy", "accelerate", "peft"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found["gpu"] = ", ".join(gpus) or "none"
    return found


def _model(backbone: Backbone) -> dict[str, str]:
    parameters = sum(p.numel() for p in backbone.model.parameters())
    return {
        "model": backbone.name,
        "class": f"{type(backbone.model).__name__}, through mgap's {type(backbone).__name__}",
        "size": f"{parameters:,} parameters, {len(backbone.layers)} decoder blocks",
        "device": str(backbone.device),
        "images by": type(backbone.processor.image_processor).__name__,
    }


def _head(head: Head) -> dict[str, str]:
    after = [] if head.scale == 1 else [f"multiplied by {head.scale:g}"]
    after += [] if head.cap is None else [f"soft-capped at {head.cap:g}"]
    if head.linear:
        verdict = "exact, in one head product (logits identity)"
    else:
        verdict = "exact, with a second head product a token: this head is not linear"
    return {
        "head": f"{head.hidden_size} -> {head.vocab_size}, {str(head.dtype).removeprefix('torch.')}, {head.weights} weights",
        "tied": "to the input embedding" if head.tied else "no",
        "bias": "no" if head.bias is None else "yes",
        "logits": ", ".join(after) or "as the head gives them",
        "MGAP": verdict,
    }


def _speed(backbone: Backbone, head: Head) -> dict[str, str]:
    """Which of the fast ways of docs/performance.md this model can take, and why not the others."""
    from mgap.backbones.prefix import unshareable
    from mgap.backbones.prepared import FAMILIES
    from mgap.decoding.captured import uncapturable
    from mgap.methods.fused import why_not
    from mgap.methods.mgap import PRESETS, Settings

    slow, own, alone = why_not(head, 5, Settings(**PRESETS["paper"])), uncapturable(backbone), unshareable(backbone)
    kind = backbone.config.model_type
    return {
        "MGAP's step": f"plain: {slow}" if slow else "fused into two kernels",
        "static, compiled": f"by transformers' own loop: {own}" if own else "by mgap's loop, a captured step on a GPU",
        "shared prefill": f"no: {alone}" if alone else "yes",
        "workers": "prepare pictures" if kind in FAMILIES else f"open pictures; {kind} prepares them beside their prompts",
    }
