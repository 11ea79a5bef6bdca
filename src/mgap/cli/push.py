"""`mgap push`: share a saved prior, on the hub or as a folder."""

from __future__ import annotations

from typing import Annotated

import typer

from mgap.errors import SettingError


def push(
    prior: Annotated[str, typer.Argument(metavar="PRIOR", help="Folder or hub repository with a saved prior (`mgap fit`).")],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Hub repository, such as user/llava-prior; created if needed.")],
    custom_generate: Annotated[
        bool,
        typer.Option(
            "--custom-generate",
            help="Add a model card, and code by which transformers decodes without mgap: generate(custom_generate=REPO).",
        ),
    ] = False,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Write the repository to this new folder instead of uploading it.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
) -> None:
    """Share a saved prior on the hub, or write the folder that would be uploaded.

    Example: mgap push priors/llava user/llava-prior --custom-generate
    """
    from mgap.backbones.write_checkpoint import refuse_existing
    from mgap.priors.custom_generate.repository import write_repository
    from mgap.priors.subspace import Subspace

    if out is None:
        print(Subspace.load(prior).push(repo, private=private, custom_generate=custom_generate))
        return
    if private:
        raise SettingError("--private is for the hub, and --out writes a folder here: leave one of them out")
    refuse_existing(out)
    loaded = Subspace.load(prior)
    if custom_generate:
        write_repository(loaded, out, repo)
    else:
        loaded.save(out)
    print(f"{out}: look at it, then leave --out away to upload it to {repo}")
