"""What a user takes along: the trace as JSON, the figures as SVG, and the Python lines that give this very answer again."""

from __future__ import annotations

import base64
import json
from typing import Any

import torch
import transformers

import mgap
from mgap.backbones.prepared_pictures import picture_digest
from mgap.diagnosis.landscape import Place
from mgap.inspector.columns import AskedColumns, Column, MeasuredToken
from mgap.inspector.scene_json import plain, python_lines
from mgap.inspector.theme import render
from mgap.methods.mgap import MGAP
from mgap.pages.plots import Plot
from mgap.pocket.scenes import Scene
from mgap.run.method_plans import VANILLA

NAME = "mgap-inspect"


def to_json(asked: AskedColumns) -> dict[str, Any]:
    """Everything that is shown, for machines."""
    land = asked.loaded.landscape
    return {
        "model": asked.loaded.name,
        "identity": asked.loaded.model.backbone.identity.to_json(),
        "dtype": asked.loaded.model.backbone.dtype_name,
        "picture": {
            "sha256": picture_digest(asked.picture),
            "size": list(asked.picture.size),
            **({"scene": plain(asked.source)} if isinstance(asked.source, Scene) else {"file": asked.source}),
        },
        "question": asked.question,
        "max_new_tokens": asked.max_new_tokens,
        "prior": {"rank": asked.prior.rank, "count": asked.prior.count, "origin": asked.prior.origin},
        "bank": None if land is None else {**land.manifold.to_json(), "shares": list(land.shares)},
        "answers": [_column(column) for column in asked.columns],
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


def to_python(asked: AskedColumns, column: Column) -> str:
    """A script that prints this answer again."""
    lines = ["import mgap"]
    if isinstance(asked.source, Scene):
        lines += [python_lines(asked.source).rstrip()]
    else:
        lines += ["", f"image = {asked.source!r}  # the picture's file"]
    device = str(asked.loaded.model.backbone.device)
    lines += [
        "",
        f"model = mgap.load({asked.loaded.name!r}, device={device!r}, dtype={asked.loaded.model.backbone.dtype_name!r})",
    ]
    said = f"model.answer(image, {asked.question!r}, max_new_tokens={asked.max_new_tokens})"
    if column.name == VANILLA:
        return "\n".join([*lines, f"print({said})", ""])
    settings = "".join(f", {key}={value!r}" for key, value in column.settings.items())
    method = type(column.method).__name__
    if isinstance(column.method, MGAP):
        lines += [] if asked.prior_folder else ["from mgap.priors.prior_plan import Prior", ""]
        lines.append(_prior_line(asked))
        made = f"mgap.{method}(prior{settings})"
    else:
        made = f"mgap.{method}({settings.removeprefix(', ')})"
    return "\n".join([*lines, f"with model.using({made}):", f"    print({said})", ""])


def _prior_line(asked: AskedColumns) -> str:
    if asked.prior_folder:
        return f"prior = mgap.Subspace.load({asked.prior_folder!r})"
    origin = asked.prior.origin
    of = f"prompts={origin['prompts']!r}, null_image={origin['null_image']!r}"
    return f"prior = Prior(rank={asked.prior.rank}, count={asked.prior.count}, {of}).fit(model)"


def links(asked: AskedColumns | None, plots: dict[str, Plot | None]) -> str:
    """Links that carry their files inside; nothing is written on the server."""
    if asked is None or not any(column.tokens for column in asked.columns):
        return ""
    whole = json.dumps(to_json(asked), ensure_ascii=False, indent=1)
    found = [(f"{NAME}.json", "Trace (JSON)", _address("application/json", whole))]
    found += [
        (f"{NAME}-{name}.svg", f"{plot.title} (SVG)", _address("image/svg+xml", plot.file))
        for name, plot in plots.items()
        if plot is not None
    ]
    return render("export.html.j2", files=found)


def _address(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
