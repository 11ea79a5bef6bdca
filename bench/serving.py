"""The plugin's cost per step of vLLM: one engine with MGAP's `compute_logits` and with the model's own, in turns.

    python bench/checkpoints.py llava-1.5-7b qwen3-vl-8b --out /dev/shm/checkpoints
    python bench/serving.py /dev/shm/checkpoints/*                        # on a GPU, with a picture in every request
    python bench/serving.py --text --vocabularies 32000 151936            # a small text model, for machines without one

Every engine has a process of its own. Turns alternate inside it; which goes first changes every round. A turn's figure is of
decoding steps alone, in which every request of the batch gets one token: from the first one's beginning to the last one's, over
their number. The small text model (width 512, 8 layers, float32) has a head that weighs much more than at 7B. On a CPU, set the
number of threads with OMP_NUM_THREADS.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from measure import Spread, about, alone, column, in_turns, ratios, say, spread, table

WIDTH, LAYERS, HEADS, INNER = 512, 8, 8, 1408  # of the text model
RANK = 5  # of its prior
PROMPT = 16  # tokens of its prompts
QUESTION = "Please describe this image in detail."
MGAP = {"alpha": 0.75, "lam": 0.5, "log_every": 0}


@dataclass(frozen=True)
class Asked:
    """What is measured: batches of requests, how often, and how many tokens each gets."""

    batches: list[int]
    pairs: int
    tokens: int
    options: dict[str, Any]  # of vllm.LLM
    mgap: dict[str, Any]  # settings of the plugin, beside its prior


@dataclass(frozen=True)
class Measured:
    """One row of the table; spreads are the lower quartile, the median and the upper quartile."""

    model: str
    batch: int
    plain_ms: Spread
    mgap_ms: Spread
    times: Spread
    pairs: int
    off_equal: int  # answers at alpha 0 that are the plain engine's
    changed: int  # answers under MGAP that are not
    steps: int  # timed in a turn
    engine: str

    def cells(self) -> list[Any]:
        counts = f"{self.off_equal} of {self.batch}", f"{self.changed} of {self.batch}"
        return [self.model, self.batch, self.plain_ms.text(3), self.mgap_ms.text(3), self.times.text(4), self.pairs, *counts]


HEADS_OF_TABLE = ["model", "batch", "plain, ms a step (quartiles)", "with MGAP", "times plain (quartiles)", "pairs",
                  "alpha 0 as plain", "answers changed"]  # fmt: skip


class Steps:
    """When the model runner began each step, and whether all rows of it got one token each."""

    def __init__(self, runner: Any) -> None:
        self.begun: list[tuple[float, int, int]] = []
        execute = runner.execute_model

        def watched(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            counts = scheduled.num_scheduled_tokens
            self.begun.append((time.perf_counter(), len(counts), sum(counts.values())))
            return execute(scheduled, *args, **kwargs)

        runner.execute_model = watched

    def decoding(self, rows: int) -> list[float]:
        return [when for when, requests, tokens in self.begun if requests == tokens == rows]


class Ways:
    """One engine, with and without the plugin."""

    def __init__(self, llm: Any, ask: Callable[[int, Any], list[Any]], tokens: int) -> None:
        """`ask` answers so many requests with the engine, under these sampling parameters."""
        self.ask, self.tokens = ask, tokens
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        self.model, self.steps = runner.get_model(), Steps(runner)
        self.corrected = self.model.__dict__["compute_logits"]

    def vanilla(self, rows: int) -> list[list[int]]:
        del self.model.__dict__["compute_logits"]  # uncovers the class's method
        try:
            return self.plugin(rows)
        finally:
            self.model.__dict__["compute_logits"] = self.corrected

    def plugin(self, rows: int, alpha: float | None = None) -> list[list[int]]:
        from vllm import SamplingParams

        extra = None if alpha is None else {"mgap_alpha": alpha}
        sampling = SamplingParams(
            max_tokens=self.tokens, temperature=0.0, ignore_eos=True, detokenize=False, extra_args=extra
        )  # fmt: skip
        self.steps.begun.clear()
        return [list(each.outputs[0].token_ids) for each in self.ask(rows, sampling)]

    def step_ms(self, turn: Callable[[], Any], rows: int) -> float:
        turn()
        begun = self.steps.decoding(rows)
        return 1000 * (begun[-1] - begun[0]) / (len(begun) - 1)


def measure(name: str, folder: Path | None, asked: Asked) -> list[Measured]:
    """All batches of one engine: of a checkpoint of bench/checkpoints.py, or of the text model, named by its vocabulary."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the model must be in this process
    say(f"{name}: starting vLLM\n")
    with tempfile.TemporaryDirectory() as temporary:
        llm, ask = text_engine(Path(temporary), int(name), asked) if folder is None else picture_engine(folder, asked)
    ways = Ways(llm, ask, asked.tokens)
    config = llm.llm_engine.vllm_config
    how = config.compilation_config
    engine = f"{'V2' if config.use_v2_model_runner else 'V1'}, {config.model_config.dtype}, {how.mode} {how.cudagraph_mode}"
    return [measure_batch(name, rows, ways, asked, engine) for rows in asked.batches]


def measure_batch(name: str, rows: int, ways: Ways, asked: Asked, engine: str) -> Measured:
    ways.plugin(rows)  # from now on the prompts' keys and values are there, for all ways alike
    plain, corrected, off = ways.vanilla(rows), ways.plugin(rows), ways.plugin(rows, 0.0)
    turns = {"plain": lambda: ways.vanilla(rows), "mgap": lambda: ways.plugin(rows)}
    rounds = in_turns(turns, asked.pairs, clock=lambda turn: ways.step_ms(turn, rows), label=f"{name}, batch {rows}")
    found = Measured(
        name, rows, spread(column(rounds, "plain")), spread(column(rounds, "mgap")), spread(ratios(rounds, "mgap", "plain")),
        len(rounds), sum(a == b for a, b in zip(plain, off, strict=True)),
        sum(a != b for a, b in zip(plain, corrected, strict=True)), len(ways.steps.decoding(rows)), engine,
    )  # fmt: skip
    print(" | ".join(map(str, found.cells())), file=sys.stderr, flush=True)
    return found


# --- engines ---------------------------------------------------------------------------------------------------------


def picture_engine(folder: Path, asked: Asked) -> tuple[Any, Callable[[int, Any], list[Any]]]:
    """An engine of a checkpoint, and what asks it about as many pictures."""
    from checkpoints import Checkpoint
    from shapes import picture
    from vllm import LLM

    checkpoint = Checkpoint.of(folder)
    options = {"max_model_len": 2048, "max_num_seqs": max(asked.batches), "limit_mm_per_prompt": {"image": 1}, **asked.options}
    llm = LLM(
        str(checkpoint.served), seed=0, enable_prefix_caching=True,  # only steps are timed: a prompt is read once
        additional_config={"mgap": {"prior": str(checkpoint.prior), **asked.mgap}}, **options,
    )  # fmt: skip
    chats = [
        [{"role": "user", "content": [{"type": "image_pil", "image_pil": picture(number)}, {"type": "text", "text": QUESTION}]}]
        for number in range(max(asked.batches))
    ]
    return llm, lambda rows, sampling: llm.chat(chats[:rows], sampling, use_tqdm=False)


def text_engine(folder: Path, vocabulary: int, asked: Asked) -> tuple[Any, Callable[[int, Any], list[Any]]]:
    """The text model, whose weights vLLM draws, in float32."""
    from transformers import LlamaConfig
    from vllm import LLM

    import mgap

    LlamaConfig(
        vocab_size=vocabulary, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, intermediate_size=INNER, max_position_embeddings=512, architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder / "model")  # fmt: skip
    states = torch.randn(4 * RANK, WIDTH, generator=torch.Generator().manual_seed(0))
    mgap.Subspace.from_states(states, RANK).save(folder / "prior")
    llm = LLM(
        str(folder / "model"), load_format="dummy", skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
        max_model_len=256, max_num_seqs=max(asked.batches), kv_cache_memory_bytes=256 << 20, seed=0,
        additional_config={"mgap": {"prior": str(folder / "prior"), **asked.mgap}},
        **asked.options,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": [2 + row + place for place in range(PROMPT)]} for row in range(max(asked.batches))]
    return llm, lambda rows, sampling: llm.generate(prompts[:rows], sampling, use_tqdm=False)


# --- the command -----------------------------------------------------------------------------------------------------


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", type=Path, help="folders that bench/checkpoints.py wrote")
    parser.add_argument("--text", action="store_true", help="the small text model instead")
    parser.add_argument("--vocabularies", nargs="+", type=int, default=[32_000, 151_936], help="of the text model")
    parser.add_argument("--batches", nargs="+", type=int, help="by default 1, 8, 32, 128 and 256; 1 and 8 of the text model")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="of vllm.LLM")
    parser.add_argument("--mgap", type=json.loads, default={}, metavar="JSON", help="of the plugin: '{\"exact\": false}'")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the figures as JSON")
    args = parser.parse_args(arguments)
    if args.text == bool(args.checkpoints):
        parser.error("name folders that bench/checkpoints.py wrote, or give --text")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = read_arguments(arguments)
    from importlib.metadata import version

    where = f"{about('cuda' if torch.cuda.is_available() else 'cpu')}, vLLM {version('vllm')}"
    sizes = [(str(size), None) for size in args.vocabularies]
    engines = sizes if args.text else [(each.name, each) for each in args.checkpoints]
    asked = Asked(
        args.batches or ([1, 8] if args.text else [1, 8, 32, 128, 256]), args.pairs, args.tokens, args.options, MGAP | args.mgap
    )
    found = [row for name, folder in engines for row in alone(measure, name, folder, asked)]
    if args.out:
        kept = {"about": where, "tokens": args.tokens, "mgap": asked.mgap, "rows": [asdict(row) for row in found]}
        args.out.write_text(json.dumps(kept, indent=1))
    print(f"{where}; {args.tokens} tokens a turn\n")
    print(table(HEADS_OF_TABLE, [row.cells() for row in found]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
