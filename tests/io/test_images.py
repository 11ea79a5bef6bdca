import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from mgap.errors import ImageError
from mgap.io.images import MAX_PIXELS, open_image, open_in_turn, picture_size


def png(width, height, data, *, depth=8, colour=2):
    """A PNG of these bytes, with any depth: Pillow writes no RGB of 16 bits."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def png_header(width, height):
    """A PNG that claims a size, with next to no data behind it."""
    return png(width, height, b"\0" * 100)


def wide_png(pixels, colour):
    """A PNG of 16 bits a channel: `pixels` are [height, width, channels]."""
    rows = pixels.astype(">u2").reshape(len(pixels), -1)
    return png(pixels.shape[1], len(pixels), b"".join(b"\0" + row.tobytes() for row in rows), depth=16, colour=colour)


def test_a_picture_comes_back_as_rgb(tmp_path):
    Image.new("RGBA", (30, 20), (255, 0, 0, 128)).save(tmp_path / "a.png")
    image = open_image(tmp_path / "a.png")
    assert (image.mode, image.size) == ("RGB", (30, 20))


def test_a_rotated_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate by 90 degrees to show"
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg", exif=exif)
    assert open_image(tmp_path / "a.jpg").size == (20, 40)


GREEN = (60, 180, 90)
RAMP = np.linspace(0, 65535, 32 * 16).round().astype(np.uint16).reshape(16, 32)


def filled(mode, colour):
    return Image.new(mode, (16, 16), colour)


def with_palette(mode="P"):
    """All pixels have entry 1, which is green."""
    image = filled("P", 1)
    image.putpalette([0, 0, 0, *GREEN])
    return image.convert(mode) if mode != "P" else image


def see_through(image, transparency):
    image.info["transparency"] = transparency
    return image


def from_green(*modes):
    image = Image.new("RGBA", (16, 16), (*GREEN, 128))
    for mode in modes:
        image = image.convert(mode)
    return image


SHOWN = {  # a picture of every mode, and the colour that it must have
    "1": (lambda: filled("1", 1), (255, 255, 255)),
    "L": (lambda: filled("L", 100), (100, 100, 100)),
    "LA": (lambda: filled("LA", (100, 0)), (100, 100, 100)),
    "La": (lambda: filled("LA", (200, 128)).convert("La"), (200, 200, 200)),
    "P": (with_palette, GREEN),
    "P, one colour transparent": (lambda: see_through(with_palette(), 1), GREEN),
    "P, colours transparent in part": (lambda: see_through(with_palette(), b"\xff\x20"), GREEN),
    "PA": (lambda: with_palette("PA"), GREEN),
    "RGB": (lambda: filled("RGB", GREEN), GREEN),
    "RGB, one colour transparent": (lambda: see_through(filled("RGB", GREEN), GREEN), GREEN),
    "RGBA": (lambda: filled("RGBA", (*GREEN, 0)), GREEN),
    "RGBa": (lambda: from_green("RGBa"), GREEN),
    "RGBX": (lambda: filled("RGBX", (*GREEN, 0)), GREEN),
    "CMYK": (lambda: from_green("RGB", "CMYK"), GREEN),
    "YCbCr": (lambda: from_green("RGB", "YCbCr"), GREEN),
    "HSV": (lambda: from_green("RGB", "HSV"), GREEN),
    "LAB": (lambda: from_green("RGB", "LAB"), GREEN),
    "I;16": (lambda: filled("I;16", 100 * 257), (100, 100, 100)),
    "I;16L": (lambda: filled("I;16L", 100 * 257), (100, 100, 100)),
    "I;16B": (lambda: filled("I;16B", 100 * 257), (100, 100, 100)),
}


@pytest.mark.parametrize("mode", SHOWN)
def test_a_picture_of_every_mode_has_its_colour_or_is_refused(mode):
    make, colour = SHOWN[mode]
    image = make()
    assert image.mode == mode.partition(",")[0]
    before = image.tobytes(), dict(image.info)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = open_image(image)
    assert (opened.mode, opened.size) == ("RGB", image.size)
    assert np.abs(np.asarray(opened, int) - colour).max() <= 3  # what conversions between colour spaces round
    assert (image.tobytes(), image.info) == before


@pytest.mark.parametrize("image", [filled("I", 100), filled("I", 60000), filled("F", 0.5)], ids=["I", "I, wide", "F"])
def test_a_mode_that_does_not_say_what_is_white_is_refused(image, tmp_path):
    image.save(tmp_path / "depth.tiff")
    for source in (image, tmp_path / "depth.tiff"):
        with pytest.raises(
            ImageError, match=f"mode {image.mode}, in which no value is known to be white; save it with 8 or 16"
        ):
            open_image(source)


def test_no_mode_of_pillow_is_left_out():
    tried = {mode.partition(",")[0] for mode in SHOWN} | {"I", "F", "I;16N"}
    assert tried >= {mode for mode in Image.MODES if not mode.startswith("BGR;")}


@pytest.mark.parametrize("name", ["grey.png", "grey.tiff", "big-endian.tiff"])
def test_grey_of_16_bits_is_scaled_to_8_as_colours_of_16_bits_are(tmp_path, name):
    if name == "grey.png":
        (tmp_path / name).write_bytes(wide_png(RAMP[..., None], colour=0))
    else:
        Image.frombytes(
            "I;16B" if "big" in name else "I;16", (32, 16), RAMP.astype(">u2" if "big" in name else "<u2").tobytes()
        ).save(tmp_path / name)
    (tmp_path / "colours.png").write_bytes(wide_png(np.stack([RAMP] * 3, -1), colour=2))
    (tmp_path / "alpha.png").write_bytes(wide_png(np.stack([RAMP] * 2, -1), colour=4))
    shown = np.asarray(open_image(tmp_path / name))
    assert (shown == (RAMP >> 8)[..., None]).all()
    assert (shown == np.asarray(open_image(tmp_path / "colours.png"))).all()
    assert (shown == np.asarray(open_image(tmp_path / "alpha.png"))).all()


def test_grey_of_16_bits_that_an_older_pillow_opens_as_32_is_scaled_too():
    image = Image.fromarray(RAMP.astype(np.int32))
    image.format = "PNG"
    assert (np.asarray(open_image(image)) == (RAMP >> 8)[..., None]).all()


@pytest.mark.parametrize(("tag", "usual", "other"), [(258, 16, 12), (262, 1, 0)], ids=["12 bits", "white is 0"])
def test_a_grey_tiff_that_pillow_gives_other_numbers_of_is_refused(tmp_path, tag, usual, other):
    path = tmp_path / "scan.tiff"
    Image.frombytes("I;16", (32, 16), RAMP.astype("<u2").tobytes()).save(path)
    entry = struct.pack("<HHI", tag, 3, 1)
    assert entry + struct.pack("<I", usual) in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(entry + struct.pack("<I", usual), entry + struct.pack("<I", other)))
    with pytest.raises(ImageError, match=r"scan\.tiff: a grey TIFF of another kind"):
        open_image(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ImageError, match=r"none\.png: no such image"):
        open_image(tmp_path / "none.png")


def test_a_folder_is_not_a_picture(tmp_path):
    with pytest.raises(ImageError, match="folder"):
        open_image(tmp_path)


def test_a_text_file_is_not_a_picture(tmp_path):
    (tmp_path / "a.png").write_text("hello")
    with pytest.raises(ImageError, match="not a picture"):
        open_image(tmp_path / "a.png")


def test_a_truncated_picture_is_damaged(tmp_path, picture):
    picture.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageError, match="damaged"):
        open_image(tmp_path / "a.png")


@pytest.mark.parametrize("side", [9_500, 14_000, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, side):
    assert side**2 > MAX_PIXELS
    (tmp_path / "bomb.png").write_bytes(png_header(side, side))
    with pytest.raises(ImageError, match="pixels"):
        open_image(tmp_path / "bomb.png")


@pytest.mark.parametrize("size", [(1, 1), (7, 100)])
def test_a_picture_too_small_to_show_anything_is_refused(size):
    with pytest.raises(ImageError, match="at least 8"):
        open_image(Image.new("RGB", size))


def test_a_strip_is_refused():
    with pytest.raises(ImageError, match="crop"):
        open_image(Image.new("RGB", (8 * 201, 8)))


def test_a_size_is_read_from_the_header_alone(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "turned.jpg", exif=exif)
    (tmp_path / "cut.png").write_bytes(png_header(30, 20)[:60])
    (tmp_path / "huge.png").write_bytes(png_header(12_000, 10_000))
    (tmp_path / "bomb.png").write_bytes(png_header(60_000, 60_000))
    (tmp_path / "none.png").write_bytes(b"no picture")
    (tmp_path / "empty.png").touch()
    names = ("turned.jpg", "cut.png", "huge.png", "bomb.png", "none.png", "empty.png", "missing.png", ".")
    sizes = [(40, 20), (30, 20), (12_000, 10_000), None, None, None, None, None]
    assert [picture_size(tmp_path / name) for name in names] == sizes


def test_what_pillow_would_hand_to_another_program_is_not_tried(tmp_path):
    path = tmp_path / "plot.eps"
    Image.new("RGB", (40, 40)).save(path)
    with pytest.raises(ImageError, match=r"plot\.eps: not a picture of a kind that is read"):
        open_image(path)
    assert picture_size(path) is None


def test_neighbours_of_one_name_share_a_picture():
    opened = []
    shown = list(open_in_turn(["a", "a", "b", "a"], lambda name: opened.append(name) or f"{name}.png"))
    assert shown == ["a.png", "a.png", "b.png", "a.png"]
    assert opened == ["a", "b", "a"]
