"""`mgap doctor`: describe this machine and a model, whether MGAP is exact there, and which fast paths apply."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import Device, Dtype, Revision, Template, TrustRemoteCode, check_model_name, load_model
from mgap.errors import UnsupportedHead

if TYPE_CHECKING:
    from mgap.backbones.base import Backbone
    from mgap.backbones.head import Head


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completion.model,
            callback=check_model_name,
            help="Model to examine: hub id or folder; default: the environment only.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report.")] = False,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    template: Template = None,
) -> None:
    """Show versions, machine and folders; for a model, its head, whether MGAP is exact, and which fast paths it has.

    Example: mgap doctor pocket/llava
    """
    from mgap.cli.environment import examine

    environment = examine()
    if not as_json:
        _print(_environment(environment))
    if model is None:
        if as_json:
            print(json.dumps(environment, indent=1))
        return
    backbone = load_model(model, device, dtype, revision, trust_remote_code, template).backbone
    facts = _model(backbone)
    refused: UnsupportedHead | None = None
    try:
        head = backbone.probe_head()
        facts |= {**_head(head), **_speed(backbone, head)}
    except UnsupportedHead as refusal:
        refused = refusal
        facts["MGAP"] = f"refused: {refusal}"
    if as_json:
        print(json.dumps({**environment, "model": facts}, indent=1))
    else:
        _print(facts)
    if refused is not None:
        raise refused


def _print(lines: dict[str, str]) -> None:
    for name, value in lines.items():
        print(f"{name:<16} {value}")


def _environment(facts: dict[str, Any]) -> dict[str, str]:
    """One line per fact; where something should be done, the line says what."""
    lines = {"mgap": facts["mgap"], "python": facts["python"]}
    for name, package in facts["required"].items():
        build = f" ({facts['torch_build']})" if name == "torch" else ""
        lines[name] = _package(package) + build
    if not facts["required"]:
        lines["packages"] = "unknown: mgap runs from its source here; pip install -e . says what it needs"
    for name, package in facts["optional"].items():
        brought = f'pip install "mgap[{package["extra"]}]"' if "extra" in package else f"for {package['for']}"
        lines[name] = f"{_package(package)} ({brought})" if package["version"] is None else _package(package)
    cpu = facts["cpu"]
    memory = "unknown memory" if cpu["memory_gib"] is None else f"{cpu['memory_gib']} GiB of memory"
    lines |= {"system": facts["system"], "cpu": f"{cpu['usable']} of {cpu['cores']} cores, {memory}"}
    lines["gpu"] = ", ".join(f"{gpu['name']} ({gpu['memory_gib']} GiB)" for gpu in facts["gpus"]) or "none that torch sees"
    if facts["driver"]:
        lines["driver"] = facts["driver"]
    for name, folder in facts["folders"].items():
        there = "" if folder["exists"] else ", created when needed"
        state = "" if folder["writable"] else ", NOT WRITABLE"
        lines[name] = f"{folder['path']} ({folder['free_gib']} GiB free{there}{state})"
    lines |= {f"plugin: {name}": state for name, state in facts["plugins"].items()}
    return {**lines, **facts["variables"]}


def _package(package: dict[str, Any]) -> str:
    version = package["version"] or "not installed"
    return f"{version}: {package['note']}" if "note" in package else version


def _model(backbone: Backbone) -> dict[str, str]:
    parameters = sum(p.numel() for p in backbone.model.parameters())
    before = "" if backbone.placeholder else "the picture, then "
    return {
        "model": backbone.name,
        "class": f"{type(backbone.model).__name__}, through mgap's {type(backbone).__name__}",
        "size": f"{parameters:,} parameters, {len(backbone.layers)} decoder blocks",
        "device": str(backbone.device),
        "images by": type(backbone.processor.image_processor).__name__,
        "prompts": f"{before}{backbone.render('...')!r:.200}, with the question at ...",
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
        "logits": ", ".join(after) or "unchanged",
        "rounding": _rounding(head),
        "MGAP": verdict,
    }


def _rounding(head: Head) -> str:
    """In which precision methods get the logits that they correct."""
    from mgap.backbones.exact_product import why_rounded

    if head.dtype == head.wide:
        return "none"
    reason = why_rounded(head.module)
    return f"methods correct logits in {head.dtype}, because {reason}" if reason else "none while a method acts: float32 logits"


def _speed(backbone: Backbone, head: Head) -> dict[str, str]:
    """Which fast paths of docs/performance.md this model has, and why not the others."""
    from mgap.backbones.shared_prefill import unshareable
    from mgap.decoding.fast.captured_step import uncapturable
    from mgap.methods.mgap import PRESETS, Settings
    from mgap.methods.mgap_fused import why_not

    slow, own, alone = why_not(head, 5, Settings(**PRESETS["paper"])), uncapturable(backbone), unshareable(backbone)
    kind = backbone.config.model_type
    return {
        "MGAP's step": f"plain: {slow}" if slow else "fused kernels",
        "static, compiled": f"by transformers' own loop: {own}" if own else "by mgap's loop, a captured step on a GPU",
        "shared prefill": f"no: {alone}" if alone else "yes",
        "workers": "prepare pictures"
        if backbone.prepares_pictures
        else f"open pictures; {kind} prepares them beside their prompts",
    }
