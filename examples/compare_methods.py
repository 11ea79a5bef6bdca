"""Compare decoding methods on your own yes/no questions: answers, paired differences with intervals, and a report.

    python examples/compare_methods.py                                       # questions about drawn pictures, a pocket model
    python examples/compare_methods.py --questions mine.jsonl --images photos --model llava-hf/llava-1.5-7b-hf --out runs/mine

The questions are JSON lines (or CSV with a header), one question per line:

    {"image": "street.jpg", "question": "Is there a dog in the image?", "label": "no", "group": "absent"}

`image` is a file in --images and `label` is yes or no. Optional: `group`, to score questions separately, and `id`.
Without your own questions, the script draws twenty pictures and writes such a file as a template.

It prints precision, recall and F1 of every method with 95% intervals over pictures, the paired difference of F1 from plain
decoding, and how many questions each method gained and lost. --out gets the answers, scores.json and a report (Markdown, LaTeX,
JSON and a page). If it is interrupted, the same command resumes. On the command line: `mgap run own --questions ...`.
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

# Change these: a name from `mgap ls methods`, or its keys. Every such comparison should have a constant shift towards no: on
# yes/no questions, a method that does not beat it has shown nothing.
METHODS = (
    {"method": "vanilla"},
    {"method": "bias", "label": "a constant", "shift": -1.5},
    {"method": "mgap", "label": "mgap, paper", "prior": {"prompts": "questions"}},
    {"method": "mgap", "label": "mgap, alpha 4", "alpha": 4, "prior": {"prompts": "questions"}},
    {"method": "vcd"},
)


def draw_questions(folder: Path, pictures: int) -> tuple[Path, Path]:
    """A folder of drawn pictures and a file of questions about them: six per picture, half about things that are there."""
    from mgap.pocket.benchmark import TEST, pope
    from mgap.pocket.scenes import render

    images = folder / "photos"
    images.mkdir(parents=True, exist_ok=True)
    lines = []
    for question in pope("adversarial", TEST, pictures):
        name = f"{question.scene.seed}.png"
        render(question.scene).save(images / name)
        lines.append(json.dumps({"image": name, "question": question.text, "label": question.label}))
    questions = folder / "questions.jsonl"
    questions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return questions, images


def answer(config: Config, out: Path) -> Scores:
    """Answer every question under every method, except those already answered."""
    job = Job.prepare(config, out)  # checks everything that needs no model
    with bars() as progress:
        run, worker = job.begin(mgap.load(config.model), progress=progress)
    live = LiveScore(run, job.scorer)
    with showing() as show:
        execute(run, worker, labels=job.labels, listener=lambda state: show(state, live.add(state)))
    return score(run)


def show_scores(scores: Scores) -> None:
    """One block per group of questions; differences are paired by question and bootstrapped over pictures."""
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
    files = {SCORES: json.dumps(scores.to_json(), indent=1, ensure_ascii=False) + "\n"}
    for path in write_files(args.out, {**files, **report_files([scores])}):
        print(path)


if __name__ == "__main__":
    try:
        main()
    except mgap.MgapError as error:
        raise SystemExit(f"compare_methods: {error}") from None
