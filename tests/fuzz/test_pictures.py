"""Any file, in whatever format, is an upright RGB picture of a sane size, or is refused in a sentence that names it."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, features

from mgap.errors import ImageError
from mgap.inspector.dropped import Limits, open_dropped
from mgap.io.images import MAX_ASPECT, MAX_PIXELS, MIN_SIDE, open_image, picture_size
from tests.fuzz.damage import Refused, byte_files, outcome

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "TGA", "PCX", "SGI", "IM", "MSP", "DDS", "ICNS",
           "JPEG2000", "QOI", "XBM", "MPO", "AVIF", "PALM", "SPIDER", "DIB", "BLP")  # fmt: skip
MODES = tuple(mode for mode in Image.MODES if not mode.startswith("BGR;"))  # which older Pillows had, and cannot convert
GREY = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F", "La", "LA")
BOMB = b"\x89PNG\r\n\x1a\n"


def encoded():
    """A small picture in every format that Pillow writes, plain and with what formats have besides: EXIF, frames, levels."""
    picture, found = Image.effect_mandelbrot((24, 16), (-2, -1, 1, 1), 40).convert("RGB"), {}
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in FORMATS:
        for mode in MODES:
            file = io.BytesIO()
            try:
                begun = picture.convert("L") if mode in GREY else picture
                begun.convert(mode).save(file, name, **({"exif": exif} if name in ("JPEG", "PNG", "TIFF", "WEBP") else {}))
            except (OSError, KeyError, ValueError, DeprecationWarning):
                continue
            found[f"{name} {mode}"] = file.getvalue()
    for name, options in {"GIF": {}, "WEBP": {}, "TIFF": {"compression": "tiff_lzw"}, "PNG": {}}.items():
        if name != "WEBP" or features.check("webp"):
            file = io.BytesIO()
            picture.save(file, name, save_all=True, append_images=[picture.rotate(90), picture.rotate(180)], **options)
            found[f"{name} frames"] = file.getvalue()
    return found


ENCODED = encoded()


def check(found):
    if not isinstance(found, Refused):
        assert found.mode == "RGB"
        assert min(found.size) >= MIN_SIDE
        assert max(found.size) <= MAX_ASPECT * min(found.size)
        assert found.width * found.height <= MAX_PIXELS
        found.tobytes()


def png(width, height, depth=8, colour=2):
    """A file that claims a size, with next to no data behind it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return BOMB + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@given(st.sampled_from(sorted(ENCODED)).flatmap(lambda kind: byte_files(ENCODED[kind])))
def test_a_damaged_file(place, data):
    path = place / "street.jpg"  # whatever it is
    path.write_bytes(data)
    check(outcome(open_image, path, names="street.jpg"))
    size = outcome(picture_size, path)
    assert size is None or len(size) == 2


@given(st.binary(max_size=100))
@example(b"")
@example(BOMB)
@example(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\n")
def test_any_bytes(place, data):
    (place / "any.png").write_bytes(data)
    check(outcome(open_image, place / "any.png", names="any.png"))
    check(outcome(open_dropped, place / "any.png", names="any.png"))


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.sampled_from((1, 8, 16)), st.sampled_from((0, 2, 3, 4, 6)))
@example(9_000, 9_900, 16, 6)
@example(0, 0, 8, 2)
@example(60_000, 60_000, 8, 2)
@example(2**31 - 1, 1, 8, 0)
@example(89_000, 1_000, 1, 0)
def test_a_picture_that_claims_any_size(place, width, height, depth, colour):
    (place / "claims.png").write_bytes(png(width, height, depth, colour))
    check(outcome(open_image, place / "claims.png", names="claims.png"))
    check(outcome(open_dropped, place / "claims.png", Limits(), names="claims.png"))


@given(st.sampled_from(("I;16", "I;16L", "I;16B")), st.binary(min_size=512, max_size=512))
def test_grey_of_16_bits_is_its_high_bytes(mode, data):
    values = np.frombuffer(data, ">u2" if mode == "I;16B" else "<u2").reshape(16, 16)
    assert (np.asarray(open_image(Image.frombytes(mode, (16, 16), data))) == (values >> 8)[..., None]).all()


@given(st.sampled_from(MODES), st.integers(1, 40), st.integers(1, 40))
@example("LAB", 16, 16)
@example("RGBa", 16, 16)
def test_an_image_in_memory_of_any_mode_and_size(mode, width, height):
    check(outcome(open_image, Image.new(mode, (width, height))))


@given(st.binary(max_size=60))
@example(
    b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x05\x00\x00\x00\x01\x00\x00\x00\x1a\x00\x00\x00\x01\x00\x00\x00\x00"
)
def test_a_photograph_with_any_exif(place, exif):
    file = io.BytesIO()
    Image.new("RGB", (24, 16)).save(file, "JPEG", exif=b"Exif\x00\x00" + exif.removeprefix(b"Exif\x00\x00"))
    (place / "exif.jpg").write_bytes(file.getvalue())
    check(outcome(open_image, place / "exif.jpg", names="exif.jpg"))


def test_every_format_is_read_as_it_was_written(place):
    """Which the damaged ones begin from."""
    for data in ENCODED.values():
        (place / "whole").write_bytes(data)
        check(outcome(open_image, place / "whole"))
    assert len({kind.split()[0] for kind in ENCODED}) > 15


def test_what_is_no_file_is_refused(place):
    os.mkfifo(place / "pipe")
    (place / "circle").symlink_to(place / "circle")
    for path in (place, place / "pipe", place / "circle", place / "none", "x" * 300, "a/" * 3000, "/dev/null", "nul\0"):
        with pytest.raises(ImageError):
            open_image(path)
        assert picture_size(path) is None if path not in ("/dev/null", place / "pipe") else True
