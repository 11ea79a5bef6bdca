"""Decode with evidence from outside the model: ConVis, AGLA, HALC, MARINE and CICD as presets of `mgap.Given`.

    python examples/bring_evidence.py                                    # 20 drawn pictures, pocket/llava
    python examples/bring_evidence.py --model pocket/qwen3-vl --pictures 40

In the drawn world the truth is known, so that stand-ins take the place of a detector, a mask and a text-to-image model; --error
makes a share of the detector's boxes wrong. For pictures of your own, replace them by models: docs/methods/given.md has
adapters for transformers' and diffusers' pipelines.

It prints accuracy and share of yes on adversarial questions, and CHAIRi and recall of captions, with 95% intervals over
pictures. The scenes are development scenes: choose settings with them, not conclusions.
"""

import argparse
from collections.abc import Sequence

import mgap
from mgap.io.progress import bars
from mgap.pocket.benchmark import DEVELOPMENT
from mgap.pocket.samples import chair_samples, pope_samples, scene_of
from mgap.pocket.scenes import Scene
from mgap.pocket.stand_ins import stand_in_evidence
from mgap.run.evaluate import answer_first_words, answer_in_full

LENGTH = 96  # tokens of a caption


def methods(model: mgap.Model, scenes: Sequence[Scene], error: float) -> dict[str, mgap.Given | None]:
    """Plain decoding, and the five with their published settings; ConVis has two."""
    evidence = stand_in_evidence(model, scenes, error=error, length=LENGTH)
    named = {preset: mgap.Given(evidence=brings, preset=preset) for preset, brings in evidence.items()}
    weak = mgap.Given(evidence=evidence["convis"], preset="convis", alpha=0.1)  # its authors' for questions
    return {"plain": None, "convis": named["convis"], "convis, alpha 0.1": weak, **named}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="pocket/llava or pocket/qwen3-vl")
    parser.add_argument("--pictures", type=int, default=20)
    parser.add_argument("--error", type=float, default=0.0, help="share of the detector's boxes that are wrong")
    args = parser.parse_args()

    model = mgap.load(args.model, dtype="float32")
    questions = pope_samples(("adversarial",), args.pictures, first=DEVELOPMENT)
    captions = chair_samples(args.pictures, first=DEVELOPMENT)
    names = dict.fromkeys(sample.image for sample in (*questions.samples, *captions.samples))
    tried = methods(model, [scene_of(name) for name in names], args.error)
    with bars() as progress:
        asked = answer_first_words(model, questions, tried, progress=progress)
        told = answer_in_full(model, captions, tried, max_new_tokens=LENGTH, batch_size=16, progress=progress)
    print(f"{'':<20}{'accuracy':>20}{'yes':>20}{'CHAIRi':>20}{'recall':>20}")
    for name in tried:
        rates, chair = asked.tallies(name)["adversarial"].rates(), told.tallies(name)["captions"].rates()
        print(f"{name:<20}{rates['accuracy']!s:>20}{rates['yes_ratio']!s:>20}{chair['CHAIRi']!s:>20}{chair['recall']!s:>20}")


if __name__ == "__main__":
    try:
        main()
    except mgap.MgapError as error:
        raise SystemExit(f"bring_evidence: {error}") from None
