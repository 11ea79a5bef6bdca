"""Compare decoding methods on yes/no questions of your own: answers, paired differences with intervals, and a report.

    python examples/compare_methods.py                                       # questions about drawn pictures, a pocket model
    python examples/compare_methods.py --questions mine.jsonl --images photos --model llava-hf/llava-1.5-7b-hf --out runs/mine

The questions are JSON lines (or CSV with a header), a question a line:

    {"image": "street.jpg", "question": "Is there a dog in the image?", "label": "no", "group": "absent"}

`image` is a file in --images and `label` is yes or no. Optional are `group`, what it is scored with, and `id`, its name.
Without questions of your own the script draws twenty pictures and writes such a file, to copy from.

It prints precision, recall and F1 of every method with 95% intervals over pictures, how F1 differs from that of plain
decoding on the same questions, and how many questions each gained and lost. --out then holds the answers, scores.json and a
report (Markdown, LaTeX, JSON and a page). Stopped at any moment, the same command goes on. On the command line: `mgap run own
--questions ...`.
"""

import argparse
import json
from pathlib import Path

import mgap
from mgap.io.output_folder import write_files
from mgap.io.progress import bars
from mgap.reports.report import report_files
from mgap.reports.scores import SCORES, Scores, score
from mgap.run.config import Config
from mgap.run.engine import execute
from mgap.run.job import Job
from mgap.run.live_score import LiveScore, showing

# Yours to change: a name of `mgap ls methods`, or its keys. A constant shift towards no belongs into every such comparison: on
# yes/no questions, what does not beat it has shown nothing.
METHODS = (
    {"method": "vanilla"},
    {"method": "bias", "label": "a constant", "shift": -1.5},
    {"method": "mgap", "label": "mgap, paper", "prior": {"prompts": "questions"}},
    {"method": "mgap", "label": "mgap, alpha 4", "alpha": 4, "prior": {"prompts": "questions"}},
    {"method": "vcd"},
)


def draw_questions(folder: Path, pictures: int) -> tuple[Path, Path]:
    """A folder of drawn pictures and a file of questions about them, six a picture; half of what is asked for is there."""
    from mgap.pocket.benchmark import TEST, pope
    from mgap.pocket.scenes import render

    images = folder / "photos"
    images.mkdir(parents=True, exist_ok=True)
    lines = []
    for asked in pope("adversarial", TEST, pictures):
        name = f"{asked.scene.seed}.png"
        render(asked.scene).save(images / name)
        lines.append(json.dumps({"image": name, "question": asked.text, "label": asked.label}))
    questions = folder / "questions.jsonl"
    questions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return questions, images


def answer(config: Config, out: Path) -> Scores:
    """Every question under every method; what is answered already is not asked again."""
    job = Job.prepare(config, out)  # checks all that can be checked without the model
    with bars() as progress:
        run, worker = job.begin(mgap.load(config.model), progress=progress)
    live = LiveScore(run, job.scorer)
    with showing() as show:
        execute(run, worker, labels=job.labels, listener=lambda state: show(state, live.add(state)))
    return score(run)


def show_scores(scores: Scores) -> None:
    """A block for each group of questions; differences are paired: the same questions, drawn by picture."""
    for group in scores.results[scores.baseline].groups:
        print(f"\n{group:<16}{'precision':>20}{'recall':>20}{'F1':>20}{'F1 less ' + scores.baseline:>22}  gained, lost")
        for label, result in scores.results.items():
            part = result.groups[group]
            cells = "".join(f"{part.rates[name]!s:>20}" for name in ("precision", "recall", "f1"))
            paired = ""
            if part.against is not None:
                f1 = part.against.differences["f1"]
                change = f"{100 * f1.value:+.1f} [{100 * f1.low:+.1f}, {100 * f1.high:+.1f}]"
                paired = f"{change:>22}  {part.against.gained}, {part.against.lost}"
            print(f"{label:<16}{cells}{paired}")
    for warning in scores.warnings:
        print(f"note: {warning}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="a hub id, a folder, or pocket/llava, pocket/qwen3-vl")
    parser.add_argument("--questions", type=Path, help="JSON lines or CSV: image, question, label; default: drawn ones")
    parser.add_argument("--images", type=Path, help="the folder of the pictures; default: beside the questions")
    parser.add_argument("--pictures", type=int, default=20, help="how many to draw, where you give no questions")
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    args = parser.parse_args()

    questions, images = args.questions, args.images
    if questions is None:
        questions, images = draw_questions(args.out.with_name(args.out.name + "-questions"), args.pictures)
        print(f"drawn: {questions}")
    keys = {"questions": str(questions), "images": str(images or questions.parent), "batch_size": args.batch_size}
    scores = answer(Config.of({"benchmark": "own", "model": args.model, "methods": METHODS, **keys}), args.out)
    show_scores(scores)
    kept = {SCORES: json.dumps(scores.to_json(), indent=1, ensure_ascii=False) + "\n"}
    for path in write_files(args.out, {**kept, **report_files([scores])}):
        print(path)


if __name__ == "__main__":
    try:
        main()
    except mgap.MgapError as error:
        raise SystemExit(f"compare_methods: {error}") from None
