"""What MGAP inside vLLM was seen to do, by kind of engine and model runner: `python tests_vllm/table.py [--rows NAME ...]`.

Every cell compares greedy tokens with transformers under the same MGAP, on both pocket models or on a text model of random
weights. V1 is the model runner that vLLM takes on a CPU. V2, which it takes on a GPU, runs here in Triton's interpreter, at 0.2
to 0.4 s a step, and is therefore asked less. All rows take about twenty minutes on two cores.
"""

import argparse
import json
import os
import re
import runpy
import shutil
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client
runpy.run_path(str(Path(__file__).parent / "shim" / "sitecustomize.py"))  # this process prepares pictures as vLLM does

import texts
import torch
from engines import CARDS, SECOND, Engines, Refused, call, generate
from servers import Servers
from strengths import LENGTHS, OWN, SERVER, tokens, with_alpha, with_mgap
from test_server import ask, said
from transformers.utils.logging import disable_progress_bar
from worlds import TOKENS, World

import mgap.errors
from mgap.serving.checkpoint import servable

FAMILIES = ("llava", "qwen3-vl")
STRONG = 5.0
SHARED = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # a core for each rank
NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
OURS = {"VLLMValidationError"} | {name for name in dir(mgap.errors) if isinstance(getattr(mgap.errors, name), type)}
WORDS = 30  # of an error, in the file
LETTERS = 140  # of it, in a cell


@dataclass(frozen=True)
class Runner:
    """One of vLLM's model runners, and how much it is asked here."""

    name: str
    env: dict[str, str]
    tokens: int  # of an answer, at most
    share: int  # of ten questions


ON_CPU = (Runner("V1", {}, TOKENS, 10), Runner("V2", SECOND, 16, 4))
ON_CARD = (Runner("GPU", SECOND, TOKENS, 10),)
RUNNERS = ON_CARD if CARDS else ON_CPU


@dataclass(frozen=True)
class Found:
    """What one model gave in one cell: how many answers are equal, or why there is none."""

    family: str
    equal: int = 0
    compared: int = 0
    changed: int = 0  # of those compared, answers that are not plain transformers'
    note: str = ""
    failed: str = ""

    def text(self) -> str:
        if self.failed:
            bare = re.sub(r"(InterpreterError\(\W+)+", "", self.failed)  # every frame of the interpreter wraps it once more
            return textwrap.shorten(bare, LETTERS, placeholder=" ...")
        return f"{self.equal}/{self.compared} ({self.changed}){', ' + self.note if self.note else ''}"


Cell = Callable[["Bench", Runner, str], Found]


@dataclass(frozen=True)
class Row:
    """A row of the table, and what makes its cells."""

    name: str
    what: str
    cell: Cell
    families: tuple[str, ...] = FAMILIES


@dataclass
class Asked:
    """Requests, what transformers answers to each under MGAP, and what it answers without."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    expected: list[list[int]] = field(default_factory=list)
    plain: list[list[int]] = field(default_factory=list)
    default: list[list[int]] = field(default_factory=list)  # at the engine's strength, whatever a request asks for

    def against(self, family: str, made: list[dict[str, Any]], note: str = "") -> Found:
        said = tokens(made)
        equal = len(said) - differing(said, self.expected)
        own = differing(self.expected, self.default)
        notes = [note] if note else []
        notes += [f"{own} only by their own alpha"] if own else []
        return Found(family, equal, len(said), differing(self.expected, self.plain), ", ".join(notes))


def differing(one: list[list[int]], other: list[list[int]]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


class Failed(Exception):
    """Why a cell has no figures, in a few words."""


class Bench:
    """The references, the folders that vLLM reads, and the engines: each made when it is first needed."""

    def __init__(self, work: Path) -> None:
        self.work, self.engines, self.server = work, Engines(work), Servers(work)
        self._worlds: dict[str, World | texts.Text] = {}
        self._served: dict[str, Path] = {}

    def world(self, family: str) -> Any:
        if family not in self._worlds:
            self._worlds[family] = (World if family in FAMILIES else texts.Text)(family, self.work)
        return self._worlds[family]

    def served(self, family: str) -> Path:
        if family not in FAMILIES:
            return Path(self.world(family).folder)
        if family not in self._served:
            self._served[family] = servable(f"pocket/{family}", self.work / f"pocket-{family}")
        return self._served[family]

    def asked(
        self, runner: Runner, family: str, alpha: float | None, own: dict[int, float | None] | None = None, varied: bool = False
    ) -> Asked:
        """As many as the runner is asked: all at the engine's strength, or by turns with one of their own."""
        world, asked = self.world(family), Asked()
        for number, request in enumerate(world.requests()):
            if number % 10 >= runner.share:
                continue
            strength = None if own is None else own[number % len(own)]
            most = min(LENGTHS[number % len(LENGTHS)] if varied else request["sampling"]["max_tokens"], runner.tokens)
            request = {**request, "sampling": {**request["sampling"], "max_tokens": most}}
            asked.requests.append(request if strength is None else with_alpha([request], strength)[0])
            asked.expected.append(world.answers(alpha if strength is None else strength)[number][:most])
            asked.plain.append(world.answers()[number][:most])
            asked.default.append(world.answers(alpha)[number][:most])
        return asked

    def run(
        self, runner: Runner, family: str, *steps: dict[str, Any], env: dict[str, str] | None = None, **settings: Any
    ) -> Any:
        """What each step gives, and last of all what the engine says about itself, which must be of this runner."""
        text = texts.SETTINGS if family not in FAMILIES else {}
        more = {"env": {**runner.env, **(env or {})}, "disable_log_stats": False, "seconds": 400, **text, **settings}
        try:
            ran = self.engines.run(self.served(family), *steps, call("loading:about"), **more)
        except Refused as error:
            kind, why = cause(error)
            if kind in OURS:
                raise Failed(f"refused: {why}") from error
            raise Failed(f"{self.whose(family, steps, more)}: {kind}: {why}") from error
        if ran[-1]["runner"] != ("V2" if CARDS else runner.name):
            raise Failed(f"vLLM took its runner {ran[-1]['runner']}")
        return ran

    def whose(self, family: str, steps: tuple[dict[str, Any], ...], settings: dict[str, Any]) -> str:
        """Whether an engine that failed does so without MGAP as well."""
        settings = {name: value for name, value in settings.items() if name != "additional_config"}
        try:
            self.engines.run(self.served(family), *map(without, steps), **settings)
        except Refused:
            return "vLLM fails, also without MGAP"
        return "vLLM fails, with MGAP only"

    def close(self) -> None:
        self.engines.close()
        self.server.close()


# --- cells -----------------------------------------------------------------------------------------------------------


def engine(alpha: float | None, *, own: dict[int, float | None] | None = None, varied: bool = False, **settings: Any) -> Cell:
    """An engine of one strength (None: without MGAP) and these settings, asked once."""

    def cell(bench: Bench, runner: Runner, family: str) -> Found:
        asked = bench.asked(runner, family, alpha, own, varied)
        if CARDS == 1 and {"tensor_parallel_size", "pipeline_parallel_size"} & settings.keys():
            raise Failed("not run: there was one card")
        on = {} if alpha is None else with_mgap(bench.world(family), alpha)
        ran = bench.run(runner, family, generate(asked.requests), **on, **settings)
        return asked.against(family, ran[0], accepted(ran[-1]))

    return cell


def adapters(bench: Bench, runner: Runner, family: str) -> Found:
    """With an adapter in every request; a card's kernels for adapters know 16 bits only."""
    world = bench.world(family)
    folder, merged = world.adapted()
    asked = bench.asked(runner, family, STRONG)
    for number, each in enumerate(asked.requests):
        most = each["sampling"]["max_tokens"]
        asked.requests[number] = {**each, "adapter": folder}
        asked.expected[number], asked.plain[number] = merged.answers(STRONG)[number][:most], merged.answers()[number][:most]
    asked.default = asked.expected  # all are at the engine's strength
    on = {**with_mgap(world, STRONG), "enable_lora": True, "max_lora_rank": 8, "alone": True}
    ran = bench.run(runner, family, generate(asked.requests), **on, **({"dtype": "bfloat16"} if CARDS else {}))
    return asked.against(family, ran[0], "in bfloat16, against float32" if CARDS else "")


def accepted(about: dict[str, Any]) -> str:
    return f"{about['accepted']} of {about['draft']} drafted tokens accepted" if about.get("draft") else ""


def twice(bench: Bench, runner: Runner, family: str) -> Found:
    """The second time, prompts are in the cache."""
    asked = bench.asked(runner, family, STRONG)
    step, small = generate(asked.requests), {"block_size": 32}  # short prompts fill blocks of it
    ran = bench.run(runner, family, step, step, fresh=True, **small, **with_mgap(bench.world(family), STRONG))
    hits = sum(each["cached"] > 0 for each in ran[1])
    return asked.against(family, ran[1], f"{hits} with hits")


def compiled(bench: Bench, runner: Runner, family: str) -> Found:
    """With the compiler on, also where the interpreter wants it off; an engine that compiled nothing shows nothing."""
    asked = bench.asked(runner, family, STRONG)
    more = {"enforce_eager": False, "alone": True, "env": {"TORCHDYNAMO_DISABLE": "0"}}
    ran = bench.run(runner, family, generate(asked.requests), **more, **with_mgap(bench.world(family), STRONG))
    if not ran[-1]["compiled"]:
        raise Failed("not run: vLLM compiled nothing")
    return asked.against(family, ran[0])


def drafted(alpha: float, own: dict[int, float | None] | None = None) -> Cell:
    """The model drafts for itself."""

    def cell(bench: Bench, runner: Runner, family: str) -> Found:
        return engine(alpha, own=own, **bench.world(family).drafted())(bench, runner, family)

    return cell


def openai(bench: Bench, runner: Runner, family: str) -> Found:
    """A chat with a picture at three strengths, by the OpenAI client, and a strength that is none."""
    from openai import APIStatusError

    world = bench.world(family)
    decode = world.model.backbone.tokenizer.decode
    try:
        running = bench.server(bench.served(family), env=runner.env, **with_mgap(world, SERVER))
    except RuntimeError as error:
        raise Failed(f"vLLM fails: {short(str(error))}") from error
    try:
        client, number, equal, changed = running.client(), 12, 0, 0
        plain = decode(world.answers()[number], skip_special_tokens=True).strip()
        for own, alpha in ((None, SERVER), (0.0, 0.0), (STRONG, STRONG)):
            wanted = decode(world.answers(alpha)[number], skip_special_tokens=True).strip()
            equal += said(ask(client, world, number, own)) == wanted
            changed += wanted != plain
        try:
            ask(client, world, number, "strong")
            note = "a bad value was taken"
        except APIStatusError as error:
            note = f"a bad value: HTTP {error.status_code}"
    finally:
        running.stop()
    return Found(family, equal, 3, changed, note)


TEXT, CAPPED = ("llama",), ("gemma2",)
ROWS = [
    *(Row(f"alpha-{'none' if a is None else f'{a:g}'}", f"alpha {'none' if a is None else f'{a:g}'}", engine(a))
      for a in (None, 0.0, SERVER, STRONG)),
    Row("chunked", "chunked prefill (32 tokens a step), alpha 5",
        engine(STRONG, max_num_batched_tokens=32, enable_chunked_prefill=True)),
    Row("prefix", "prefix caching, second pass, alpha 5", twice),
    Row("compile", "torch.compile, alpha 5", compiled),
    Row("ngram", "ngram speculation, alpha 5", engine(STRONG, alone=True, **NGRAM)),
    Row("draft", "draft-model speculation, alpha 5", drafted(STRONG), TEXT),
    Row("own", "per-request alpha {none, 0, 5} in one batch", engine(SERVER, own=OWN)),
    Row("own-varied", "the same, varied lengths (rows move, requests leave)", engine(SERVER, own=OWN, varied=True)),
    Row("own-draft", "per-request alpha, draft-model speculation", drafted(SERVER, OWN), TEXT),
    Row("lora", "requests with an adapter (LoRA), alpha 5", adapters, TEXT),
    Row("tp", "TP=2, per-request alpha", engine(SERVER, own=OWN, tensor_parallel_size=2, alone=True, env=SHARED)),
    Row("pp", "PP=2, alpha 5", engine(STRONG, pipeline_parallel_size=2, alone=True, env=SHARED)),
    Row("bf16-none", "bfloat16 against float32, alpha none", engine(None, dtype="bfloat16")),
    Row("bf16", "bfloat16 against float32, alpha 0.75", engine(SERVER, dtype="bfloat16")),
    Row("capped-none", "soft-capped logits, alpha none", engine(None), CAPPED),
    Row("capped", "soft-capped logits, alpha 5 by a second pass through the head", engine(STRONG), CAPPED),
    Row("server", "OpenAI server, chat with a picture, alpha 0.75 / 0 / 5 by `vllm_xargs`", openai, ("llava",)),
]  # fmt: skip


# --- what went wrong, in a few words ---------------------------------------------------------------------------------


def without(step: dict[str, Any]) -> dict[str, Any]:
    """The same requests, without strengths of their own."""
    plain = [{**each, "sampling": {**each["sampling"], "extra_args": None}} for each in step["requests"]]
    return {**step, "requests": plain}


def cause(error: Refused) -> tuple[str, str]:
    """An error's class and text: of several processes, that which the first of them wrote; without a text, the line of code."""
    log = error.log if not error.text else ""
    lines = [re.sub(r"^\(\w+ pid=\d+\) ERROR .*?\] ?", "", line) for line in error.log.splitlines() if " ERROR " in line]
    lines = [line for line in lines or log.splitlines() if line.strip(" ^~")]
    for before, line in pairwise(lines):
        if named := re.match(r"(?:\w+\.)*(\w*(?:Error|Exception))(?:: (.+))?$", line):
            return named[1], short(named[2] or before)
    return error.kind, short(error.text)


def short(text: str) -> str:
    words = " ".join(text.split()).replace("|", "/").split(" ")
    return " ".join(words[:WORDS]) + (" ..." if len(words) > WORDS else "")


def found_in(row: Row, bench: Bench, runner: Runner, family: str) -> Found:
    try:
        return row.cell(bench, runner, family)
    except Failed as error:
        return Found(family, failed=str(error))


# --- the table -------------------------------------------------------------------------------------------------------


Cells = dict[tuple[str, str], list[Found]]  # by row and runner


def written(found: Cells) -> str:
    """The rows of which there is something, as Markdown."""
    columns = [runner.name for runner in (*ON_CPU, *ON_CARD) if any(name == runner.name for _, name in found)]
    lines = [f"| what | {' | '.join(columns)} |", "| --- " * (1 + len(columns)) + "|"]
    for row in ROWS:
        cells = [together(found.get((row.name, name), [])) for name in columns]
        lines += [f"| {row.what} | {' | '.join(cells)} |"] if any(cells) else []
    few = ON_CPU[1]
    legend = (
        "Answers that equal transformers' token by token, of those compared; in brackets, how many of these differ from plain "
        "transformers', so that equality says something (\"only by their own alpha\": from those at the engine's alpha). "
        f"V1 and GPU: 20 questions and descriptions of up to {TOKENS} tokens, or {texts.ASKED} texts of {texts.TOKENS}. "
        f"V2: {few.share} of ten of them, up to {few.tokens} tokens."
    )
    return "\n".join([*lines, "", legend])


def about() -> str:
    names = ("vllm" if CARDS else "vllm-cpu", "torch", "transformers", "triton")
    versions = ", ".join([*(f"{name} {version(name)}" for name in names), *([torch.cuda.get_device_name()] if CARDS else [])])
    return f"{datetime.now(timezone.utc):%Y-%m-%d}, mgap {mgap.__version__}, {versions}, Python {sys.version.split()[0]}"


def together(parts: list[Found]) -> str:
    """One model after the other; what is the same for all is said once."""
    said = {part.text() for part in parts}
    if not parts:
        return ""
    if len(said) == 1:
        return said.pop() if len(parts) == 1 or parts[0].failed else f"{parts[0].text()} each"
    return "; ".join(f"{part.family} {part.text()}" for part in parts)


@contextmanager
def bench() -> Iterator[Bench]:
    work = Path(tempfile.mkdtemp(prefix="mv-"))  # short, for the sockets in it
    made = Bench(work)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", metavar="NAME", choices=[row.name for row in ROWS], help="run some of them only")
    parser.add_argument("--runners", nargs="+", choices=[runner.name for runner in RUNNERS], help="run one of them only")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON; cells that it holds and that are not run are kept")
    parser.add_argument("--show", nargs="+", type=Path, metavar="FILE", help="run nothing: a table of such files, one a device")
    given = parser.parse_args()
    if given.show:
        held = [json.loads(file.read_text()) for file in given.show]
        print(written({key: parts for each in held for key, parts in cells_of(each).items()}))
        print("\n" + "\n\n".join(f"{each['about']}." for each in held))
        return
    warnings.filterwarnings("ignore", message="alpha=5.0 > 1")  # it is meant to
    disable_progress_bar()
    found = kept(given.out)
    with bench() as made:
        for runner in RUNNERS:  # one after the other: a process each, kept
            if given.runners is not None and runner.name not in given.runners:
                continue
            for row in ROWS:
                if given.rows is not None and row.name not in given.rows:
                    continue
                parts = found[row.name, runner.name] = []
                for family in row.families:
                    start = time.monotonic()
                    parts.append(found_in(row, made, runner, family))
                    took = time.monotonic() - start
                    print(f"{runner.name} {row.name} {family}: {parts[-1].text()} [{took:.0f} s]", file=sys.stderr, flush=True)
                if given.out is not None:
                    keep(found, given.out)
    print(f"{written(found)}\n\n{about()}.")


def keep(found: Cells, file: Path) -> None:
    cells = [{"row": row, "runner": runner, "found": [vars(part) for part in parts]} for (row, runner), parts in found.items()]
    file.write_text(json.dumps({"about": about(), "cells": cells}, indent=2) + "\n")


def kept(file: Path | None) -> Cells:
    """Cells of an earlier run; refuses those of other versions, or of another day."""
    if file is None or not file.exists():
        return {}
    held = json.loads(file.read_text())
    if held["about"] != about():
        sys.exit(f"{file} is of {held['about']}, and this is {about()}: name another file")
    return cells_of(held)


def cells_of(held: dict[str, Any]) -> Cells:
    return {(cell["row"], cell["runner"]): [Found(**part) for part in cell["found"]] for cell in held["cells"]}


if __name__ == "__main__":
    main()
