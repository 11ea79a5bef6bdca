"""What each method costs a token, at the sizes of the papers' models, against plain decoding and against the floor.

    python bench/decoding.py --out decoding.json                      # LLaVA-1.5-7B and Qwen3-VL-8B on a GPU, tiny ones without
    python bench/decoding.py --models llava-1.5-7b --ways eager --methods vanilla mgap --profile kernels.md

Weights are random: how long a step takes does not depend on them. A prior is fitted on 50 prompts. Then, for each model, batch
size and way (`eager`: generate as it is; `static`: static_cache=True; `compiled`: compile=True), the methods take turns in
one process. A step is from one call of the head to the next (bench/marks.py); an answer's figure is the median of its steps,
and the prompt has a figure of its own. Plain steps and MGAP's take turns inside one answer, two each; other methods have
answers of their own, and each is compared with a plain one right behind it. MGAP takes part in all rounds, others in a few.
Not counted: preparing pictures, attaching, compiling, and what a method asks the model about a picture when it first sees it
(CODE, HalTrapper). MGAP is timed only where the steps at a large alpha choose other tokens than the plain model would after
the same words, in that very way of decoding. The floor is one step's bytes, of weights and cache, over the bandwidth measured
here; it is plain decoding's for all methods. The paper's ratios are of whole answers.
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
from cases import AGAIN, SEQUENTIAL, VANILLA, Case, Turn, ask, build_method, make_endless, require_effect
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
PROMPTS = 50  # that the prior is fitted on


def paper_ratios() -> dict[str, float]:
    """Times of the paper's table as multiples of its vanilla, by method: whole answers, on one RTX A6000."""
    plan = yaml.safe_load(EXPERIMENTS["efficiency"].read_text(encoding="utf-8"))
    rows = plan["published"]["backbones"][0]["rows"]
    figures = {label: row["figures"] if isinstance(row, dict) else row for label, row in rows.items()}
    place = plan["published"]["columns"].index("seconds")
    base = figures["Vanilla"][place]
    return {arm["method"]: figures[arm["label"]][place] / base for arm in plan["methods"]}


def compare(case: Case, names: Sequence[str], prior: mgap.Subspace, given: argparse.Namespace, label: str) -> dict[str, Any]:
    """Every method that runs here in turns: rounds as they were, rows whose first words differ from vanilla's, refusals."""
    methods: dict[str, Method | None] = {}
    changed: dict[str, int] = {}
    refused: dict[str, str] = {}
    say(f"{label}: warming up")
    plain = case.beginning(None)
    for name in names:
        try:
            method = build_method(name, case.model, prior)
            if method is not None and method.seam is Seam.SEARCH:
                refused[name] = f"{name} takes several forwards to a token, and some back: it has no step to time"
                continue
            if name == "mgap":
                require_effect(case, prior)
            told = plain if method is None else case.beginning(method)
        except (MgapError, torch.OutOfMemoryError) as error:
            refused[name] = str(error)
            continue
        methods[name], changed[name] = method, int((told != plain).any(1).sum())
    turns = {name: partial(case.turn, name, method) for name, method in methods.items()}
    if isinstance(beside := methods.get("mgap"), mgap.MGAP):
        turns[VANILLA] = partial(case.beside, beside)  # both at once
        del turns["mgap"]
    rounds = measure.in_turns(
        turns,
        given.rounds,
        clock=lambda turn: turn(),
        seldom={name: given.other_rounds for name in turns if name not in (VANILLA, AGAIN)},
        limit_s=given.seconds,
        label=label,
    )
    merged = [{name: turn for made in each.values() for name, turn in made.items()} for each in rounds]
    order = [name for name in methods if any(name in each for each in merged)]
    return {"rounds": merged, "order": order, "changed": changed, "refused": refused}


def read(found: dict[str, Any], least: Floor) -> dict[str, dict[str, Any]]:
    """Figures of each method, in milliseconds."""
    rounds: list[dict[str, Turn]] = found["rounds"]
    steps = [{name: turn.step_ms for name, turn in each.items()} for each in rounds]
    prompts = [{name: turn.prompt_ms for name, turn in each.items()} for each in rounds]
    figures: dict[str, dict[str, Any]] = {}
    for name in found["order"]:
        step = spread(measure.column(steps, name))
        turns = [each[name] for each in rounds if name in each]
        figures[name] = {
            "step_ms": step,  # low, middle, high
            "of_vanilla": spread([turn.step_ms / turn.plain_ms for turn in turns]),
            "of_floor": step.middle / least.ms,
            "prompt_ms": spread(measure.column(prompts, name)),
            "prompt_of_vanilla": spread(measure.ratios(prompts, name, VANILLA)),
            "peak_gib": max(turn.peak_gib for turn in turns),
            "changed": found["changed"][name],
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
    case: Case, way: str, prior: mgap.Subspace, speed: Bandwidth, given: argparse.Namespace, name: str
) -> dict[str, Any]:
    """One table: printed, and as plain JSON."""
    least = floor(case.model.backbone, case.inputs, given.new_tokens, speed)
    found = compare(case, given.methods, prior, given, f"{name}, batch {case.rows}, {way}")
    figures = read(found, least)
    length = case.inputs["input_ids"].shape[1]
    print(f"\n{name}, batch {case.rows}, {way}: {length} tokens of prompt, {given.new_tokens} new; ", end="")
    print(f"floor {least.ms:.3g} ms a step ({least.weights / 1e9:.3g} GB of weights, {least.cache / 1e9:.3g} GB of cache)\n")
    print(show(figures, found["refused"], case.rows, case.model.backbone.device.type == "cuda"), flush=True)
    return {
        "model": name, "batch": case.rows, "way": way, "prompt_tokens": length, "new_tokens": given.new_tokens,
        "floor": {**asdict(least), "ms": least.ms}, "methods": figures, "refused": found["refused"],
    }  # fmt: skip


def measure_model(name: str, speed: Bandwidth, given: argparse.Namespace, keep: Callable[[dict[str, Any]], bool]) -> bool:
    """All tables of one model, each kept as soon as it is there; whether all were made."""
    began = time.perf_counter()
    say(f"{name}: building")
    model = shapes.build(name, given.device)
    measure.finish(given.device)
    built = time.perf_counter()
    say(f"{name}: fitting a prior")
    prior = mgap.Subspace.fit(model, default_prompts()[:PROMPTS], rank=5)
    say("")
    print(f"\n{name}: built in {built - began:.1f} s, prior of rank {prior.rank} from {prior.count} prompts in ", end="")
    print(f"{time.perf_counter() - built:.1f} s", flush=True)
    make_endless(model)
    complete = True
    for batch in given.batches:
        inputs = ask(model, batch)
        for way in given.ways:
            case, title = Case(model, inputs, given.new_tokens, WAYS[way]), f"{name}, batch {batch}, {way}"
            complete &= attempt(title, lambda case=case, way=way: keep(measure_case(case, way, prior, speed, given, name)))
        if given.profile and batch == given.batches[0]:
            title = f"{name}, batch {batch}, eager"
            complete &= attempt(title, lambda inputs=inputs, title=title: profile(model, inputs, prior, title, given.profile))
    return complete


def attempt(title: str, call: Callable[[], bool]) -> bool:
    """What it returns; an error is printed, and the next one is tried: what else was asked for is worth having."""
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
        "--models", nargs="+", choices=shapes.SHAPES, help="default: both papers' on a GPU, both tiny ones else"
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["eager", "compiled"])
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(USUAL),
        help=f'names, or "all"; {AGAIN} shows what chance does, vcd{SEQUENTIAL} a branch in forwards of its own',
    )
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other-rounds", type=int, default=3, help="of methods that do not act at the head")
    parser.add_argument("--seconds", type=float, default=45.0, help="of each table's rounds: none is begun that would not fit")
    parser.add_argument("--profile", type=Path, help="write the kernels of vanilla and MGAP there, of the first batch size")
    parser.add_argument("--out", type=Path, help="write everything as JSON, turn by turn")
    given = parser.parse_args(arguments)
    is_gpu = given.device.startswith("cuda")
    given.models = given.models or [name for name in shapes.SHAPES if name.startswith("tiny") != is_gpu]
    names = [*USUAL, *METHODS.names()] if given.methods == ["all"] else given.methods
    given.methods = list(dict.fromkeys([VANILLA, *names]))  # each once
    try:
        for name in {name.removesuffix(SEQUENTIAL) for name in given.methods} - {VANILLA, AGAIN}:
            METHODS.get(name)
    except SettingError as error:
        parser.error(str(error))
    if given.new_tokens < 8 or given.rounds < 1 or given.other_rounds < 1 or min(given.batches) < 1:
        parser.error("--new-tokens must be at least 8, and --rounds, --other-rounds and --batches at least 1")
    if given.profile:
        given.profile.write_text("")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = read_arguments(arguments)
    speed = measure.bandwidth(given.device)
    print(measure.about(given.device))
    print(f"memory: {speed.copied / 1e9:.0f} GB/s copied (read and written), {speed.read / 1e9:.0f} GB/s read", flush=True)
    tables: list[dict[str, Any]] = []
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "device": measure.device_name(given.device),
        "versions": measure.versions(),
        "bandwidth": speed._asdict(),
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
        "paper": paper_ratios(),
        "tables": tables,
    }

    def keep(table: dict[str, Any]) -> bool:
        tables.append(table)
        if given.out:
            given.out.write_text(json.dumps(result, indent=1))
        return "mgap" not in table["refused"]  # it works in every way of decoding

    complete = True
    for name in given.models:
        complete &= measure_model(name, speed, given, keep)
        gc.collect()  # one model at a time on the card
        if given.device.startswith("cuda"):
            torch.cuda.empty_cache()
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
