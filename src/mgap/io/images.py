"""Open pictures: from a file or a PIL image to an upright RGB image of a usable size.

The rule for each of Pillow's modes, which docs/security.md repeats for users:

    RGB                      as it is
    1, L, P, CMYK, YCbCr,    converted by Pillow; an ICC profile is not applied. LAB goes to sRGB, by LittleCMS
    HSV, LAB
    LA, PA, RGBA, RGBX       the same, without the last channel: a transparent pixel keeps the colour that the file has for it
    La, RGBa                 divided by their alpha first, then as LA and RGBA
    I;16 and its orders      the high byte of each value, which is how Pillow reads 16-bit RGB
    I                        of a PNG, the same: older Pillows open 16-bit grey so. Any other is refused
    F, and whatever is new   refused: nothing says which value is white
"""

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
CONVERTED = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")  # modes, by Pillow
PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
GREY16 = ("I;16", "I;16L", "I;16B", "I;16N")
_BITS, _PHOTOMETRIC = 258, 262  # tags of TIFF

ImageSource = str | PathLike[str] | Image.Image
Opener = Callable[[Any], ImageSource]  # from a picture's name, or whatever stands for it, to the picture


def open_image(source: ImageSource, name: str | None = None) -> Image.Image:
    """Decode a picture completely, rotate it upright (EXIF) and convert it to RGB, by the rule above. Only FORMATS are tried.

    Error messages call the picture `name`; by default its path.
    """
    if isinstance(source, Image.Image):
        name, image = name or "the image", source
    else:
        name = name or str(source)
        image = _decode(Path(source), name)
    check_size(name, image.size)
    try:
        return _to_rgb(image, name)
    except ImageError:
        raise
    except Exception as error:  # damaged EXIF, a decoder's error, or a mode that cannot be converted to RGB
        raise ImageError(f"{name}: cannot be turned upright in RGB ({one_line(error)}); save it as PNG or JPEG") from error


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Upright, in RGB."""
    mode, tags = image.mode, getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    if mode in GREY16 and (tags.get(_BITS, (16,)) != (16,) or tags.get(_PHOTOMETRIC, 1) != 1):
        raise ImageError(  # Pillow neither scales 12 bits nor inverts 16
            f"{name}: a grey TIFF of another kind than 16 bits from black to white; save it as PNG"
        )
    if not (mode in CONVERTED or mode in PREMULTIPLIED or mode in GREY16 or (mode == "I" and image.format == "PNG")):
        raise ImageError(
            f"{name}: a picture in Pillow's mode {mode}, in which no value is known to be white; "
            "save it with 8 or 16 bits a channel"
        )
    upright: Image.Image = ImageOps.exif_transpose(image)  # a copy
    upright.info.pop("transparency", None)  # one colour's; it changes no pixel here, and Pillow would warn
    if mode in (*GREY16, "I"):
        import numpy as np  # late: TAB completion gets here

        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    elif mode in PREMULTIPLIED:
        upright = upright.convert(PREMULTIPLIED[mode])
    return upright if upright.mode == "RGB" else upright.convert("RGB")


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
                check_size(name, image.size)  # before any pixel is decoded
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


def check_size(name: str, size: tuple[int, int]) -> None:
    """Refuse a width and height that no picture may have here."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise ImageError(f"{name}: {width} x {height} is more than {MAX_PIXELS:,} pixels; scale it down first")
    if min(width, height) < MIN_SIDE:
        raise ImageError(f"{name}: {width} x {height} pixels; both sides must be at least {MIN_SIDE}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"{name}: {width} x {height} is longer than {MAX_ASPECT}:1; crop it first")
