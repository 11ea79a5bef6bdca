"""A dropped file is opened as a picture or refused by a sentence with its own name; no other file of the server is read."""

import io
import json
import os
import struct
import sys
import zlib
from subprocess import PIPE

import httpx
import numpy as np
import pytest
from PIL import Image

from mgap.errors import ImageError, SettingError
from mgap.inspector.dropped import NOT_DROPPED, Limits, open_dropped
from mgap.io.images import MAX_PIXELS
from tests import processes

META = {"_type": "gradio.FileData"}
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40"><rect width="40" height="40"/></svg>'


def png(width=40, height=30, colour=(200, 30, 30)):
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, format="PNG")
    return file.getvalue()


def promised(width, height):
    """A PNG whose header promises so many pixels, and that holds none."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def animated():
    file = io.BytesIO()
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue", "green")]
    frames[0].save(file, format="GIF", save_all=True, append_images=frames[1:], duration=100)
    return file.getvalue()


@pytest.fixture
def drop(tmp_path):
    """Leave a file as Gradio does: under its own name, in a folder with a meaningless one."""

    def leave(name, content):
        path = tmp_path / "4f1c9b" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    return leave


def test_a_picture_is_opened_upright_and_in_rgb(drop):
    sideways = Image.Exif()
    sideways[274] = 6  # orientation: a quarter turn
    file = io.BytesIO()
    Image.new("L", (40, 20), 90).save(file, format="JPEG", exif=sideways)
    image = open_dropped(drop("cat.jpg", file.getvalue()))
    assert (image.mode, image.size) == ("RGB", (20, 40))


def test_of_an_animation_the_first_frame_is_taken(drop):
    image = open_dropped(drop("party.gif", animated()))
    assert np.asarray(image)[10, 10].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("notes.txt", b"no picture at all", r"of a kind that is read \(PNG, .*\); convert it to PNG or JPEG"),
        ("empty.png", b"", "not a picture of a kind that is read"),
        ("logo.svg", SVG, "not a picture of a kind that is read"),
        ("plot.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\n", "of a kind that is read"),
        ("half.png", png(400, 400)[:300], "the picture is damaged"),
        ("wide.png", promised(10_000, 6_000), r"10000 x 6000 pixels, and at most 50,000,000 are taken; scale it down first"),
        ("bomb.png", promised(60_000, 60_000), "more than .* pixels once decoded; scale it down first"),
        ("dot.png", png(2, 2), "both sides must be at least 8"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_own_name(drop, name, content, sentence):
    with pytest.raises(ImageError, match=sentence) as refused:
        open_dropped(drop(name, content))
    assert str(refused.value).startswith(f"{name}: ")
    assert "4f1c9b" not in str(refused.value)


def test_the_limits_are_those_that_were_given(drop):
    path = drop("cat.png", png(40, 30))
    assert open_dropped(path, Limits(megabytes=0.001, pixels=1200)).size == (40, 30)
    with pytest.raises(ImageError, match=r"cat\.png: 40 x 30 pixels, and at most 1,199 are taken"):
        open_dropped(path, Limits(pixels=1199))
    noise = drop("noise.bmp", b"\0" * 1_700_000)
    with pytest.raises(ImageError, match=r"noise\.bmp: 1\.6 MB, and at most 1\.5 MB are taken"):
        open_dropped(noise, Limits(megabytes=1.5))


def test_a_file_that_is_gone_is_named(drop):
    path = drop("cat.png", png())
    path.unlink()
    with pytest.raises(ImageError, match=r"^cat\.png: the file is no longer there; drop it again"):
        open_dropped(path)


@pytest.mark.parametrize("wrong", [{"megabytes": 0}, {"megabytes": float("nan")}, {"pixels": 0}, {"pixels": MAX_PIXELS + 1}])
def test_limits_that_mean_nothing_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Limits(**wrong)


# --- with a running server ------------------------------------------------------------------------------------------


PAGE = """
import gradio as gr

from mgap.errors import ImageError
from mgap.inspector.dropped import DroppedPicture, Limits, open_dropped


def look(path):
    if path is None:
        return "nothing"
    try:
        image = open_dropped(path)
    except ImageError as error:
        raise gr.Error(str(error), print_exception=False) from None
    return f"{image.width} x {image.height}"


with gr.Blocks() as page:
    picture, said = DroppedPicture(), gr.Textbox()
    gr.Button().click(look, picture, said, api_visibility="private")
_, address, _ = page.launch(
    server_name="127.0.0.1", max_file_size=Limits(megabytes=0.5).bytes, quiet=True, prevent_thread_lock=True
)
print(address, flush=True)
page.block_thread()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A page of its own process, as `mgap inspect` has it; what Gradio and pandas warn of there is theirs."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.py").write_text(PAGE)
    environment = {**os.environ, "GRADIO_TEMP_DIR": str(folder / "uploads"), "GRADIO_ANALYTICS_ENABLED": "False"}
    with open(folder / "log", "wb") as log:
        command = [sys.executable, str(folder / "page.py")]
        with processes.started(command, stdout=PIPE, stderr=log, env=environment, text=True) as process:
            address = process.stdout.readline().strip()
            assert address, (folder / "log").read_text()
            with httpx.Client(base_url=f"{address}gradio_api", timeout=20) as client:
                yield client


def upload(server, name, content):
    return server.post("/upload", files={"files": (name, content)})


def ask(server, payload):
    """What the page would be told: (it worked, the text or the error's sentence)."""
    session = {"session_hash": "a1b2c3"}
    joined = server.post("/queue/join", json={"data": [payload], "fn_index": 0, "trigger_id": None, **session})
    assert joined.status_code == 200, joined.text
    with server.stream("GET", "/queue/data", params=session) as events:
        for line in events.iter_lines():
            told = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
            if told.get("msg") == "process_completed":
                output = told["output"]
                return told["success"], output["data"][0] if told["success"] else output["error"]
    raise AssertionError("the server said nothing")


def test_an_uploaded_picture_arrives_and_a_broken_one_is_a_sentence(server):
    for name, content, answer in [
        ("cat.png", png(), (True, "40 x 30")),
        ("half a cat.png", png(400, 400)[:300], (False, "half a cat.png: the picture is damaged")),
        ("logo.svg", SVG, (False, "logo.svg: not a picture of a kind that is read")),
    ]:
        (path,) = upload(server, name, content).json()
        worked, said = ask(server, {"path": path, "orig_name": name, "meta": META})
        assert worked == answer[0]
        assert said.startswith(answer[1]), said
        assert path.rsplit("/", 1)[0] not in said


def test_nothing_dropped_is_nothing(server):
    assert ask(server, None) == (True, "nothing")


@pytest.mark.parametrize("meta", [{"meta": META}, {}], ids=["as a file", "as plain data"])
@pytest.mark.parametrize("path", ["/etc/passwd", "{folder}/../../../../../../../etc/passwd", "pyproject.toml"])
def test_a_file_that_was_not_uploaded_is_not_read(server, path, meta):
    (uploaded,) = upload(server, "cat.png", png()).json()
    worked, said = ask(server, {"path": path.format(folder=uploaded.rsplit("/", 1)[0]), **meta})
    assert not worked
    assert said == (None if meta else NOT_DROPPED)  # Gradio refuses the first; the second passes its check, not ours


@pytest.mark.parametrize("meta", [{"meta": META}, {}], ids=["as a file", "as plain data"])
def test_an_address_is_not_fetched(server, meta):
    asked = ask(server, {"path": f"{server.base_url}/config", "url": f"{server.base_url}/config", **meta})
    assert asked == (False, NOT_DROPPED)


def test_a_picture_inside_the_payload_is_not_taken_for_a_dropped_one(server):
    assert ask(server, {"path": None, "url": "data:image/png;base64,AAAA"}) == (False, NOT_DROPPED)


def test_an_upload_over_the_limit_is_stopped_on_its_way_by_a_sentence(server):
    answer = upload(server, "large.png", b"\0" * 600_000)
    assert answer.status_code == 413
    assert "maximum allowed size of 524288 bytes" in answer.text


@pytest.mark.long
def test_gradio_writes_nothing_beside_the_source():
    from pathlib import Path

    import mgap.inspector

    assert not list(Path(mgap.inspector.__file__).parent.glob("*.pyi"))
