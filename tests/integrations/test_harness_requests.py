"""What a harness asks for is done as it is asked, or refused."""

import pytest
from PIL import Image

from mgap.errors import SettingError, UnsupportedRequest
from mgap.integrations.harness_requests import Request, pictures_of
from mgap.types import Decoding

PICTURE = Image.new("RGB", (16, 16))


def test_the_options_of_the_usual_pope_task_are_greedy_decoding():
    asked = {"max_new_tokens": 128, "temperature": 0.0, "top_p": 1.0, "num_beams": 1, "do_sample": False, "until": ["\n\n"]}
    assert Request.of(asked) == Request(Decoding(max_new_tokens=128), ("\n\n",))


@pytest.mark.parametrize(
    "asked", [{}, {"temperature": 0}, {"temperature": 0, "top_p": 0.7, "top_k": 1, "min_p": 0.2}, {"top_p": None}]
)
def test_without_a_temperature_decoding_is_greedy(asked):
    assert Request.of(asked) == Request(Decoding())


def test_a_temperature_samples_with_the_other_settings_of_sampling():
    asked = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "max_new_tokens": 16.0}
    wanted = Decoding(sample=True, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=3, max_new_tokens=16)
    assert Request.of(asked).decoding == wanted
    assert Request.of({"do_sample": True}).decoding == Decoding(sample=True)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"do_sample": False, "temperature": 0.2}, "contradiction"),
        ({"do_sample": True, "temperature": 0}, "contradiction"),
        ({"image_aspect_ratio": "pad"}, "image_aspect_ratio"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"max_new_tokens": 1.5}, "whole number"),
        ({"max_new_tokens": "many"}, "whole number"),
        ({"until": [""]}, "until"),
        ({"until": [7]}, "until"),
    ],
)
def test_what_cannot_be_done_as_it_is_asked_is_refused(asked, told):
    with pytest.raises(UnsupportedRequest, match=told):
        Request.of(asked)


def test_values_outside_their_range_are_refused_as_everywhere():
    with pytest.raises(SettingError):
        Request.of({"max_new_tokens": 0})


def test_an_answer_ends_before_the_first_stop_word_that_it_has():
    assert Request(Decoding(), (".", ",")).cut("Yes, there is. Or not.") == "Yes"
    assert Request(Decoding(), ("\n\n",)).cut("A dog\nand a cat") == "A dog\nand a cat"
    assert Request(Decoding()).cut("Yes, there is.") == "Yes, there is."
    assert Request.of({"until": " and"}).cut("A dog and a cat") == "A dog"


@pytest.mark.parametrize("visuals", [[PICTURE], [[PICTURE]], [PICTURE, None], PICTURE, (PICTURE,)])
def test_pictures_of_is_found(visuals):
    assert pictures_of(visuals, "here") == [PICTURE]


@pytest.mark.parametrize("visuals", [None, [], [None], [[]]])
def test_a_request_may_have_no_picture(visuals):
    assert pictures_of(visuals, "here") == []


def test_several_pictures_are_found_in_their_order():
    other = Image.new("RGB", (16, 16), "red")
    assert pictures_of([[other, PICTURE], None], "here") == [other, PICTURE]


@pytest.mark.parametrize(
    ("visuals", "told"),
    [
        (["clip.mp4"], "pope, document 3, comes with the file 'clip.mp4', a video"),
        ("clip.mp4", "video"),
        ([{"array": [0.0]}], "dict"),
    ],
)
def test_videos_and_sounds_are_refused(visuals, told):
    with pytest.raises(UnsupportedRequest, match=told):
        pictures_of(visuals, "pope, document 3,")
