"""`mgap diagnose`: how far methods move a model's states, where to, and what the prior's subspace is made of."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.carry_out import answer, by_method, is_whole, report_scores
from mgap.cli.options import (
    BatchSize,
    Data,
    Device,
    Dtype,
    Images,
    Limit,
    ModelName,
    Revision,
    SavedPrior,
    TrustRemoteCode,
    load_model,
)

METHODS = ("vanilla", "blind", "vcd", "icd", "mgap")  # by default: none of them reads a picture twice


def diagnose(
    model: ModelName,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            autocompletion=completion.method,
            help="Methods of `mgap ls methods`; default: blind, vcd, icd and mgap.",
        ),
    ] = None,
    alpha: Annotated[
        list[float] | None, typer.Option("--alpha", help="Strengths to measure at; default: 0 .25 .5 .75 1.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A method's setting, as METHOD.KEY=VALUE, such as vcd.noise_step=999.")
    ] = None,
    prior: SavedPrior = None,
    images: Images = None,
    data: Data = None,
    dataset: Annotated[str | None, typer.Option(help="pocket, coco, aokvqa or gqa.")] = None,
    questions: Annotated[
        str | None, typer.Option(help="Own questions instead of POPE's: a JSONL or CSV file with image, question and label.")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split", autocompletion=completion.split, help="Of POPE: random, popular, adversarial; default: adversarial."
        ),
    ] = None,
    scenes: Annotated[int, typer.Option(help="Of the pocket world, to judge; as many others make the bank.")] = 100,
    limit: Limit = None,
    bank: Annotated[
        float | None, typer.Option(help="Scenes for the bank (pocket), or the share of the pictures that goes into it.")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", help="Nearest states whose distance counts; default: 10.")] = None,
    delta: Annotated[float | None, typer.Option(help="Share of plain states beyond the threshold; default: 0.05.")] = None,
    metric: Annotated[str | None, typer.Option(help="euclidean or cosine.")] = None,
    search: Annotated[str | None, typer.Option(help="For the nearest: exact, approximate (FAISS), or auto.")] = None,
    against: Annotated[str | None, typer.Option(help="Another model, to compare its prior with this one's by words.")] = None,
    batch_size: BatchSize = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Folder to write; default: runs/DATE_....")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Measure manifold departure, see it, and look into the prior; stopped at any moment, it goes on with the same --out.

    Example: mgap diagnose --model pocket/llava --method vcd --method mgap --alpha 0 .25 .5 .75 1
    """
    from mgap.run.config import Config

    measured = {"k": k, "delta": delta, "metric": metric, "search": search, "bank": bank, "strengths": alpha or None}
    given: dict[str, Any] = {
        "model": model, "images": images, "data": data, "dataset": dataset, "questions": questions, "limit": limit,
        "splits": split or ["adversarial"], "scenes": scenes, "batch_size": batch_size, "device": device, "dtype": dtype,
        "revision": revision, "trust_remote_code": trust_remote_code or None,
        "departure": {key: value for key, value in measured.items() if value is not None} or None,
        "methods": list(dict.fromkeys(["vanilla", *(method or METHODS)])),
    }  # fmt: skip
    keys = {
        "benchmark": "departure",
        "title": f"Diagnosis of {model}",
        **{key: value for key, value in given.items() if value is not None},
    }
    config = Config.of(keys, "the command line", by_method(set_ or []), prior)
    job, loaded, run, summary = answer(config, out, None, False)
    if not is_whole(run, summary):
        return

    from mgap.io.progress import bars
    from mgap.run.diagnose import Diagnosis

    other = None if against is None else lambda: load_model(against, device, dtype, None, trust_remote_code)
    with bars() as told:
        Diagnosis(job, loaded, told, other).carry_out(noted=lambda text: print(f"note: {text}", file=sys.stderr))
    report_scores(run, figures=True)
