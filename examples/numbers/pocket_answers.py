"""Write a pocket model's answers in the published file formats, for docs/numbers.md: python pocket_answers.py FOLDER --help."""

import argparse
import json
from pathlib import Path

import mgap
from mgap.benchmarks.pope.questions import SPLITS
from mgap.pocket.benchmark import TEST, chair_truth, pope, scenes
from mgap.pocket.language import DESCRIBE
from mgap.pocket.scenes import render


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="pocket/llava")
    parser.add_argument("--scenes", type=int, default=100, help="pictures a split, six questions each")
    parser.add_argument("--suffix", default="", help="put after every question")
    parser.add_argument("--seed", type=int, help="sample at temperature 1 with this seed; else greedy")
    parser.add_argument("--captions", action="store_true", help="describe the pictures instead")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    model = mgap.load(args.model)
    options = {} if args.seed is None else {"sample": True, "seed": args.seed}
    if args.captions:
        shown = list(scenes(TEST, args.scenes))
        texts = model.answers(list(map(render, shown)), [DESCRIBE[0]] * len(shown), max_new_tokens=96, batch_size=25, **options)
        write(
            args.folder / "captions.jsonl", [{"image_id": s.seed, "caption": a.text} for s, a in zip(shown, texts, strict=True)]
        )
        truth = args.folder / "gt_val2014.json"
        truth.write_text(json.dumps(chair_truth(TEST, args.scenes)))
        return
    for split in SPLITS:
        questions = list(pope(split, count=args.scenes))
        prompts = [question.text + args.suffix for question in questions]
        answers = model.answers([render(q.scene) for q in questions], prompts, max_new_tokens=24, batch_size=60, **options)
        write(args.folder / f"{split}.questions.jsonl", [q.record(n) for n, q in enumerate(questions, start=1)])
        write(
            args.folder / f"{split}.answers.jsonl", [{"question_id": n, "text": a.text} for n, a in enumerate(answers, start=1)]
        )


def write(path: Path, lines: list) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{len(lines)} lines in {path}")


if __name__ == "__main__":
    main()
