"""Describe a folder of pictures with plain decoding and with MGAP, to see what the method changes before you rely on it.

    python examples/guard_captions.py                                        # a few drawn pictures, a pocket model
    python examples/guard_captions.py --images photos --model llava-hf/llava-1.5-7b-hf --out runs/photos
    python examples/guard_captions.py --images photos --annotations objects.json --out runs/photos

The engine of `mgap run` writes the captions in batches, each saved before the next begins. If it is interrupted, the same
command resumes. Without your own pictures it draws some of the pocket world, with annotations.

--annotations is a JSON object from a picture's file name to the objects in it, in COCO's names: {"street.jpg": ["person",
"car"]}. With it both are scored by CHAIR: the share of named objects that are not there, and of those there that are named.

It writes captions.jsonl into --out, one line per picture with both captions, and prints how many differ, the first of them, and
CHAIR with 95% intervals. Fewer invented objects at the cost of recall are no gain.
"""

import argparse
import json
from pathlib import Path

import mgap
from mgap.benchmarks.base import Benchmark
from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.picture_folder import PictureFolder
from mgap.errors import BenchmarkError
from mgap.io.progress import bars
from mgap.reports.scores import Scores, score
from mgap.run.config import Config
from mgap.run.engine import execute
from mgap.run.job import Job
from mgap.run.live_score import showing
from mgap.run.records import Run
from mgap.types import Sample

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
PLAIN, GUARDED = "plain", "MGAP"
PROMPT = "Please help me describe the image in detail."


def draw_pictures(folder: Path, count: int) -> tuple[Path, Path]:
    """Pictures of the pocket world and their annotations, in the format that yours should have."""
    from mgap.pocket.benchmark import TEST, scenes
    from mgap.pocket.scenes import render

    folder.mkdir(parents=True, exist_ok=True)
    shown = {f"{scene.seed}.png": scene for scene in scenes(TEST, count)}
    for name, scene in shown.items():
        render(scene).save(folder / name)
    (folder / "objects.json").write_text(json.dumps({name: scene.names for name, scene in shown.items()}, indent=1))
    return folder, folder / "objects.json"


def read_folder(images: Path, annotations: Path | None, prompt: str) -> Benchmark:
    """One caption prompt per picture; its truth is None without annotations."""
    if not images.is_dir():
        raise BenchmarkError(f"{images}: no such folder; name one that holds pictures")
    names = sorted(path.name for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
    lexicon = Lexicon.coco()
    objects = dict.fromkeys(names) if annotations is None else json.loads(annotations.read_text(encoding="utf-8"))
    if absent := [name for name in names if name not in objects]:
        raise BenchmarkError(f"{annotations}: nothing about {len(absent)} of {len(names)} pictures, first {absent[0]}")
    if others := sorted({thing for name in names for thing in objects[name] or ()} - set(lexicon.synonyms)):
        raise BenchmarkError(f"{annotations}: {others[0]!r} is none of COCO's 80 classes, and CHAIR looks for no others")
    samples = tuple(Sample(name, name, prompt, "captions", objects[name]) for name in names)
    return Benchmark(images.name, "captions", samples, PictureFolder(images), lexicon.to_json())


def describe(config: Config, benchmark: Benchmark, out: Path) -> Run:
    """Describe every picture under both methods, except those already described."""
    job = Job.prepare(config, out, benchmark=benchmark)
    with bars() as progress:
        run, worker = job.begin(mgap.load(config.model), progress=progress)
    with showing() as show:
        execute(run, worker, listener=lambda state: show(state, ""))
    return run


def write_captions(run: Run, path: Path) -> list[dict[str, str]]:
    """One line per picture; one that cannot be opened is reported and left out."""
    records = {method.label: run.records(method) for method in run.methods}
    rows = []
    for sample in run.samples:
        if failed := records[PLAIN][sample.id].failed or records[GUARDED][sample.id].failed:
            print(f"left out: {sample.image}: {failed}")
        else:
            rows.append({"image": sample.image, **{label: of[sample.id].text for label, of in records.items()}})
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return rows


def show_chair(scores: Scores) -> None:
    """Both methods on the same pictures, and their paired difference."""
    plain, ours = (scores.results[label].groups["captions"] for label in (PLAIN, GUARDED))
    print(f"\n{'':<8}{PLAIN:>22}{GUARDED:>22}   {GUARDED} less {PLAIN}")
    for name in ("CHAIRs", "CHAIRi", "recall"):
        change = ours.against.differences[name]
        interval = f"{100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
        print(f"{name:<8}{plain.rates[name]!s:>22}{ours.rates[name]!s:>22}   {interval}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="a hub id, a folder, or pocket/llava, pocket/qwen3-vl")
    parser.add_argument("--images", type=Path, help="a folder of pictures; default: some are drawn")
    parser.add_argument("--annotations", type=Path, help="JSON: what is in each picture, for CHAIR")
    parser.add_argument("--pictures", type=int, default=24, help="how many to draw, where you give none")
    parser.add_argument("--alpha", type=float, default=0.75, help="strength of MGAP; 0.75 is the paper's")
    parser.add_argument("--prior", help="a folder that `mgap fit` wrote; default: fitted on requests to describe")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("runs/captions"))
    args = parser.parse_args()

    images, annotations = args.images, args.annotations
    if images is None:
        images, annotations = draw_pictures(args.out.with_name(args.out.name + "-pictures"), args.pictures)
    guarded = {"method": "mgap", "label": GUARDED, "alpha": args.alpha, "prior": args.prior or {"prompts": "captions"}}
    keys = {"benchmark": "chair", "model": args.model, "images": str(images), "batch_size": 8}
    keys |= {"methods": [{"method": "vanilla", "label": PLAIN}, guarded], "decoding": {"max_new_tokens": args.max_new_tokens}}
    run = describe(Config.of(keys), read_folder(images, annotations, PROMPT), args.out)

    rows = write_captions(run, args.out / "captions.jsonl")
    changed = [row for row in rows if row[PLAIN] != row[GUARDED]]
    print(f"{args.out / 'captions.jsonl'}: {len(rows)} pictures, MGAP at alpha {args.alpha:g} changed {len(changed)} captions")
    for row in changed[:3]:
        print(f"\n{row['image']}\n  {PLAIN}: {row[PLAIN]}\n  {GUARDED}:  {row[GUARDED]}")
    if annotations is not None:
        show_chair(score(run))


if __name__ == "__main__":
    try:
        main()
    except mgap.MgapError as error:
        raise SystemExit(f"guard_captions: {error}") from None
