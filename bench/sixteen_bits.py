"""What 16 bits change: answers that MGAP changes in bfloat16 and in float32, with and without rounded logits.

    python bench/sixteen_bits.py --scenes 500

For each pocket model and strength, among the yes/no questions of pocket-POPE's adversarial split (six a scene), how many first
words differ from plain decoding's:

- float32: in the model in float32.
- bfloat16: as mgap decodes, logits in float32. Against the same head with a correction of almost nothing, which leaves out
  answers that only broke a tie; in brackets against the model's own plain answers.
- logits rounded before: `exact=False`. Logits rounded before and after: as mgap did until 0.1.0.
"""

from __future__ import annotations

import argparse
import warnings

import measure
import torch

import mgap
from mgap.backbones.head_states import catch_states
from mgap.backbones.shared_vision import shared_pictures
from mgap.benchmarks.base import Benchmark, distinct_questions
from mgap.decoding.generate import generate
from mgap.decoding.model import Model
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction
from mgap.pocket.benchmark import TEST
from mgap.pocket.figures import fit_prior, mgap_at
from mgap.pocket.samples import pope_samples
from mgap.priors.subspace import Subspace
from mgap.run.evaluate import answer_first_words
from mgap.run.first_words import encode_rows
from mgap.types import Decoding

MODELS = ("pocket/llava", "pocket/qwen3-vl")
ALPHAS = (0.25, 0.75, 2.0, 6.0)
PLAIN, NEARLY = "plain", "nearly plain"
HEADS = ("model", "alpha", "float32", "bfloat16", "logits rounded before", "rounded before and after", "bfloat16 = float32")

Words = dict[str, dict[str, str]]  # by method, then by question


def first_words(model: Model, prior: Subspace, scenes: int) -> Words:
    methods: dict[str, mgap.MGAP | None] = {PLAIN: None, NEARLY: mgap.MGAP(prior, alpha=1e-30)}
    for alpha in ALPHAS:
        methods[f"{alpha:g}"] = mgap_at(prior, alpha)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # above 1 the prior's part flips its sign
            methods[f"{alpha:g} rounded"] = mgap.MGAP(prior, alpha=alpha, exact=False)
    return {name: dict(of) for name, of in answer_first_words(model, questions(scenes), methods).texts.items()}


def questions(scenes: int) -> Benchmark:
    return pope_samples(["adversarial"], scenes, first=TEST)


def rounded_twice(model: Model, prior: Subspace, scenes: int) -> tuple[Words, int]:
    """Words from corrected logits in the model's dtype, by strength, and the number of ties of plain decoding."""
    benchmark, backbone = questions(scenes), model.backbone
    samples = distinct_questions(benchmark.samples)
    states = []
    rows = [(sample.image, sample.prompt) for sample in samples]
    for inputs, _ in encode_rows(model, rows, benchmark.picture, 64):
        with catch_states(backbone) as caught, shared_pictures(backbone):
            generate(backbone, inputs, Decoding(max_new_tokens=1))
        states += caught
    head = backbone.probe_head()
    words: Words = {f"{alpha:g}": {} for alpha in ALPHAS}
    ties = done = 0
    with torch.no_grad():
        for h in states:
            own = head.own_product(h)
            best = own.float().topk(2).values
            ties += int((best[:, 0] == best[:, 1]).sum())
            for alpha in ALPHAS:
                correction = Correction(prior.basis, head, mgap_at(prior, alpha).settings, Tap())
                tokens = correction.step(h, own).to(own.dtype).argmax(-1).tolist()
                spelled = [backbone.tokenizer.decode([token], skip_special_tokens=True).strip() for token in tokens]
                of = zip(samples[done : done + len(h)], spelled, strict=True)
                words[f"{alpha:g}"].update({sample.id: word for sample, word in of})
            done += len(h)
    return words, ties


def changed(words: dict[str, str], plain: dict[str, str]) -> int:
    return sum(word != plain[name] for name, word in words.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--device")
    args = parser.parse_args()
    lines = []
    for name in MODELS:
        wide = mgap.load(name, device=args.device, dtype="float32")
        exact = first_words(wide, fit_prior(wide), args.scenes)
        half = mgap.load(name, device=args.device, dtype="bfloat16")
        prior = fit_prior(half)
        found, (before, ties) = first_words(half, prior, args.scenes), rounded_twice(half, prior, args.scenes)
        for alpha in (f"{alpha:g}" for alpha in ALPHAS):
            same = sum(found[alpha][key] == word for key, word in exact[alpha].items())
            lines.append([
                name, alpha, changed(exact[alpha], exact[PLAIN]),
                f"{changed(found[alpha], found[NEARLY])} ({changed(found[alpha], found[PLAIN])})",
                changed(found[f"{alpha} rounded"], found[PLAIN]), changed(before[alpha], found[PLAIN]),
                f"{same} of {len(exact[alpha])}",
            ])  # fmt: skip
        plain_same = sum(found[PLAIN][key] == word for key, word in exact[PLAIN].items())
        nearly_same = sum(found[NEARLY][key] == word for key, word in exact[PLAIN].items())
        print(
            f"{name}: {ties} ties of plain decoding in bfloat16; plain answers as in float32: {plain_same} of "
            f"{len(exact[PLAIN])}, with logits in float32 {nearly_same}",
            flush=True,
        )
    print(measure.table(HEADS, lines))


if __name__ == "__main__":
    main()
