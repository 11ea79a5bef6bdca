"""How many states of a pocket model leave those of plain decoding under each method; prints the table of docs/departure.md.

    python examples/departure/pocket.py --model pocket/llava --scenes 100 --out runs/departure

The bank is of development scenes, the questions are about test scenes, all of the adversarial split.
"""

import argparse
import json
from functools import lru_cache
from pathlib import Path

import mgap
from mgap.pocket.benchmark import DEVELOPMENT, TEST, calibration_prompts, pope
from mgap.pocket.scenes import make_scene, render
from mgap.pocket.steering import fit_steering
from mgap.registry import METHODS
from mgap.reports.records import Arm
from mgap.run.departure import STRENGTHS, DepartureWorker, prepare
from mgap.scoring.departure import departures
from mgap.types import Sample

LENGTHS = {"code": {"length": 96}, "haltrapper": {"length": 64}}  # a pocket model's captions are no longer


def ask(first, count):
    questions = enumerate(pope("adversarial", first, count))
    return [Sample(f"{first}/{n}", str(q.scene.seed), q.text, "adversarial", q.label) for n, q in questions]


@lru_cache(maxsize=64)
def picture(name):
    return render(make_scene(int(name)))


def measure(model, arms, folder, *, scenes, strengths=STRENGTHS, null_image="black336", batch_size=60, tell=print):
    """Records into the folder, and by label how many of how many have departed at each strength."""
    manifold = prepare(model, ask(DEVELOPMENT, scenes), picture, folder, batch_size=batch_size)
    plan = {"model": model.backbone.name, "scenes": scenes, "null_image": null_image, "departure": manifold.to_json()}
    (folder / "departure.json").write_text(json.dumps(plan, indent=1))
    prior = mgap.Subspace.fit(model, calibration_prompts(50), null_image=null_image)

    def build(arm):
        given = {"prior": prior} if arm.method == "mgap" else {}
        if arm.method == "asd":
            given = {"steering": fit_steering(model)}  # from captions of development scenes
        return None if arm.method == "vanilla" else METHODS.get(arm.method).of(**given, **arm.settings)

    worker, asked, found = DepartureWorker(model, picture, manifold, build, strengths=strengths), ask(TEST, scenes), {}
    for name in arms:
        with worker.using(Arm(name, name, LENGTHS.get(name, {}))) as work:
            records = [record for at in range(0, len(asked), batch_size) for record in work(asked[at : at + batch_size])]
        (folder / f"{name}.jsonl").write_text("".join(record.line() for record in records))
        found[name] = departures(records, manifold.tau)
        tell(f"{name:12}", f"of {len(records)}:", " ".join(f"{key}: {count}" for key, count in found[name].items()))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava")
    parser.add_argument(
        "--methods", nargs="+", default=["vanilla", "mgap", "vcd", "icd", "code", "haltrapper", "blind", "m3id"]
    )
    parser.add_argument("--strengths", nargs="+", type=float, default=STRENGTHS)
    parser.add_argument("--null-image", default="black336", help="of MGAP's prior")
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    measure(
        mgap.load(given.model),
        given.methods,
        given.out,
        scenes=given.scenes,
        strengths=given.strengths,
        null_image=given.null_image,
    )
