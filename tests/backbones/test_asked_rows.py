"""What a model is being asked: noted around a generation, seen inside it, and gone afterwards."""

import threading

import pytest
from PIL import Image
from torch import nn

from mgap.backbones.asked_rows import Asked, asked_rows, asking
from mgap.backbones.prepared_pictures import Preparer
from mgap.errors import ImageError, PromptError, UnsupportedDecoding


@pytest.fixture
def some_model():
    return nn.Identity()


def prompts(model, count):
    return [row.prompt for row in asked_rows(model, count)]


def test_rows_are_seen_inside_the_block_only(some_model, picture):
    assert asked_rows(some_model, 1) == ()
    with asking(some_model, [Asked(picture, "One?"), Asked(None, "Two?")]):
        assert prompts(some_model, 2) == ["One?", "Two?"]
    assert asked_rows(some_model, 2) == ()
    with pytest.raises(ZeroDivisionError), asking(some_model, [Asked(picture, "One?")]):
        raise ZeroDivisionError
    assert asked_rows(some_model, 1) == ()


def test_beams_and_several_answers_repeat_rows_in_place(some_model, picture):
    with asking(some_model, [Asked(picture, "One?"), Asked(picture, "Two?")]):
        assert prompts(some_model, 6) == ["One?"] * 3 + ["Two?"] * 3
        for count in (1, 3):
            with pytest.raises(UnsupportedDecoding, match=f"2 rows are asked, and the model reads {count}"):
                asked_rows(some_model, count)


def test_a_question_inside_a_question_comes_back_to_the_first(some_model, picture):
    another = nn.Identity()
    with asking(some_model, [Asked(picture, "Outer?")]):
        with asking(another, [Asked(picture, "Other?")]):
            assert prompts(another, 1) == ["Other?"]
            assert asked_rows(some_model, 1) == ()
        with asking(some_model, [Asked(picture, "Inner?")]):
            assert prompts(some_model, 1) == ["Inner?"]
        assert prompts(some_model, 1) == ["Outer?"]


def test_a_thread_sees_what_it_asks_itself(some_model, picture):
    seen = []
    with asking(some_model, [Asked(picture, "Mine?")]):
        thread = threading.Thread(target=lambda: seen.append(asked_rows(some_model, 1)))
        thread.start()
        thread.join()
    assert seen == [()]


def test_a_file_has_a_name_and_a_picture_has_none(picture, picture_file):
    named, unnamed = Asked.of(picture_file, "What?"), Asked.of(picture, "What?")
    assert (named.name, unnamed.name) == ("street.png", None)
    assert Asked.of(str(picture_file), "What?").name == "street.png"
    assert named.picture == unnamed.picture == picture
    assert named.picture is named.picture


def test_a_picture_is_opened_when_somebody_looks(picture):
    opened = []

    def opener(name):
        opened.append(name)
        return picture.convert("RGBA")

    row = Asked.by_name("a/1.png", "What?", opener)
    assert (row.name, row.has_picture, opened) == ("a/1.png", True, [])
    assert row.picture.mode == row.picture.mode == "RGB"
    assert opened == ["a/1.png"]
    assert Asked.by_name(7, "What?", opener).name is None


def test_a_picture_that_is_not_there_is_refused(model, picture, tmp_path):
    row = Asked.of(None, "What is in the picture?")
    assert not row.has_picture
    with pytest.raises(PromptError, match="no picture is given with 'What is in the picture"):
        row.picture  # noqa: B018
    prepared = Asked.of(Preparer(model.backbone)(picture), "What?")
    assert prepared.has_picture
    with pytest.raises(ImageError, match="its own pixels are gone"):
        prepared.picture  # noqa: B018
    missing = Asked.of(tmp_path / "none.png", "What?")
    with pytest.raises(ImageError, match=f"{tmp_path}/none.png: no such image file"):
        missing.picture  # noqa: B018
    small = Asked.by_name("small.png", "What?", lambda _name: Image.new("RGB", (2, 2)))
    with pytest.raises(ImageError, match=r"small\.png: 2 x 2 pixels"):
        small.picture  # noqa: B018
