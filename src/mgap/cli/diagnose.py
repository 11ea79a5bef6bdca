"""`mgap diagnose`: how far and where methods move a model's states, and what the prior's subspace contains."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.carry_out import answer, by_method, is_complete, report_scores
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
    Tasks,
    Template,
    TrustRemoteCode,
    load_model,
)

METHODS = ("vanilla", "blind", "vcd", "icd", "mgap")  # the default; each reads a picture once


def diagnose(
    model: ModelName,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            autocompletion=completion.method,
            help="Methods (`mgap ls methods`); default: blind, vcd, icd and mgap.",
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
    dataset: Annotated[
        str | None, typer.Option(help="Source of the pictures: pocket, coco, aokvqa, gqa, mme or hallusionbench.")
    ] = None,
    questions: Annotated[
        str | None,
        typer.Option(help="Your own questions instead of POPE's: a JSONL or CSV file with image, question and label."),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split",
            autocompletion=completion.split,
            help="Splits of POPE: random, popular, adversarial; default: adversarial.",
        ),
    ] = None,
    tasks: Tasks = None,
    scenes: Annotated[int, typer.Option(help="Pocket world: number of scenes to judge; as many others form the bank.")] = 100,
    limit: Limit = None,
    bank: Annotated[
        float | None, typer.Option(help="Bank: number of scenes (pocket), or share of the pictures (others).")
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", help="Number of nearest states that a distance averages over; default: 10.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Share of plain states that may lie beyond the threshold; default: 0.05.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Distance: euclidean or cosine.")] = None,
    search: Annotated[str | None, typer.Option(help="Search for nearest states: exact, approximate (FAISS) or auto.")] = None,
    against: Annotated[str | None, typer.Option(help="Another model: compare its prior with this one's, by words.")] = None,
    batch_size: BatchSize = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Folder to write; default: runs/DATE_....")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    template: Template = None,
) -> None:
    """Measure and plot how far methods move a model's states, and analyse its prior; resume with the same --out.

    Example: mgap diagnose --model pocket/llava --method vcd --method mgap --alpha 0 .25 .5 .75 1
    """
    from mgap.run.config import Config, measured_on

    if split is None and measured_on("first", dataset, questions) == "pope":
        split = ["adversarial"]
    measured = {"k": k, "delta": delta, "metric": metric, "search": search, "bank": bank, "strengths": alpha or None}
    given: dict[str, Any] = {
        "model": model, "images": images, "data": data, "dataset": dataset, "questions": questions, "limit": limit,
        "splits": split, "tasks": tasks, "scenes": scenes, "batch_size": batch_size, "device": device, "dtype": dtype,
        "revision": revision, "trust_remote_code": trust_remote_code or None, "template": template,
        "departure": {key: value for key, value in measured.items() if value is not None} or None,
        "methods": list(dict.fromkeys(["vanilla", *(method or METHODS)])),
    }  # fmt: skip
    keys = {
        "benchmark": "departure",
        "title": f"Diagnosis of {model}",
        **{key: value for key, value in given.items() if value is not None},
    }
    config = Config.of(keys, "the command line", by_method(set_ or []), prior)
    job, run, worker, summary = answer(config, out, None, False)
    if not is_complete(run, summary):
        return

    from mgap.io.progress import bars
    from mgap.run.departure_worker import DepartureWorker
    from mgap.run.diagnose import Diagnosis

    assert isinstance(worker, DepartureWorker)
    other = None if against is None else lambda: load_model(against, device, dtype, None, trust_remote_code)
    with bars() as progress:
        Diagnosis(job, worker.model, progress, other).carry_out(note=lambda text: print(f"note: {text}", file=sys.stderr))
    report_scores(run, figures=True)
