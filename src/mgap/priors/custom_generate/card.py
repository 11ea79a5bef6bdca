"""The model card of a prior that is shared: which model, which prompts, its spectrum, what tuning chose and measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mgap
from mgap.backbones.identity import Identity, is_local
from mgap.registry import POCKET_MODELS

if TYPE_CHECKING:
    from mgap.priors.subspace import Subspace

PAPER = "arXiv 2606.09859"
_SHOWN = 10  # singular values in the table
_SETTINGS = ("alpha", "lam", "rank", "gate", "protect")
_NOT_RATES = (*_SETTINGS, "value", "step", "turned")


def write_card(prior: Subspace, model: Identity, repo: str) -> str:
    """The README.md of the repository."""
    origin = prior.origin
    rows = {
        "model": f"{model.name}, revision {model.revision or 'unknown'}, {model.architecture}",
        "rank (K)": f"{prior.rank} of {prior.hidden_size}",
        "prompts (N)": f"{prior.count}{_of(origin.get('prompts'))}, SHA-256 {origin.get('prompts_sha256', 'unknown'):.16}",
        "null image": f"{origin.get('null_image', 'unknown')}{_of_size(origin.get('size'))}",
        "share of their variance in the subspace": f"{100 * prior.explained_variance:.1f}%",
        "solver, dtype of the model": f"{origin.get('svd', 'unknown')}, {origin.get('dtype', 'unknown')}",
        "made": f"{origin.get('made', 'unknown')} with {_versions(origin.get('versions'))}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    settings = "alpha=0.75" if prior.tuning is None else ", ".join(_tuned(prior.tuning["settings"]))
    return f"""---
library_name: transformers
pipeline_tag: image-text-to-text
{_base_model(model.name)}tags: [custom_generate, mgap]
---

# The language prior of {model.name}

With it the model invents less about a picture, without training: MGAP ({PAPER}) takes part of the language prior out of the
state that the head reads, at every token, the more the less sure the model is. One forward a token; every decoding mode.

```python
inputs = processor(images=picture, text=prompt, return_tensors="pt").to(model.device)  # model: {model.name}
out = model.generate(**inputs, custom_generate="{repo}", trust_remote_code=True, {settings}, max_new_tokens=64)
```

`trust_remote_code` runs `custom_generate/generate.py` of this repository, a short file that needs torch, transformers and
safetensors. Another model than {model.name} is refused, and so is a head that is quantised or whose logits change behind it.
`alpha` is the strength, 0 is plain decoding; `lam` (0.5) the slope of the gate over the entropy; `rank` takes fewer directions;
`gate=False` and `protect=False` are the paper's ablations. The package mgap has the same and more:
`mgap.Subspace.load("{repo}")`.

## The prior

| | |
|---|---|
{table}

Singular values of the centred states: {", ".join(f"{value:.4g}" for value in prior.singular_values[:_SHOWN].tolist())}\
{" ..." if len(prior.singular_values) > _SHOWN else ""}
{_tuning_section(prior.tuning)}"""


def _base_model(name: str) -> str:
    """The card's line for a model on the hub; folders and embedded models are not there."""
    return "" if is_local(name) or name in POCKET_MODELS else f"base_model: {name}\n"


def _of(name: Any) -> str:
    return f" of {name!r}" if name else ""


def _of_size(size: Any) -> str:
    return f", {size[0]}x{size[1]}" if size else ""


def _versions(versions: Any) -> str:
    known: Mapping[str, Any] = versions or {"mgap": mgap.__version__}
    return ", ".join(f"{name} {version}" for name, version in known.items())


def _tuned(settings: Mapping[str, Any]) -> list[str]:
    """The settings as arguments, without those that are the defaults."""
    defaults = {"gate": True, "protect": True}
    return [f"{name}={settings[name]!r}" for name in _SETTINGS if settings[name] != defaults.get(name)]


def _tuning_section(tuning: Mapping[str, Any] | None) -> str:
    """What `mgap tune` chose, by which rule, on which questions, and the figures it measured there."""
    if tuning is None:
        return "\nNo settings were tuned and nothing was measured with this prior: `alpha=0.75, lam=0.5` are the paper's.\n"
    figures: Mapping[str, Mapping[str, Any]] = tuning.get("figures", {})
    rates = [name for name in figures.get("chosen", {}) if name not in _NOT_RATES]
    header = ["", *_SETTINGS, *(f"{name}, %" for name in rates)]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for row, values in figures.items():
        cells = [row.replace("_", " "), *(f"{values[name]}" for name in _SETTINGS), *(_rate(values[name]) for name in rates)]
        lines.append(f"| {' | '.join(cells)} |")
    data, judged = tuning.get("data", {}), tuning.get("data", {}).get("judged", {})
    asked = (
        f"{judged.get('questions', '?')} questions about {judged.get('pictures', '?')} pictures ({data.get('name', 'unknown')})"
    )
    return f"""
## Settings

Chosen by `mgap tune` on {asked}, by the rule *{tuning.get("rule", {}).get("stated", "unknown")}*. The figures are of these
questions, so expect less on others; in brackets 95% intervals.

{chr(10).join(lines)}
"""


def _rate(value: Any) -> str:
    middle, low, high = (100 * number for number in value)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"
