"""`mgap fit`: learn a model's language prior and save it."""

from __future__ import annotations

from typing import Annotated

import typer

from mgap.cli import completion
from mgap.cli.options import Device, Dtype, ModelName, Revision, TrustRemoteCode, load_model, progress
from mgap.errors import SettingError


def fit(
    model: ModelName,
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write.")],
    prompts: Annotated[str | None, typer.Option(help="Text file, one prompt a line; default: the package's own.")] = None,
    rank: Annotated[str, typer.Option(help="Number of directions, or auto.")] = "5",
    null_image: Annotated[str, typer.Option(help="black336, black_same_size, mean_colour or no_image.")] = "black336",
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT of the pictures, for black_same_size.")] = None,
    svd: Annotated[
        str,
        typer.Option(autocompletion=completion.words("exact", "lanczos", "randomized"), help="exact, lanczos or randomized."),
    ] = "exact",
    batch_size: Annotated[int | None, typer.Option(help="Prompts a forward; default: 64 on a card, 16 on a CPU.")] = None,
    push: Annotated[str | None, typer.Option(help="Also upload to this hub repository.")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Run prompts with a null image and keep the directions along which the last state varies.

    Example: mgap fit --model Qwen/Qwen3-VL-8B-Instruct --out priors/qwen3-vl
    """
    from mgap.backbones.null_images import NULL_IMAGES
    from mgap.io.prompt_files import read_prompts
    from mgap.priors.prompts import default_prompts
    from mgap.priors.spectrum import check_solver
    from mgap.priors.subspace import Subspace

    if null_image not in NULL_IMAGES:
        raise SettingError(f"unknown null image {null_image!r}: choose from {', '.join(NULL_IMAGES)}")
    check_solver(svd)
    if batch_size is not None and batch_size < 1:
        raise SettingError(f"batch_size={batch_size} must be at least 1")
    directions = _parse_rank(rank)
    total = sum(1 for _ in read_prompts(prompts)) if prompts else None  # reads the file once, to find mistakes early
    source = read_prompts(prompts) if prompts else default_prompts()
    loaded = load_model(model, device, dtype, revision, trust_remote_code)
    with progress("prompts", total or len(default_prompts())) as report:
        found = Subspace.fit(
            loaded,
            source,
            directions,
            null_image=null_image,
            size=_parse_size(size),
            svd=svd,
            batch_size=batch_size,
            progress=report,
        )
    found.save(out)
    share = 100 * found.explained_variance
    print(f"{out}: rank {found.rank} of {found.hidden_size}, {found.count} prompts, {share:.1f}% of their variance")
    if push:
        print(found.push(push))


def _parse_rank(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise SettingError(f"rank={text} must be a whole number of at least 1, or auto")
    return int(text)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise SettingError(f"size={text} must be WIDTHxHEIGHT, such as 640x480")
    return int(width), int(height)
