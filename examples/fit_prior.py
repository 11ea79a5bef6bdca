"""Fit a prior on your own prompts, inspect it, compare it with the default one, save it, load it, and answer with it.

    python examples/fit_prior.py                         # a pocket model, and the prompts beside this script
    python examples/fit_prior.py --model llava-hf/llava-1.5-7b-hf --prompts mine.txt --image street.jpg

The prompts are a text file, one per line; they are asked about an empty picture, so they need no answers and no pictures.

It prints how much of the prompts' variance each direction explains and how many directions stand out from noise; the angles to
the prior of the package's own prompts (0 degrees: the same), with the share of one that lies in the other and what it would be
by chance; and the answer to a question, plain and with MGAP at two strengths.
"""

import argparse
from pathlib import Path

from PIL import Image

import mgap
from mgap.diagnosis.principal_angles import Overlap
from mgap.diagnosis.subspace_analysis import Variation
from mgap.io.progress import bars

HERE = Path(__file__).parent


def fit(model: mgap.Model, label: str, prompts: list[str], rank: int, null_image: str) -> mgap.Subspace:
    """Fit a prior with a progress bar."""
    with bars() as progress:
        return mgap.Subspace.fit(
            model, prompts, rank, null_image=null_image, progress=lambda done: progress(label, done, len(prompts))
        )


def show_spectrum(prior: mgap.Subspace) -> None:
    """How the blind states vary: one direction per line, and what the first K explain together."""
    spectrum = Variation.of(prior)
    print(f"\n{prior.count} prompts, K = {prior.rank} of {prior.hidden_size} directions")
    print("direction   share   together")
    for number in range(prior.rank):
        print(f"{number + 1:>9} {100 * spectrum.share[number]:>6.1f}% {100 * spectrum.cumulative[number]:>9.1f}%")
    print(f"directions that stand out from noise (rank auto): {spectrum.auto_rank or 'none'}")


def show_overlap(own: mgap.Subspace, default: mgap.Subspace) -> None:
    """The angles between two priors."""
    overlap = Overlap.of(own.basis, default.basis)
    angles = ", ".join(f"{angle:.0f}" for angle in overlap.degrees)
    print(f"\nangles to the prior of the default prompts: {angles} degrees")
    print(f"shared with it: {100 * overlap.shared:.0f}% (two random subspaces: {100 * overlap.chance:.0f}%)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="a hub id, a folder, or pocket/llava, pocket/qwen3-vl")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.txt", help="a text file, one prompt a line")
    parser.add_argument("--rank", type=int, default=5, help="K, directions to keep")
    parser.add_argument("--null-image", default="black336", help="the empty picture: see `mgap ls null-images`")
    parser.add_argument("--image", help="a picture to ask about; default: a drawn bathroom, without a cup")
    parser.add_argument("--question", default="Is there a cup in the image?")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.75, 4], help="strengths; 0.75 is the paper's")
    parser.add_argument("--out", type=Path, default=Path("priors/mine"))
    args = parser.parse_args()

    prompts = list(mgap.read_prompts(args.prompts))  # an unreadable file is refused before a model is loaded
    model = mgap.load(args.model)
    own = fit(model, "your prompts", prompts, args.rank, args.null_image)
    show_spectrum(own)
    show_overlap(own, fit(model, "default prompts", mgap.default_prompts(), args.rank, args.null_image))

    own.save(args.out)
    prior = mgap.Subspace.load(args.out)  # or the hub repository that own.push(...) wrote to
    print(f"\nsaved to {args.out}, made with {prior.identity.name}; another model is refused")

    image = args.image or drawn_picture()
    print(f"\n{args.question}")
    print(f"plain       {model.answer(image, args.question, max_new_tokens=32)}")
    for alpha in args.alpha:
        with model.using(mgap.MGAP(prior, alpha=alpha)):
            print(f"alpha {alpha:<5g} {model.answer(image, args.question, max_new_tokens=32)}")


def drawn_picture() -> Image.Image:
    """A picture of the pocket world, if you have none at hand."""
    from mgap.pocket.scenes import make_scene, render

    return render(make_scene(200_000))


if __name__ == "__main__":
    try:
        main()
    except mgap.MgapError as error:
        raise SystemExit(f"fit_prior: {error}") from None
