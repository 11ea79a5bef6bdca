"""`mgap run`: answer a benchmark with several methods, and score the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.carry_out import answer, by_method, is_complete, report_scores
from mgap.cli.options import (
    BatchSize,
    Data,
    Device,
    Images,
    Limit,
    Revision,
    SavedPrior,
    Tasks,
    Template,
    TrustRemoteCode,
    Wide,
    check_model_name,
    parse_settings,
)

if TYPE_CHECKING:
    from mgap.run.config import Config


def run(
    what: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.experiment,
            help="pope, repope, chair, amber, mme, hallusionbench, own or departure; or a YAML file with the options below as "
            "keys.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            callback=check_model_name,
            autocompletion=completion.model,
            help="Multimodal model: hub id or folder, or pocket/llava, pocket/qwen3-vl, pocket/natural.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            autocompletion=completion.method,
            help="A method (`mgap ls methods`), or vanilla for plain decoding; repeatable.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A method's setting, as METHOD.KEY=VALUE, such as mgap.alpha=1; repeatable."),
    ] = None,
    prior: SavedPrior = None,
    images: Images = None,
    data: Data = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.dataset,
            help="Source of the pictures: pocket, coco, aokvqa, gqa, amber, mme or hallusionbench.",
        ),
    ] = None,
    questions: Annotated[str | None, typer.Option(help="With own: a JSONL or CSV file with image, question and label.")] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split", autocompletion=completion.split, help="POPE, RePOPE: random, popular or adversarial; repeatable."
        ),
    ] = None,
    kinds: Annotated[str | None, typer.Option(help="AMBER: a (all), g, d, de, da or dr.")] = None,
    tasks: Tasks = None,
    image_set: Annotated[
        str | None, typer.Option(help="CHAIR: a published list of pictures, or a file with one id per line.")
    ] = None,
    pictures: Annotated[
        str | None, typer.Option(help="HallusionBench: all questions, or only those that come with a picture: all or only.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="A published wording of the question; see docs/benchmarks.")] = None,
    scenes: Annotated[int | None, typer.Option(help="Pocket world: number of pictures.")] = None,
    difficulty: Annotated[
        list[str] | None,
        typer.Option("--difficulty", help="Pocket world: a knob that makes pictures harder, such as noise=0.15; repeatable."),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Yes/no questions: add rows that look at no picture, to hold methods against.")
    ] = False,
    limit: Limit = None,
    missing: Annotated[str | None, typer.Option(help="If pictures are missing: refuse or skip.")] = None,
    decoding: Annotated[
        list[str] | None, typer.Option("--decoding", help="Decoding setting, such as max_new_tokens=64; repeatable.")
    ] = None,
    scoring: Annotated[
        list[str] | None, typer.Option("--scoring", help="Setting of the scorer, such as parser=vcd; repeatable.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.engine,
            help="transformers, vllm or server (docs/running.md), or an engine of an installed package.",
        ),
    ] = None,
    engine_option: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-option", help="Option of the engine, for vllm of vllm.LLM, such as tensor_parallel_size=4; repeatable."
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", help="Engine server: its address, such as http://HOST:8000/v1; repeatable."),
    ] = None,
    batch_size: BatchSize = None,
    prefill: Annotated[
        str | None, typer.Option(help="auto, shared (one prefill per picture) or own (one per question).")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="Processes that open and prepare pictures: auto, or a number.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Measure the time of each stage.")] = False,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Folder for the run; default: runs/DATE_....")] = None,
    shard: Annotated[
        str | None, typer.Option(help="This process's shard, such as 0/4; set by itself under accelerate or torchrun.")
    ] = None,
    wide: Wide = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask failed questions again.")] = False,
    device: Device = None,
    dtype: Annotated[
        str | None, typer.Option(help="Weights: auto (as in the checkpoint), float32, bfloat16 or float16.")
    ] = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    template: Template = None,
) -> None:
    """Answer a benchmark with several methods and score them; a stopped run resumes with the same --out.

    Example: mgap run pope --model llava-hf/llava-1.5-7b-hf --method vanilla --method mgap --images coco/val2014
    """
    options = parse_settings(engine_option, "--engine-option", "tensor_parallel_size=4")
    given = {
        "model": model, "methods": method, "images": images, "data": data, "dataset": dataset, "questions": questions,
        "splits": split, "kinds": kinds, "tasks": tasks, "image_set": image_set, "pictures": pictures, "prompt": prompt,
        "scenes": scenes,
        "difficulty": parse_settings(difficulty, "--difficulty", "noise=0.15") or None,
        "missing": missing, "limit": limit, "batch_size": batch_size,
        "prefill": prefill, "workers": int(workers) if workers and workers.isdecimal() else workers, "profile": profile or None,
        "device": device, "dtype": dtype, "revision": revision, "trust_remote_code": trust_remote_code or None,
        "template": template, "controls": controls or None,
        "decoding": parse_settings(decoding, "--decoding", "max_new_tokens=64") or None,
        "scoring": parse_settings(scoring, "--scoring", "parser=vcd") or None, "engine": engine,
        "engine_options": {**options, "url": url} if url else options or None,
    }  # fmt: skip
    config = _config(what, {key: value for key, value in given.items() if value is not None}, by_method(set_ or []), prior)
    _, done, _, summary = answer(config, out, shard, retry_failed)
    if is_complete(done, summary):
        report_scores(done, wide=wide)


def _config(what: str, given: dict[str, Any], settings: dict[str, dict[str, Any]], prior: str | None) -> Config:
    from mgap.run.config import Config, benchmarks, read_yaml

    if what in benchmarks():
        keys: dict[str, Any] = {"benchmark": what, "methods": ["vanilla", "mgap"], **given}
        return Config.of(keys, "the command line", settings, prior)
    keys = read_yaml(what)
    for nested in ("difficulty", "decoding", "scoring", "engine_options"):
        if nested in given and isinstance(keys.get(nested), dict):
            given[nested] = {**keys[nested], **given[nested]}
    return Config.of({**keys, **given}, what, settings, prior)
