"""Open pictures: a file or a PIL image in, an upright RGB image of a sane size out."""

from __future__ import annotations

import os
import warnings
from os import PathLike
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from mgap.errors import ImageError, one_line

MAX_PIXELS = 89_478_485  # Pillow's own warning line: a quarter of a GiB as RGB
MIN_SIDE = 8  # pixels; less than the smallest vision patch shows nothing
MAX_ASPECT = 200  # the dynamic-resolution processors refuse longer strips

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # Pillow's names; no EPS: decoding it starts a program

ImageSource = str | PathLike[str] | Image.Image


def open_image(source: ImageSource, name: str | None = None) -> Image.Image:
    """Decode a picture completely, turn it upright (EXIF) and convert it to RGB. Files of other FORMATS are not tried.

    `name` is what messages call it, where its path says nothing to the user.
    """
    if isinstance(source, Image.Image):
        name, image = name or "the image", source
    else:
        name = name or str(source)
        image = _decode(Path(source), name)
    _check_size(name, image)
    try:
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # of damaged EXIF as of decoders; and of the few modes that have no way to RGB
        raise ImageError(f"{name}: cannot be turned upright in RGB ({one_line(error)}); save it as PNG or JPEG") from error


def picture_size(path: str | PathLike[str]) -> tuple[int, int] | None:
    """Width and height as the file's header tells them, before EXIF turns them; None where no picture can be made out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=_known()) as image:
                size: tuple[int, int] = image.size
                return size
    except Exception:  # Pillow's plugins raise whatever a damaged header leads them to
        return None


def _known() -> list[str]:
    Image.init()
    return [kind for kind in FORMATS if kind in Image.OPEN]  # AVIF: in newer Pillows only


def _decode(path: Path, name: str) -> Image.Image:
    if not os.path.isfile(path):  # unlike Path's, false for a name that is too long
        if os.path.exists(path):
            raise ImageError(f"{name}: is a folder, or something else than an image file; name one picture")
        raise ImageError(f"{name}: no such image file; check the path")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(path, formats=_known())
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
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        raise ImageError(f"{name}: the picture is damaged ({one_line(error)}); fetch or export it again") from error


def _check_size(name: str, image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError(f"{name}: {width} x {height} is more than {MAX_PIXELS:,} pixels; scale it down first")
    if min(width, height) < MIN_SIDE:
        raise ImageError(f"{name}: {width} x {height} pixels; both sides must be at least {MIN_SIDE}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"{name}: {width} x {height} is longer than {MAX_ASPECT}:1; crop it first")
