"""Open pictures: from a file or a PIL image to an upright RGB image of a usable size."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from mgap.errors import ImageError, one_line
from mgap.io.regular_files import regular

MAX_PIXELS = 89_478_485  # where Pillow starts to warn: a quarter of a GiB as RGB
MIN_SIDE = 8  # pixels; smaller than the smallest vision patch
MAX_ASPECT = 200  # the dynamic-resolution processors refuse longer strips

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # Pillow's names; not EPS, whose decoder starts a program

ImageSource = str | PathLike[str] | Image.Image
Opener = Callable[[Any], ImageSource]  # from a picture's name, or whatever stands for it, to the picture


def open_image(source: ImageSource, name: str | None = None) -> Image.Image:
    """Decode a picture completely, rotate it upright (EXIF) and convert it to RGB. Only FORMATS are tried.

    Error messages call the picture `name`; by default its path.
    """
    if isinstance(source, Image.Image):
        name, image = name or "the image", source
    else:
        name = name or str(source)
        image = _decode(Path(source), name)
    _check_size(name, image)
    try:
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # damaged EXIF, a decoder's error, or a mode that cannot be converted to RGB
        raise ImageError(f"{name}: cannot be turned upright in RGB ({one_line(error)}); save it as PNG or JPEG") from error


def open_in_turn(names: Iterable[Hashable], picture: Opener) -> Iterator[ImageSource]:
    """The picture of every name, in order. Neighbours of the same name share one picture, so sort by name."""
    return map(lru_cache(maxsize=1)(picture), names)


def picture_size(path: str | PathLike[str]) -> tuple[int, int] | None:
    """Width and height from the file's header, before EXIF rotation; None if it is not a readable picture."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with open(path, "rb", opener=regular) as file, Image.open(file, formats=_readable_formats()) as image:
                size: tuple[int, int] = image.size
                return size
    except Exception:  # Pillow's plugins raise anything on a damaged header
        return None


def _readable_formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]  # only newer Pillows read AVIF


def _decode(path: Path, name: str) -> Image.Image:
    if not os.path.isfile(path):  # Path.is_file raises on a name that is too long
        if os.path.exists(path):
            raise ImageError(f"{name}: is a folder, or something else than an image file; name one picture")
        raise ImageError(f"{name}: no such image file; check the path")
    try:
        with open(path, "rb", opener=regular) as file:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                image: Image.Image = Image.open(file, formats=_readable_formats())
            with image:
                _check_size(name, image)  # before any pixel is decoded
                image.load()
        return image
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise ImageError(f"{name}: more than {MAX_PIXELS:,} pixels once decoded; scale it down first") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{name}: not a picture of a kind that is read ({', '.join(FORMATS)}); convert it to PNG or JPEG"
        ) from None
    except ImageError:
        raise
    except Exception as error:  # Pillow's decoders raise anything on a damaged file
        raise ImageError(f"{name}: the picture is damaged ({one_line(error)}); fetch or export it again") from error


def _check_size(name: str, image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError(f"{name}: {width} x {height} is more than {MAX_PIXELS:,} pixels; scale it down first")
    if min(width, height) < MIN_SIDE:
        raise ImageError(f"{name}: {width} x {height} pixels; both sides must be at least {MIN_SIDE}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"{name}: {width} x {height} is longer than {MAX_ASPECT}:1; crop it first")
