"""The plugin's cost per step of vLLM: one engine with MGAP's `compute_logits` and with the model's own, in turns.

    python bench/serving.py                             # in an environment with vLLM, such as that of make test-vllm
    python bench/serving.py --vocabularies 32000 --batches 8 --pairs 20

A text model with random weights answers batches of prompts with a fixed number of tokens. It is small (width 512, 8 layers), so
the head and the correction weigh much more than at 7B. Turns alternate inside one process and one engine; a turn's figure is
its time over its steps. On a CPU, set the number of threads with OMP_NUM_THREADS.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, LAYERS, HEADS, INNER = 512, 8, 8, 1408
RANK = 5  # of the prior
PROMPT = 16  # tokens


def write_model(folder: Path, vocabulary: int) -> None:
    """Write a configuration only: vLLM draws the weights."""
    from transformers import LlamaConfig

    LlamaConfig(
        vocab_size=vocabulary, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, intermediate_size=INNER, max_position_embeddings=512, architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip


def write_prior(folder: Path) -> None:
    import torch

    import mgap

    states = torch.randn(4 * RANK, WIDTH, generator=torch.Generator().manual_seed(0))
    mgap.Subspace.from_states(states, RANK).save(folder)


def build(folder: Path, vocabulary: int, rows: int) -> Any:
    """An engine with MGAP on."""
    from vllm import LLM

    write_model(folder / "model", vocabulary)
    write_prior(folder / "prior")
    return LLM(
        str(folder / "model"), load_format="dummy", skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
        max_model_len=256, max_num_seqs=rows, kv_cache_memory_bytes=256 << 20, seed=0, enable_prefix_caching=False,
        additional_config={"mgap": {"prior": str(folder / "prior"), "alpha": 0.75, "lam": 0.5, "log_every": 0}},
    )  # fmt: skip


class Ways:
    """One engine, with and without the plugin."""

    def __init__(self, llm: Any, rows: int, tokens: int) -> None:
        from vllm import SamplingParams

        self.llm, self.steps = llm, tokens
        self.prompts = [{"prompt_token_ids": [2 + row + place for place in range(PROMPT)]} for row in range(rows)]
        self.sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        self.model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
        self.corrected = self.model.__dict__["compute_logits"]

    def vanilla(self) -> list[list[int]]:
        del self.model.__dict__["compute_logits"]  # uncovers the class's method
        try:
            return self.plugin()
        finally:
            self.model.__dict__["compute_logits"] = self.corrected

    def plugin(self) -> list[list[int]]:
        outputs = self.llm.generate(self.prompts, self.sampling, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in outputs]


def measure_case(vocabulary: int, rows: int, args: argparse.Namespace) -> list[Any]:
    """Measure one row of the table."""
    from measure import column, in_turns, ratios, say, seconds, spread

    label = f"vocabulary {vocabulary}, batch {rows}"
    say(f"{label}: starting vLLM")
    with tempfile.TemporaryDirectory() as folder:
        ways = Ways(build(Path(folder), vocabulary, rows), rows, args.tokens)
        plain, corrected = ways.vanilla(), ways.plugin()  # warms up
        turns = {"vanilla": ways.vanilla, "plugin": ways.plugin}
        rounds = in_turns(turns, args.pairs, clock=lambda turn: 1000 * seconds(turn, "cpu") / args.tokens, label=label)
    changed = sum(one != other for one, other in zip(plain, corrected, strict=True))
    step = {name: spread(column(rounds, name)) for name in turns}
    more = spread(ratios(rounds, "plugin", "vanilla"))
    counted = f"{changed} of {rows}"
    return [f"{vocabulary:,}", rows, step["vanilla"].text(2), step["plugin"].text(2), more.text(3), len(rounds), counted]


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", nargs="+", type=int, default=[32_000, 151_936])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = read_arguments(arguments)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the model must be in this process
    from importlib.metadata import version

    from measure import about, table

    heads = ["vocabulary", "batch", "vanilla, ms a step (quartiles)", "with MGAP", "times vanilla (quartiles)", "pairs",
             "answers changed"]  # fmt: skip
    lines = [measure_case(vocabulary, rows, args) for vocabulary in args.vocabularies for rows in args.batches]
    print(f"{about('cpu')}, vLLM {version('vllm')}; width {WIDTH}, {LAYERS} layers, float32, {args.tokens} tokens\n")
    print(table(heads, lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
