"""Describe a folder of pictures plainly and with MGAP, side by side, and see what the method changes before you rely on it.

    python examples/guard_captions.py                                        # a few drawn pictures, a pocket model
    python examples/guard_captions.py --images photos --model llava-hf/llava-1.5-7b-hf --out runs/photos
    python examples/guard_captions.py --images photos --annotations objects.json --out runs/photos

The captions come from the engine of `mgap run`: in batches, each on disk before the next begins. Stopped at any moment, it
goes on when it is started again. Without pictures of your own it draws some of the pocket world, with annotations.

--annotations is a JSON object from a picture's file name to what is in it, in COCO's names: {"street.jpg": ["person",
"car"]}. With it both are scored by CHAIR: which share of the named objects is not there, and how much of what is there is
named.

It writes captions.jsonl into --out, a line a picture with both captions, and prints how many differ, the first of them, and
CHAIR with 95% intervals. Fewer inventions that come with less recall are no gain.
"""

import argparse
import json
from pathlib import Path

import mgap
from mgap.data.benchmark import Benchmark
from mgap.data.lexicon import Lexicon
from mgap.data.pictures import PictureFolder
from mgap.errors import BenchmarkError
from mgap.reports.records import Run
from mgap.reports.scores import score
from mgap.run.config import Config
from mgap.run.engine import execute
from mgap.run.job import Job
from mgap.run.live import showing
from mgap.run.progress import bars
from mgap.types import Sample

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
PLAIN, GUARDED = "plain", "MGAP"


def draw_pictures(folder: Path, count: int = 24) -> tuple[Path, Path]:
    """Pictures of the pocket world and what is in them, in the form that is expected of yours."""
    from mgap.pocket.benchmark import TEST, scenes
    from mgap.pocket.scenes import render

    folder.mkdir(parents=True, exist_ok=True)
    objects = {}
    for scene in scenes(TEST, count):
        objects[f"{scene.seed}.png"] = sorted(scene.names)
        render(scene).save(folder / f"{scene.seed}.png")
    annotations = folder / "objects.json"
    annotations.write_text(json.dumps(objects, indent=1))
    return folder, annotations


def read_folder(images: Path, annotations: Path | None, prompt: str) -> Benchmark:
    """A request to describe a picture; its truth is None where there are no annotations."""
    if not images.is_dir():
        raise BenchmarkError(f"{images}: no such folder; name one that holds pictures")
    names = sorted(path.name for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
    lexicon, objects = Lexicon.coco(), None
    if annotations is not None:
        objects = json.loads(annotations.read_text(encoding="utf-8"))
        if absent := [name for name in names if name not in objects]:
            raise BenchmarkError(f"{annotations}: nothing about {len(absent)} of {len(names)} pictures, first {absent[0]}")
        if others := sorted({thing for name in names for thing in objects[name]} - set(lexicon.synonyms)):
            raise BenchmarkError(f"{annotations}: {others[0]!r} is none of COCO's 80 classes; CHAIR looks for these only")
    samples = tuple(Sample(name, name, prompt, "captions", objects and objects[name]) for name in names)
    return Benchmark(images.name, "captions", samples, PictureFolder(images), lexicon.to_json())


def describe(config: Config, benchmark: Benchmark, out: Path) -> Run:
    """Both captions of every picture; those that are there already are not asked for again."""
    job = Job.prepare(config, out, benchmark=benchmark)
    with bars() as told:
        run, worker = job.begin(mgap.load(config.model), told=told)
    with showing() as show:
        execute(run, worker, listener=lambda state: show(state, ""))
    return run


def write_captions(run: Run, path: Path) -> list[dict[str, str]]:
    """The pictures that every method described; a picture that cannot be opened is named and left out."""
    found = {arm.label: run.records(arm) for arm in run.arms}
    rows = []
    for sample in run.samples:
        records = {label: answers[sample.id] for label, answers in found.items()}
        if failed := [record.failed for record in records.values() if record.failed]:
            print(f"left out: {sample.image}: {failed[0]}")
            continue
        rows.append({"image": sample.image, **{label: record.text for label, record in records.items()}})
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="a hub id, a folder, or pocket/llava, pocket/qwen3-vl")
    parser.add_argument("--images", type=Path, help="a folder of pictures; default: a few are drawn")
    parser.add_argument("--annotations", type=Path, help="JSON: what is in each picture, for CHAIR")
    parser.add_argument("--prompt", default="Please help me describe the image in detail.")
    parser.add_argument("--alpha", type=float, default=0.75, help="strength of MGAP; 0.75 is the paper's")
    parser.add_argument("--prior", help="a folder that `mgap fit` wrote; default: fitted on requests to describe")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("runs/captions"))
    args = parser.parse_args()

    images, annotations = args.images, args.annotations
    if images is None:
        images, annotations = draw_pictures(args.out.with_name(args.out.name + "-pictures"))
    keys = {"benchmark": "chair", "model": args.model, "images": str(images), "batch_size": args.batch_size}
    guarded = {"method": "mgap", "label": GUARDED, "alpha": args.alpha, "prior": args.prior or {"prompts": "captions"}}
    methods = [{"method": "vanilla", "label": PLAIN}, guarded]
    config = Config.of({**keys, "methods": methods, "decoding": {"max_new_tokens": args.max_new_tokens}})
    run = describe(config, read_folder(images, annotations, args.prompt), args.out)

    rows = write_captions(run, args.out / "captions.jsonl")
    changed = [row for row in rows if row[PLAIN] != row[GUARDED]]
    print(
        f"{args.out / 'captions.jsonl'}: {len(rows)} pictures, {len(changed)} captions changed by MGAP at alpha {args.alpha:g}"
    )
    for row in changed[:3]:
        print(f"\n{row['image']}\n  {PLAIN}: {row[PLAIN]}\n  {GUARDED}:  {row[GUARDED]}")
    if annotations is None:
        return
    results = score(run).results
    print(f"\n{'':<8}{PLAIN:>22}{GUARDED:>22}   {GUARDED} less {PLAIN}")
    for name in ("CHAIRs", "CHAIRi", "recall"):
        plain, ours = (results[label].groups["captions"] for label in (PLAIN, GUARDED))
        change = ours.against.differences[name]
        interval = f"{100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
        print(f"{name:<8}{plain.rates[name]!s:>22}{ours.rates[name]!s:>22}   {interval}")


if __name__ == "__main__":
    try:
        main()
    except mgap.MgapError as error:
        raise SystemExit(f"guard_captions: {error}") from None
