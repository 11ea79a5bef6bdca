"""Questions a second of a POPE run on one device: this package's captured loop, vLLM's offline engine, transformers one by one.

    python bench/checkpoints.py llava-1.5-7b qwen3-vl-8b --out /dev/shm/checkpoints
    python bench/pope_engines.py /dev/shm/checkpoints/* --out docs/pope-engines.json

Pictures and questions as in bench/pope.py: JPEG files of 640 x 480, six questions each, answers of one length. Both engines
hold the same checkpoint and take turns with all questions; plain in vLLM is a strength of 0, whose logits are its own. Every
turn has pictures that it has not seen, so that nothing is cached from the last one. One by one answers a few of them.

    own         batches with shared prefills, a static cache and a captured step; workers open the pictures
    vLLM        LLM.chat with files, as it is by default: continuous batching, prefix cache, compiled, captured
    one by one  transformers' own processor and generate
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from measure import Spread, about, alone, say, seconds, spread, table, without_gc
from pope import ask, photographs
from prefill import in_batches, one_by_one

import mgap
from mgap.backbones.prepared_pictures import Preparer
from mgap.benchmarks.picture_folder import PictureFolder
from mgap.run.picture_workers import MAX_AUTO, PictureOpening, Pictures

MGAP = {"alpha": 0.75, "lam": 0.5}
Turn = Callable[[Sequence[str], Sequence[str]], Any]  # names of pictures, questions


def vllm_turns(folder: str, checkpoint: Any, options: dict[str, Any], new: int, stack: ExitStack) -> dict[str, Turn]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(checkpoint.served), limit_mm_per_prompt={"image": 1}, allowed_local_media_path=folder, seed=0,
        additional_config={"mgap": {"prior": str(checkpoint.prior), **MGAP, "log_every": 0}},
        **{"max_model_len": 2048, **options},
    )  # fmt: skip

    stack.callback(llm.llm_engine.engine_core.shutdown)  # its process would outlive this one, which is a pool's

    def turn(alpha: float | None) -> Turn:
        extra = None if alpha is None else {"mgap_alpha": alpha}
        sampling = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True, extra_args=extra)

        def answer(names: Sequence[str], questions: Sequence[str]) -> Any:
            urls = (Path(folder, name).as_uri() for name in names)
            chats = [
                [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
                    }
                ]
                for url, text in zip(urls, questions, strict=True)
            ]
            return llm.chat(chats, sampling, use_tqdm=False)

        return answer

    return {"vLLM, plain": turn(0.0), "vLLM, MGAP": turn(None)}


def own_turns(model: mgap.Model, prior: mgap.Subspace, pictures: Pictures, batch_size: int, new: int) -> dict[str, Turn]:
    plain = in_batches(model, new, batch_size, "shared", pictures, static_cache=True)

    def corrected(names: Sequence[str], questions: Sequence[str]) -> Any:
        with model.using(mgap.MGAP(prior, **MGAP)):
            return plain(names, questions)

    return {"own, plain": plain, "own, MGAP": corrected}


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Questions a second of every turn, by way."""
    from checkpoints import Checkpoint

    checkpoint, each = Checkpoint.of(folder), args.pictures
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        say(f"{folder.name}: drawing pictures\n")
        every = photographs(place, each * (4 * (args.rounds + 1) + 1))
        model = mgap.load(str(checkpoint.served), device=args.device)
        opening = PictureOpening(PictureFolder(place), Preparer.of(model.backbone))
        pictures = stack.enter_context(Pictures(opening, args.workers, model.backbone.device))
        ways = own_turns(model, mgap.Subspace.load(checkpoint.prior), pictures, args.batch_size, args.max_new_tokens)
        ways |= vllm_turns(place, checkpoint, args.options, args.max_new_tokens, stack)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(args.rounds + 1):  # the first does not count
            order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
            for name in order:
                mine, every = every[:each], every[each:]
                names, questions = ask(mine, args.asked)
                with without_gc():
                    spent = seconds(lambda name=name, rows=(names, questions): ways[name](*rows), args.device)
                if number:
                    found[name].append(len(names) / spent)
                say(f"{folder.name}, round {number} of {args.rounds}, {name}: {len(names) / spent:.1f} questions a second\n")
        single = one_by_one(model, args.max_new_tokens, opening.picture)
        names, questions = ask(every, args.asked)
        few = slice(0, args.single)
        single(names[:1], questions[:1])
        found["one by one"] = [
            1 / seconds(lambda row=row: single([row[0]], [row[1]]), args.device)
            for row in zip(names[few], questions[few], strict=True)
        ]
    return {"model": folder.name, "questions_a_second": found}


def written(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        found = {name: spread(values) for name, values in row["questions_a_second"].items()}
        slowest: Spread = found["one by one"]
        lines += [
            [row["model"], name, each.text(1), f"{each.middle / slowest.middle:.1f}", f"{9000 / each.middle:.0f}"]
            for name, each in found.items()
        ]
    return table(["model", "way", "questions a second (quartiles)", "times one by one", "9,000 questions, s"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path, help="folders that bench/checkpoints.py wrote")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pictures", type=int, default=150, help="of a turn")
    parser.add_argument("--asked", type=int, default=6, help="questions a picture: 6 of one split, 18 of all three")
    parser.add_argument("--single", type=int, default=60, help="questions answered one by one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=60)
    parser.add_argument("--max-new-tokens", type=int, default=8)
    parser.add_argument("--workers", type=int, default=min(MAX_AUTO, max(1, (os.cpu_count() or 2) - 1)))
    parser.add_argument(
        "--options", type=json.loads, default={"gpu_memory_utilization": 0.5}, metavar="JSON", help="of vllm.LLM"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the figures as JSON")
    args = parser.parse_args(arguments)
    import vllm

    where = f"{about(args.device)}, vLLM {vllm.__version__}; {args.pictures * args.asked} questions a turn, "
    where += f"{args.max_new_tokens} tokens each, batches of {args.batch_size}, {args.workers} workers"
    rows = [alone(measure, folder, args) for folder in args.checkpoints]
    if args.out:
        args.out.write_text(json.dumps({"about": where, "rows": rows}, indent=1))
    print(f"{where}\n\n{written(rows)}")


if __name__ == "__main__":
    main()
