"""Write a shape of bench/shapes.py as a checkpoint that vLLM serves, with a prior fitted to it.

    python bench/checkpoints.py llava-1.5-7b qwen3-vl-8b --out /dev/shm/checkpoints     # 14 and 16 GiB

Makes OUT/NAME/served, which transformers reads too, and OUT/NAME/prior. The tokenizer gets a word for every token of the
model's vocabulary, so that every answer has a text.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import mgap
from mgap.serving.checkpoint import servable


class Checkpoint(NamedTuple):
    """A model's folder and its prior's."""

    served: Path
    prior: Path

    @classmethod
    def of(cls, folder: str | Path) -> Checkpoint:
        return cls(Path(folder) / "served", Path(folder) / "prior")


def write(name: str, folder: Path, device: str) -> Checkpoint:
    """The shape with random weights, and the prior of its states on blind prompts."""
    from shapes import build  # late: whoever reads checkpoints only needs no model

    checkpoint, written = Checkpoint.of(folder), folder / "written"
    model = build(name, device)
    mgap.Subspace.fit(model, mgap.default_prompts()).save(checkpoint.prior)
    inner = model.backbone.model
    inner.save_pretrained(written, max_shard_size="5GB")
    model.backbone.processor.save_pretrained(written)
    fill_vocabulary(written / "tokenizer.json", inner.config.get_text_config().vocab_size)
    servable(str(written), checkpoint.served)
    shutil.rmtree(written)  # what did not change is linked
    return checkpoint


def fill_vocabulary(path: Path, size: int) -> None:
    """Give every token below `size` a word."""
    held = json.loads(path.read_text())
    words = held["model"]["vocab"]
    taken = {*words.values(), *(token["id"] for token in held["added_tokens"])}
    words |= {f"Ġw{number}": number for number in range(size) if number not in taken}
    path.write_text(json.dumps(held))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="shapes of bench/shapes.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(arguments)
    for name in args.names:
        started = time.perf_counter()
        shutil.rmtree(args.out / name, ignore_errors=True)
        write(name, args.out / name, args.device)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
