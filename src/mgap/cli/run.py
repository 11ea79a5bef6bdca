"""`mgap run`: answer a benchmark under several methods, and score it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.carry_out import answer, answer_served, by_method, is_whole, report_scores
from mgap.cli.options import (
    BatchSize,
    Data,
    Device,
    Images,
    Limit,
    Revision,
    SavedPrior,
    TrustRemoteCode,
    parse_settings,
)

if TYPE_CHECKING:
    from mgap.run.config import Config


def run(
    what: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.experiment, help="pope, chair, amber, own, departure, or a YAML file with the keys below."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            autocompletion=completion.model,
            help="Hub id or folder of a multimodal model, or pocket/llava, pocket/qwen3-vl.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", autocompletion=completion.method, help="A method of `mgap ls methods`, or vanilla; repeatable."
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
        str | None, typer.Option(autocompletion=completion.dataset, help="pocket, coco, aokvqa, gqa or amber.")
    ] = None,
    questions: Annotated[str | None, typer.Option(help="own: a JSONL or CSV file with image, question and label.")] = None,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", autocompletion=completion.split, help="Of POPE: random, popular, adversarial; repeatable."),
    ] = None,
    kinds: Annotated[str | None, typer.Option(help="Of AMBER: a (all), g, d, de, da or dr.")] = None,
    image_set: Annotated[str | None, typer.Option(help="Of CHAIR: a published list, or a file with an id a line.")] = None,
    prompt: Annotated[str | None, typer.Option(help="A published way to ask; see docs/benchmarks.")] = None,
    scenes: Annotated[int | None, typer.Option(help="Of the pocket world.")] = None,
    limit: Limit = None,
    missing: Annotated[str | None, typer.Option(help="Pictures that are not there: refuse or skip.")] = None,
    decoding: Annotated[
        list[str] | None, typer.Option("--decoding", help="As KEY=VALUE, such as max_new_tokens=64; repeatable.")
    ] = None,
    scoring: Annotated[
        list[str] | None, typer.Option("--scoring", help="As KEY=VALUE, such as parser=vcd; repeatable.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.engine,
            help="transformers, or vllm: continuous batching, tensor parallel (docs/running.md).",
        ),
    ] = None,
    engine_option: Annotated[
        list[str] | None,
        typer.Option("--engine-option", help="Of vllm.LLM, as KEY=VALUE, such as tensor_parallel_size=4; repeatable."),
    ] = None,
    batch_size: BatchSize = None,
    prefill: Annotated[str | None, typer.Option(help="auto, shared (one prefill a picture) or own.")] = None,
    workers: Annotated[str | None, typer.Option(help="Processes that open and prepare pictures: auto, or a number.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Tell where the time goes, stage by stage.")] = False,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Folder of the run; default: runs/DATE_....")] = None,
    shard: Annotated[str | None, typer.Option(help="This process's share, such as 0/4; a launcher's ranks are found.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask again what failed before.")] = False,
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16.")] = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Answer a benchmark under several methods; stop it at any moment and start it again with the same --out.

    Example: mgap run pope --model llava-hf/llava-1.5-7b-hf --method vanilla --method mgap --images coco/val2014
    """
    given = {
        "model": model, "methods": method, "images": images, "data": data, "dataset": dataset, "questions": questions,
        "splits": split, "kinds": kinds, "image_set": image_set, "prompt": prompt, "scenes": scenes, "limit": limit,
        "missing": missing, "batch_size": batch_size, "prefill": prefill,
        "workers": int(workers) if workers and workers.isdecimal() else workers, "profile": profile or None,
        "device": device, "dtype": dtype, "revision": revision, "trust_remote_code": trust_remote_code or None,
        "decoding": parse_settings(decoding or []) or None, "scoring": parse_settings(scoring or []) or None,
        "engine": engine, "engine_options": parse_settings(engine_option or []) or None,
    }  # fmt: skip
    config = _config(what, {key: value for key, value in given.items() if value is not None}, by_method(set_ or []), prior)
    if config.engine == "vllm":
        found, summary = answer_served(config, out, shard, retry_failed)
    else:
        _, _, found, summary = answer(config, out, shard, retry_failed)
    if is_whole(found, summary):
        report_scores(found)


def _config(what: str, given: dict[str, Any], settings: dict[str, dict[str, Any]], prior: str | None) -> Config:
    from mgap.run.config import Config, benchmarks, read_yaml

    if what in benchmarks():
        keys: dict[str, Any] = {"benchmark": what, "methods": ["vanilla", "mgap"], **given}
        return Config.of(keys, "the command line", settings, prior)
    keys = read_yaml(what)
    for nested in ("decoding", "scoring", "engine_options"):
        if nested in given and isinstance(keys.get(nested), dict):
            given[nested] = {**keys[nested], **given[nested]}
    return Config.of({**keys, **given}, what, settings, prior)
