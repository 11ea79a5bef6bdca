"""The cost of each method per token at the sizes of the papers' models, compared with plain decoding and with the floor.

    python bench/decoding.py --out decoding.json                      # LLaVA-1.5-7B and Qwen3-VL-8B on a GPU, tiny ones without
    python bench/decoding.py --models llava-1.5-7b --ways eager --methods vanilla mgap --profile kernels.md

Weights are random: step times do not depend on them. A prior is fitted on 50 prompts. Then, for each model, batch size and way
(`eager`: plain generate; `static`: static_cache=True; `compiled`: compile=True), the methods take turns in one process. A step
runs from one call of the head to the next (bench/marks.py); an answer's figure is the median of its steps, and the prompt has
its own figure. Plain steps and MGAP's alternate inside one answer, two each. Other methods have separate answers, each compared
with a plain one right after it. MGAP takes part in all rounds, others in a few. Not counted: preparing pictures, attaching,
compiling, and the description that a method makes of a new picture (CODE, HalTrapper). MGAP is timed only if, in that way of
decoding, its steps at a large alpha choose other tokens than the plain model would after the same tokens. The floor is the
bytes of one step's weights and cache over the measured bandwidth; it is plain decoding's for all methods. The paper's ratios
are of whole answers.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import measure
import shapes
import torch
import yaml
from cases import AGAIN, SEQUENTIAL, VANILLA, Case, Timing, build_method, encode_rows, make_endless, require_effect
from floor import Floor, floor
from measure import Bandwidth, say, spread
from profiling import kernels
from torch import Tensor

import mgap
from mgap.errors import MgapError, SettingError
from mgap.methods.base import Method, Seam
from mgap.priors.prompts import default_prompts
from mgap.registry import EXPERIMENTS, METHODS

USUAL = (VANILLA, "mgap", "vcd", "icd", "code", "m3id", "blind")
WAYS: dict[str, dict[str, bool]] = {"eager": {}, "static": {"static_cache": True}, "compiled": {"compile": True}}
PROMPTS = 50  # for fitting the prior


def paper_ratios() -> dict[str, float]:
    """The paper's times relative to its vanilla, by method: whole answers on one RTX A6000."""
    plan = yaml.safe_load(EXPERIMENTS["efficiency"].read_text(encoding="utf-8"))
    rows = plan["published"]["backbones"][0]["rows"]
    figures = {label: row["figures"] if isinstance(row, dict) else row for label, row in rows.items()}
    place = plan["published"]["columns"].index("seconds")
    base = figures["Vanilla"][place]
    return {arm["method"]: figures[arm["label"]][place] / base for arm in plan["methods"]}


def compare(case: Case, names: Sequence[str], prior: mgap.Subspace, args: argparse.Namespace, label: str) -> dict[str, Any]:
    """Time all methods in turns: the rounds, the number of rows whose first tokens differ from vanilla's, and refusals."""
    methods: dict[str, Method | None] = {}
    changed: dict[str, int] = {}
    refused: dict[str, str] = {}
    say(f"{label}: warming up")
    plain = case.first_tokens(None)
    for name in names:
        try:
            method = build_method(name, case.model, prior)
            if method is not None and method.seam is Seam.SEARCH:
                refused[name] = f"{name} takes several forwards to a token, and some back: it has no step to time"
                continue
            if name == "mgap":
                require_effect(case, prior)
            tokens = plain if method is None else case.first_tokens(method)
        except (MgapError, torch.OutOfMemoryError) as error:
            refused[name] = str(error)
            continue
        methods[name], changed[name] = method, int((tokens != plain).any(1).sum())
    turns = {name: partial(case.time_method, name, method) for name, method in methods.items()}
    if isinstance(method := methods.get("mgap"), mgap.MGAP):
        turns[VANILLA] = partial(case.time_alternating, method)  # times both
        del turns["mgap"]
    rounds = measure.in_turns(
        turns,
        args.rounds,
        clock=lambda turn: turn(),
        seldom={name: args.other_rounds for name in turns if name not in (VANILLA, AGAIN)},
        limit_s=args.seconds,
        label=label,
    )
    merged = [{name: turn for timings in each.values() for name, turn in timings.items()} for each in rounds]
    order = [name for name in methods if any(name in each for each in merged)]
    return {"rounds": merged, "order": order, "changed": changed, "refused": refused}


def read(comparison: dict[str, Any], least: Floor) -> dict[str, dict[str, Any]]:
    """The figures of each method; times in milliseconds."""
    rounds: list[dict[str, Timing]] = comparison["rounds"]
    steps = [{name: turn.step_ms for name, turn in each.items()} for each in rounds]
    prompts = [{name: turn.prompt_ms for name, turn in each.items()} for each in rounds]
    figures: dict[str, dict[str, Any]] = {}
    for name in comparison["order"]:
        step = spread(measure.column(steps, name))
        turns = [each[name] for each in rounds if name in each]
        figures[name] = {
            "step_ms": step,  # low, middle, high
            "of_vanilla": spread([turn.step_ms / turn.plain_ms for turn in turns]),
            "of_floor": step.middle / least.ms,
            "prompt_ms": spread(measure.column(prompts, name)),
            "prompt_of_vanilla": spread(measure.ratios(prompts, name, VANILLA)),
            "peak_gib": max(turn.peak_gib for turn in turns),
            "changed": comparison["changed"][name],
            "turns": [turn._asdict() for turn in turns],
        }
    return figures


def show(figures: dict[str, dict[str, Any]], refused: dict[str, str], rows: int, on_gpu: bool) -> str:
    paper = paper_ratios()
    heads = ["method", "ms a token (quartiles)", "times vanilla (quartiles)", "the paper's", "times the floor", "prompt, ms",
             "rounds", "answers begin otherwise"]  # fmt: skip
    lines = [
        [
            name,
            each["step_ms"].text(2),
            each["of_vanilla"].text(3),
            f"{paper[name]:.2f}" if name in paper else "-",
            f"{each['of_floor']:.2f}",
            f"{each['prompt_ms'].middle:.1f}",
            len(each["turns"]),
            f"{each['changed']} of {rows}",
        ]
        for name, each in figures.items()
    ]
    if on_gpu:
        peaks = "at most allocated, GiB: " + ", ".join(f"{name} {each['peak_gib']:.2f}" for name, each in figures.items())
    else:
        peaks = f"at most in this process so far: {max(each['peak_gib'] for each in figures.values()):.2f} GiB"
    return "\n".join([measure.table(heads, lines), "", peaks, *(f"{name}: {why}" for name, why in refused.items())])


def measure_case(
    case: Case, way: str, prior: mgap.Subspace, speed: Bandwidth, args: argparse.Namespace, name: str
) -> dict[str, Any]:
    """Print one table and return it as JSON values."""
    least = floor(case.model.backbone, case.inputs, args.new_tokens, speed)
    comparison = compare(case, args.methods, prior, args, f"{name}, batch {case.rows}, {way}")
    figures = read(comparison, least)
    length = case.inputs["input_ids"].shape[1]
    print(f"\n{name}, batch {case.rows}, {way}: {length} tokens of prompt, {args.new_tokens} new; ", end="")
    print(f"floor {least.ms:.3g} ms a step ({least.weights / 1e9:.3g} GB of weights, {least.cache / 1e9:.3g} GB of cache)\n")
    print(show(figures, comparison["refused"], case.rows, case.model.backbone.device.type == "cuda"), flush=True)
    return {
        "model": name, "batch": case.rows, "way": way, "prompt_tokens": length, "new_tokens": args.new_tokens,
        "floor": {**asdict(least), "ms": least.ms}, "methods": figures, "refused": comparison["refused"],
    }  # fmt: skip


def measure_model(name: str, speed: Bandwidth, args: argparse.Namespace, keep: Callable[[dict[str, Any]], bool]) -> bool:
    """Make all tables of one model, passing each to `keep` at once; whether all succeeded."""
    started = time.perf_counter()
    say(f"{name}: building")
    model = shapes.build(name, args.device)
    measure.synchronize(args.device)
    built = time.perf_counter()
    say(f"{name}: fitting a prior")
    prior = mgap.Subspace.fit(model, default_prompts()[:PROMPTS], rank=5)
    say("")
    print(f"\n{name}: built in {built - started:.1f} s, prior of rank {prior.rank} from {prior.count} prompts in ", end="")
    print(f"{time.perf_counter() - built:.1f} s", flush=True)
    make_endless(model)
    complete = True
    for batch in args.batches:
        inputs = encode_rows(model, batch)
        for way in args.ways:
            case, title = Case(model, inputs, args.new_tokens, WAYS[way]), f"{name}, batch {batch}, {way}"
            complete &= attempt(title, lambda case=case, way=way: keep(measure_case(case, way, prior, speed, args, name)))
        if args.profile and batch == args.batches[0]:
            title = f"{name}, batch {batch}, eager"
            complete &= attempt(title, lambda inputs=inputs, title=title: profile(model, inputs, prior, title, args.profile))
    return complete


def attempt(title: str, call: Callable[[], bool]) -> bool:
    """The result of the call, or False after printing its error, so that the remaining tables are still made."""
    try:
        return call()
    except Exception as error:
        say("")
        print(f"\n{title}: failed. {type(error).__name__}: {error}", flush=True)
        traceback.print_exc(limit=-6)
        return False


def profile(model: mgap.Model, inputs: dict[str, Tensor], prior: mgap.Subspace, title: str, path: Path) -> bool:
    parts = [kernels(model.backbone, inputs, f"{title}, vanilla")]
    with model.using(mgap.MGAP(prior)):
        parts.append(kernels(model.backbone, inputs, f"{title}, mgap"))
    with path.open("a") as file:
        file.write("\n\n".join(parts) + "\n\n")
    print(f"profile in {path}: " + "; ".join(part.splitlines()[0] for part in parts), flush=True)
    return True


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--models", nargs="+", choices=shapes.SHAPES, help="default: the papers' two on a GPU, else the two tiny ones"
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["eager", "compiled"])
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(USUAL),
        help=f'names, or "all"; {AGAIN} shows the effect of chance, vcd{SEQUENTIAL} a branch in separate forwards',
    )
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other-rounds", type=int, default=3, help="of methods that do not act at the head")
    parser.add_argument("--seconds", type=float, default=45.0, help="for each table; no round starts that would exceed them")
    parser.add_argument("--profile", type=Path, help="write the kernels of vanilla and MGAP there, of the first batch size")
    parser.add_argument("--out", type=Path, help="write everything as JSON, turn by turn")
    args = parser.parse_args(arguments)
    is_gpu = args.device.startswith("cuda")
    args.models = args.models or [name for name in shapes.SHAPES if name.startswith("tiny") != is_gpu]
    names = [*USUAL, *METHODS.names()] if args.methods == ["all"] else args.methods
    args.methods = list(dict.fromkeys([VANILLA, *names]))  # each once
    try:
        for name in {name.removesuffix(SEQUENTIAL) for name in args.methods} - {VANILLA, AGAIN}:
            METHODS.get(name)
    except SettingError as error:
        parser.error(str(error))
    if args.new_tokens < 8 or args.rounds < 1 or args.other_rounds < 1 or min(args.batches) < 1:
        parser.error("--new-tokens must be at least 8, and --rounds, --other-rounds and --batches at least 1")
    if args.profile:
        args.profile.write_text("")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = read_arguments(arguments)
    speed = measure.bandwidth(args.device)
    print(measure.about(args.device))
    print(f"memory: {speed.copied / 1e9:.0f} GB/s copied (read and written), {speed.read / 1e9:.0f} GB/s read", flush=True)
    tables: list[dict[str, Any]] = []
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "device": measure.device_name(args.device),
        "versions": measure.versions(),
        "bandwidth": speed._asdict(),
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()},
        "paper": paper_ratios(),
        "tables": tables,
    }

    def keep(table: dict[str, Any]) -> bool:
        tables.append(table)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1))
        return "mgap" not in table["refused"]  # it must work in every way of decoding

    complete = True
    for name in args.models:
        complete &= measure_model(name, speed, args, keep)
        gc.collect()  # one model at a time on the card
        if args.device.startswith("cuda"):
            torch.cuda.empty_cache()
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
