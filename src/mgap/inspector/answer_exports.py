"""Exports: the trace as JSON, the figures as SVG, and Python code that reproduces an answer."""

from __future__ import annotations

import base64
from typing import Any

import torch
import transformers

import mgap
from mgap.backbones.prepared_pictures import picture_digest
from mgap.diagnosis.landscape import Place
from mgap.inspector.columns import Column, Comparison, MeasuredToken
from mgap.inspector.scene_json import plain, python_lines
from mgap.inspector.theme import render
from mgap.io.strict_json import strict_json
from mgap.methods.mgap import MGAP
from mgap.pages.plots import Plot
from mgap.pocket.scenes import Scene
from mgap.run.method_plans import VANILLA

NAME = "mgap-inspect"


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Everything shown, as JSON."""
    land = comparison.loaded.landscape
    return {
        "model": comparison.loaded.name,
        "identity": comparison.loaded.model.backbone.identity.to_json(),
        "dtype": comparison.loaded.model.backbone.dtype_name,
        "picture": {
            "sha256": picture_digest(comparison.picture),
            "size": list(comparison.picture.size),
            **({"scene": plain(comparison.source)} if isinstance(comparison.source, Scene) else {"file": comparison.source}),
        },
        "question": comparison.question,
        "max_new_tokens": comparison.max_new_tokens,
        "prior": {"rank": comparison.prior.rank, "count": comparison.prior.count, "origin": comparison.prior.origin},
        "bank": None if land is None else {**land.manifold.to_json(), "shares": list(land.shares)},
        "answers": [_column(column) for column in comparison.columns],
        "versions": {"mgap": mgap.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "method": column.name,
        "settings": dict(column.settings),
        "text": column.text,
        "state": column.state,
        "note": column.note,
        "tokens": [_token(m) for m in column.tokens],
    }


def _token(m: MeasuredToken) -> dict[str, Any]:
    step = m.token.step
    return {
        "id": step.token_id,
        "token": step.token,
        "adds": m.token.text,
        "entropy": m.entropy,
        "cosine": m.cosine,
        "beta": m.beta,
        "values": step.values,
        "before": [[c.token_id, c.token, c.probability] for c in step.before],
        "after": [[c.token_id, c.token, c.probability] for c in step.after],
        "state": _place(m.before),
        "decoded_from": _place(m.after),
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else place._asdict()


def to_python(comparison: Comparison, column: Column) -> str:
    """A script that reproduces this answer."""
    lines = ["import mgap"]
    if isinstance(comparison.source, Scene):
        lines += [python_lines(comparison.source).rstrip()]
    else:
        lines += ["", f"image = {comparison.source!r}  # the picture's file"]
    backbone = comparison.loaded.model.backbone
    options = f"device={str(backbone.device)!r}, dtype={backbone.dtype_name!r}"
    lines += ["", f"model = mgap.load({comparison.loaded.name!r}, {options})"]
    call = f"model.answer(image, {comparison.question!r}, max_new_tokens={comparison.max_new_tokens})"
    if column.name == VANILLA:
        return "\n".join([*lines, f"print({call})", ""])
    settings = "".join(f", {key}={value!r}" for key, value in column.settings.items())
    method = type(column.method).__name__
    if isinstance(column.method, MGAP):
        lines += [] if comparison.prior_folder else ["from mgap.priors.prior_plan import Prior", ""]
        lines.append(_prior_line(comparison))
        built = f"mgap.{method}(prior{settings})"
    else:
        built = f"mgap.{method}({settings.removeprefix(', ')})"
    return "\n".join([*lines, f"with model.using({built}):", f"    print({call})", ""])


def _prior_line(comparison: Comparison) -> str:
    if comparison.prior_folder:
        return f"prior = mgap.Subspace.load({comparison.prior_folder!r})"
    origin = comparison.prior.origin
    of = f"prompts={origin['prompts']!r}, null_image={origin['null_image']!r}"
    return f"prior = Prior(rank={comparison.prior.rank}, count={comparison.prior.count}, {of}).fit(model)"


def links(comparison: Comparison | None, plots: dict[str, Plot | None]) -> str:
    """Download links with the files inside; nothing is written on the server."""
    if comparison is None or not any(column.tokens for column in comparison.columns):
        return ""
    trace = strict_json(to_json(comparison), ensure_ascii=False, indent=1)
    files = [(f"{NAME}.json", "Trace (JSON)", _data_url("application/json", trace))]
    files += [
        (f"{NAME}-{name}.svg", f"{plot.title} (SVG)", _data_url("image/svg+xml", plot.file))
        for name, plot in plots.items()
        if plot is not None
    ]
    return render("export.html.j2", files=files)


def _data_url(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
