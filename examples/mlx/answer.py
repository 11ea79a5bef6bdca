"""Ask a model of mlx-vlm about a picture, plainly and with MGAP, under a prior of transformers or of its own.

    python examples/mlx/answer.py                                   # a pocket model, on a drawn picture
    python examples/mlx/answer.py --model mlx-community/Qwen3-VL-8B-Instruct-4bit --prior priors/qwen3-vl --image street.jpg

On an Apple machine MLX takes its GPU, on Linux the CPU. Without `--prior` it is fitted now, from the states of this model.
"""

import argparse

import mgap
from mgap.io.images import open_image
from mgap.pocket.benchmark import every_calibration_prompt, pope
from mgap.pocket.scenes import render


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pocket/llava", help="folder, hub id or embedded model")
    parser.add_argument("--prior", help="folder or hub repository of a saved prior; otherwise it is fitted now")
    parser.add_argument("--prompts", type=int, default=20, help="prompts to fit it from")
    parser.add_argument("--image", help="a picture; otherwise one is drawn")
    parser.add_argument("--prompt", default="Please describe this image.")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.75, 1.0])
    given = parser.parse_args()
    from mgap.integrations.mlx import MlxModel  # late: --help needs no MLX

    image = open_image(given.image) if given.image else render(next(iter(pope("adversarial", count=1))).scene)
    model = MlxModel.load(given.model)
    if given.prior:
        prior = mgap.Subspace.load(given.prior)
    else:
        prompts = every_calibration_prompt() if given.model.startswith("pocket/") else mgap.default_prompts()
        prior = model.fit(prompts[: given.prompts], rank=3)
    print("plain:", model.answer(image, given.prompt, max_new_tokens=60))
    for alpha in given.alpha:
        with model.using(mgap.MGAP(prior, alpha=alpha)):
            print(f"alpha {alpha:g}:", "".join(model.stream(image, given.prompt, max_new_tokens=60)).strip())


if __name__ == "__main__":
    main()
