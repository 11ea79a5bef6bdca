"""Two servers of vLLM on one card, with MGAP and without, under vLLM's own benchmark client: throughput and latencies.

    python bench/checkpoints.py llava-1.5-7b qwen3-vl-8b --out /dev/shm/checkpoints
    python bench/serving_load.py /dev/shm/checkpoints/* --out docs/serving-load.json
    python bench/serving_load.py --draw docs/serving-load.json docs/figures           # the figure and the table alone

Every request is a chat about a picture of its own, a JPEG file of 640 x 480 sent as base64, with a fixed number of tokens of
answer. So many requests as a level says are under way at any time (`vllm bench serve --max-concurrency`). Both servers run all
the time, each with half of the card, and only one is asked at a time; which goes first changes with every level. vLLM's caches
of prompts and pictures are off: every request is a new one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measure import about, say, table

QUESTION = "Please describe this image in detail."
NEW = ["--no-enable-prefix-caching", "--mm-processor-cache-gb", "0"]  # every request is new to the server
HALF = ["--max-model-len", "2048", "--gpu-memory-utilization", "0.45"]
KEPT = ("output_throughput", "request_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms",
        "median_itl_ms", "p99_itl_ms", "completed", "failed", "total_output_tokens", "duration")  # fmt: skip
WAYS = ("plain", "mgap")


@contextlib.contextmanager
def pictures(count: int) -> Iterator[Path]:
    """A file of requests for vLLM's client, each about a picture of its own."""
    from pope import photographs

    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "asked.jsonl")
        files = (Path(folder, name).read_bytes() for name in photographs(folder, count))
        urls = (f"data:image/jpeg;base64,{b64encode(file).decode()}" for file in files)  # a file's name would be made a PNG
        lines = [{"prompt": QUESTION, "image_files": [url]} for url in urls]
        asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
        yield asked


@contextlib.contextmanager
def servers(checkpoint: Path, logs: Path, flags: Sequence[str]) -> Iterator[dict[str, str]]:
    """Both servers' addresses. They load one after the other, since an engine measures how much of the card is free; together
    where their flags say how much they take."""
    from checkpoints import Checkpoint
    from server import Server

    model, started = Checkpoint.of(checkpoint), dict[str, Server]()
    try:
        for way, prior in zip(WAYS, (None, model.prior), strict=True):
            log = logs / f"server-{checkpoint.name}-{way}.log"
            started[way] = Server(str(model.served), prior, log, flags)
            say(f"{checkpoint.name}: starting the server, {way}")
            if "--kv-cache-memory-bytes" not in flags:
                started[way].wait()
        for server in started.values():
            server.wait()
        yield {way: server.url for way, server in started.items()}
    finally:
        for server in started.values():
            server.stop()


def load(url: str, model: Path, asked: Path, level: int, requests: int, tokens: int) -> dict[str, float]:
    """`vllm bench serve`, in this process."""
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    words = [
        "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url, "--model", str(model),
        "--dataset-name", "custom_image", "--dataset-path", str(asked), "--num-prompts", str(requests),
        "--custom-output-len", str(tokens), "--ignore-eos", "--temperature", "0",
        "--max-concurrency", str(level), "--num-warmups", "2", "--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-tqdm",
    ]  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr):
        made = main(parser.parse_args(words))
    return {name: made[name] for name in KEPT}


def measure(checkpoint: Path, asked: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every level of every round, as soon as both servers have answered it. Which goes first changes with both."""
    from checkpoints import Checkpoint

    with servers(checkpoint, args.logs, [*NEW, *(args.flags or HALF)]) as urls:
        for number in range(args.rounds):
            for place, level in enumerate(args.levels):
                for way in WAYS if (number + place) % 2 == 0 else WAYS[::-1]:
                    requests = max(args.least, args.waves * level)
                    served = Checkpoint.of(checkpoint).served
                    figures = load(urls[way], served, asked, level, requests, args.tokens)
                    last = f"{checkpoint.name} {way} {level} at once: {figures['output_throughput']:.0f} tokens a second"
                    print(last, file=sys.stderr, flush=True)
                    yield {"model": checkpoint.name, "way": way, "level": level, "round": number, **figures}


# --- the table and the figure ----------------------------------------------------------------------------------------


COLUMNS = {  # of the table: a figure of the client's, its name, digits
    "output_throughput": ("tokens a second", 0), "median_ttft_ms": ("first token, ms, median", 0),
    "p99_ttft_ms": ("99th percentile", 0), "median_tpot_ms": ("a token, ms, median", 2), "p99_tpot_ms": ("99th percentile", 2),
}  # fmt: skip


def medians(rows: Sequence[dict[str, Any]], model: str, level: int, way: str, name: str) -> float:
    mine = (row[name] for row in rows if (row["model"], row["level"], row["way"]) == (model, level, way))
    return statistics.median(mine)


def ratios(rows: Sequence[dict[str, Any]], model: str, level: int) -> list[float]:
    """Tokens a second with MGAP over those without, of each round."""
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        if (row["model"], row["level"]) == (model, level):
            by_round.setdefault(row["round"], {})[row["way"]] = row["output_throughput"]
    return [each["mgap"] / each["plain"] for each in by_round.values()]


def places(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((row["model"], row["level"]) for row in rows))


def written(rows: Sequence[dict[str, Any]]) -> str:
    """Medians over rounds, plain / with MGAP."""
    heads = ["model", "at once", *(name for name, _ in COLUMNS.values()), "tokens a second, times plain (rounds)"]
    lines = []
    for model, level in sorted(places(rows)):
        pairs = (
            " / ".join(f"{medians(rows, model, level, way, name):.{digits}f}" for way in WAYS)
            for name, (_, digits) in COLUMNS.items()
        )
        each = sorted(ratios(rows, model, level))
        spread = f"{statistics.median(each):.3f} ({each[0]:.3f} to {each[-1]:.3f})"
        lines.append([model, level, *pairs, spread])
    return table(heads, lines)


def draw(rows: Sequence[dict[str, Any]], folder: Path, caption: str) -> None:
    """Tokens a second and latencies against the requests under way."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, ScalarFormatter

    from mgap.pages.print_figures import TEXT, grid, legend, looks, new_figure, save, style

    models = list(dict.fromkeys(row["model"] for row in rows))
    panels = {"output_throughput": "tokens a second", "p99_ttft_ms": "first token, ms\n(99th percentile)",
              "p99_tpot_ms": "a token, ms\n(99th percentile)"}  # fmt: skip
    names, look, drawn = {"plain": "plain vLLM", "mgap": "with MGAP"}, looks(WAYS), []
    with style():
        figure = new_figure(TEXT, 1.0 + 1.35 * len(panels))
        axes = figure.subplots(len(panels), len(models), squeeze=False, sharex=True)
        for across, model in enumerate(models):
            levels = sorted({level for other, level in places(rows) if other == model})
            for down, (name, label) in enumerate(panels.items()):
                panel = axes[down][across]
                for way in WAYS:
                    values = [medians(rows, model, level, way, name) for level in levels]
                    panel.plot(levels, values, **look[way].line_style, label=names[way], markersize=4, fillstyle="none")
                    drawn += [(model, name, way, level, value) for level, value in zip(levels, values, strict=True)]
                panel.set(xscale="log", yscale="log")
                panel.xaxis.set(
                    major_locator=FixedLocator(levels), minor_locator=NullLocator(), major_formatter=ScalarFormatter()
                )
                panel.yaxis.set(major_formatter=ScalarFormatter(), minor_formatter=NullFormatter())
                grid(panel)
                if across == 0:
                    panel.set_ylabel(label)
            axes[0][across].set_title(model)
            axes[-1][across].set_xlabel("requests at once")
        legend(figure, axes[0][0].get_lines())
        columns = ("model", "quantity", "way", "at_once", "value")
        save(figure, folder, "serving-load", columns, drawn, caption=caption)


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", type=Path, help="folders that bench/checkpoints.py wrote")
    parser.add_argument("--levels", nargs="+", type=int, default=[1, 8, 32, 128, 256], help="requests at once")
    parser.add_argument("--waves", type=int, default=2, help="requests of a level, as a multiple of it")
    parser.add_argument("--least", type=int, default=16, help="requests of a level, at least")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128, help="of every answer")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, help=f"of both servers, last of all; else {' '.join(HALF)}")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="the folder of the servers' logs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the figures as JSON")
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("FILE", "FOLDER"), help="from such a file, into a folder")
    args = parser.parse_args(arguments)
    if args.draw:
        held = json.loads(args.draw[0].read_text())
        draw(held["rows"], args.draw[1], held["about"])
        print(f"{held['about']}\n\n{written(held['rows'])}")
        return
    import torch
    import vllm

    where = f"{about('cuda' if torch.cuda.is_available() else 'cpu')}, vLLM {vllm.__version__}; {args.tokens} tokens an answer"
    rows: list[dict[str, Any]] = []
    with pictures(max(args.least, args.waves * max(args.levels))) as asked:
        for checkpoint in args.checkpoints:
            for row in measure(checkpoint, asked, args):
                rows.append(row)
                if args.out:  # as far as it has come: all of it takes twenty minutes
                    args.out.write_text(json.dumps({"about": where, "rows": rows}, indent=1))
    print(f"{where}\n\n{written(rows)}")


if __name__ == "__main__":
    main()
