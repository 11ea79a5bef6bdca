import struct
import zlib

import pytest
from PIL import Image

from mgap.errors import ImageError
from mgap.io.images import MAX_PIXELS, open_image, open_in_turn, picture_size


def png_header(width, height):
    """A PNG that claims a size, with next to no data behind it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def test_a_picture_comes_back_as_rgb(tmp_path):
    Image.new("RGBA", (30, 20), (255, 0, 0, 128)).save(tmp_path / "a.png")
    image = open_image(tmp_path / "a.png")
    assert (image.mode, image.size) == ("RGB", (30, 20))


def test_a_rotated_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate by 90 degrees to show"
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg", exif=exif)
    assert open_image(tmp_path / "a.jpg").size == (20, 40)


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "CMYK", "I;16"])
def test_other_colour_modes_are_converted(mode):
    assert open_image(Image.new(mode, (16, 16))).mode == "RGB"


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
