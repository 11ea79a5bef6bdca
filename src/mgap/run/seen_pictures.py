"""The pictures of a run, read or drawn again after it: each is refused unless its pixels are those that the model saw."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image

from mgap.backbones.prepared_pictures import picture_digest
from mgap.benchmarks.picture_folder import PictureFolder
from mgap.errors import ImageError
from mgap.io.images import open_image
from mgap.registry import WORLDS
from mgap.run.records import Run, RunMethod

NO_PICTURE = "this question was asked without a picture, as text alone; open one that shows a picture"


def digests_of(run: Run, method: RunMethod) -> dict[str, str]:
    """What one method was shown, by the picture's name; only pictures whose digest its records have."""
    images = {sample.id: sample.image for sample in run.samples}
    return {images[key]: record.image for key, record in run.records(method).items() if key in images and record.image}


def see_again(run: Run, name: str, digest: str | None) -> Image.Image:
    """The picture of this name; its `digest` is None in records of earlier versions, and then not compared."""
    if not name:
        raise ImageError(NO_PICTURE)
    world = str(run.plan["benchmark"]["name"]).partition("-")[0]
    return draw_again(run, world, name, digest) if world in WORLDS else read_again(run, name, digest)


def draw_again(run: Run, world: str, name: str, digest: str | None) -> Image.Image:
    """The picture as its world draws it, in whichever of its styles the run had."""
    draw: Any = getattr(WORLDS.get(world), "picture", None)
    if draw is None:
        raise ImageError(f"{name}: the world {world} does not draw single pictures again")
    for held_out in (False, True):
        image: Image.Image = draw(name, held_out=held_out, difficulty=run.plan.get("difficulty") or {})
        if digest in (None, picture_digest(image)):
            return image
    raise ImageError(f"{name}: the world draws it otherwise than when the run was made; make the run again")


def read_again(run: Run, name: str, digest: str | None) -> Image.Image:
    """The picture from the run's folder of pictures."""
    folder = pictures_folder(run)
    if folder is None:
        raise ImageError(f"{name}: the run does not tell in which folder its pictures are; make it again with --images FOLDER")
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\\" in name:
        raise ImageError(f"{name!r} is not inside the run's folder of pictures: only names below it are read")
    image = open_image(PictureFolder(folder)(name))
    if digest not in (None, picture_digest(image)):
        raise ImageError(f"{folder / place}: is another picture than the one that the run saw; put that one back")
    return image


def pictures_folder(run: Run) -> Path | None:
    """The folder of pictures that run.json, or the command in it, names."""
    if isinstance(images := run.plan.get("images"), str):
        return Path(images)
    try:
        words = shlex.split(str(run.plan.get("command", "")))
    except ValueError:  # an unclosed quotation
        return None
    given = [word.removeprefix("--images=") for word in words if word.startswith("--images=")]
    given += [value for option, value in pairwise(words) if option == "--images"]
    return Path(given[-1]) if given else None
