"""Where methods move the states of a pocket model, and whether MGAP moves them towards the truth (docs/departure.md).

    python examples/representation/pocket.py --model pocket/llava --scenes 60 --captions 20 --out runs/representation

The bank is of development scenes; questions (adversarial split) and captions are about test scenes.
"""

import argparse
import json
from pathlib import Path

import mgap
from mgap.pocket.benchmark import DEVELOPMENT, calibration_prompts
from mgap.pocket.samples import chair_samples, pope_samples, true_captions
from mgap.registry import METHODS
from mgap.reports.representation import representation_tables
from mgap.reports.tables import markdown
from mgap.run.departure import STRENGTHS
from mgap.run.progress import bars
from mgap.run.representation import FILE, Captions, measure_representation
from mgap.states.bank import Bank

LENGTHS = {"code": {"length": 96}, "haltrapper": {"length": 64}}  # a pocket model's captions are no longer


def measure(model, names, *, scenes, captions, strengths=STRENGTHS, null_image="black336", batch_size=60, progress=None):
    known, asked = pope_samples(["adversarial"], scenes, first=DEVELOPMENT), pope_samples(["adversarial"], scenes)
    pictures = [known.picture(sample.image) for sample in known.samples]
    bank = Bank.collect(model, pictures, [sample.prompt for sample in known.samples], batch_size=batch_size)
    prior = mgap.Subspace.fit(model, calibration_prompts(50), null_image=null_image)
    methods = {}
    for name in names:
        given = {"prior": prior} if name == "mgap" else LENGTHS.get(name, {})
        methods[name] = METHODS.get(name).of(**given)
    described = chair_samples(captions)
    return measure_representation(
        model,
        asked,
        bank,
        known.samples,
        methods,
        prior,
        strengths,
        captions=Captions(described, true_captions(described.samples)),
        batch_size=batch_size,
        progress=progress,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava")
    parser.add_argument("--methods", nargs="+", default=["mgap", "vcd", "icd", "blind", "m3id", "code", "haltrapper"])
    parser.add_argument("--strengths", nargs="+", type=float, default=STRENGTHS)
    parser.add_argument("--null-image", default="black336", help="of the prior")
    parser.add_argument("--scenes", type=int, default=60, help="of the bank, and as many to ask about")
    parser.add_argument("--captions", type=int, default=20, help="scenes to describe")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with bars() as progress:
        found = measure(
            mgap.load(given.model),
            given.methods,
            scenes=given.scenes,
            captions=given.captions,
            strengths=given.strengths,
            null_image=given.null_image,
            progress=progress,
        )
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / FILE).write_text(json.dumps(found.to_json(), indent=1))
    for table in representation_tables(found):
        print(markdown(table))
