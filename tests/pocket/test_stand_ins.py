"""Stand-ins for models outside: exact by construction, wrong on purpose, and evidence that decoding can use."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.benchmarks.tally import compare
from mgap.errors import ImageError, SettingError
from mgap.methods.given.brings import Fields, Listed, Pictured
from mgap.pocket.benchmark import DEVELOPMENT, scenes
from mgap.pocket.language import caption, mentions
from mgap.pocket.objects import NAMES
from mgap.pocket.samples import chair_samples
from mgap.pocket.scenes import render
from mgap.pocket.stand_ins import Redrawn, TrueBoxes, hull, masked, scene_from
from mgap.run.evaluate import answer_in_full


@pytest.fixture(scope="module")
def drawn():
    return list(scenes(DEVELOPMENT, 12))


def test_a_box_is_around_what_is_drawn(drawn):
    """A picture without the thing differs from the one with it inside the box only, up to its smoothed edge."""
    for scene in drawn[:4]:
        for number, thing in enumerate(scene.things):
            without = replace(scene, things=scene.things[:number] + scene.things[number + 1 :])
            rows, columns = (np.asarray(render(scene)) != np.asarray(render(without))).any(-1).nonzero()
            left, top, right, bottom = (96 * side for side in hull(thing))
            assert left - 2 <= columns.min() <= columns.max() <= right + 2
            assert top - 2 <= rows.min() <= rows.max() <= bottom + 2


def test_true_boxes_finds_the_words_that_are_there(drawn):
    detects = TrueBoxes(drawn)
    found = detects([render(scene) for scene in drawn], [NAMES] * len(drawn))
    for scene, boxes in zip(drawn, found, strict=True):
        assert sorted(box.word for box in boxes) == sorted(thing.name for thing in scene.things)
        assert all(0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1 for box in boxes)
    (few,) = detects([render(drawn[0])], [[drawn[0].names[0], "zebra crossing"]])
    assert {box.word for box in few} == {drawn[0].names[0]}
    with pytest.raises(ImageError, match="does not know the picture's scene"):
        detects([Image.new("RGB", (96, 96))], [NAMES])


def test_true_boxes_is_wrong_as_often_as_it_is_told(drawn):
    pictures = [render(scene) for scene in drawn]
    for error, least, most in ((0.0, 0.0, 0.0), (0.5, 0.2, 0.8), (1.0, 1.0, 1.0)):
        found = TrueBoxes(drawn, error=error)(pictures, [NAMES] * len(drawn))
        wrong = [box.word not in scene.names for scene, boxes in zip(drawn, found, strict=True) for box in boxes]
        assert least <= sum(wrong) / len(wrong) <= most
        assert found == TrueBoxes(drawn, error=error)(pictures[::-1], [NAMES] * len(drawn))[::-1]
    with pytest.raises(SettingError, match="error"):
        TrueBoxes(drawn, error=2)


def test_a_caption_is_drawn_with_what_it_names(drawn):
    for scene in drawn:
        rng = np.random.default_rng(scene.seed)
        text = caption(scene, None, rng)
        made = scene_from(text, 3)
        assert set(made.names) == set(mentions(text)) == set(mentions(caption(made, None, rng)))
        assert made.theme == scene.theme
        assert {name: made.count(name) for name in made.names} == {name: scene.count(name) for name in scene.names}


def test_a_caption_says_how_many_and_in_which_colour():
    scene = scene_from("The image shows a park. There is a red dog, three kites and a person in blue. The dog is left.", 0)
    assert scene.theme == "park"
    assert [(thing.name, thing.colour) for thing in scene.things if thing.name != "kite"] == [
        ("dog", "red"),
        ("person", "blue"),
    ]
    assert scene.count("kite") == 3
    assert scene_from("A toilet and a sink.", 0).theme == "bathroom"
    assert scene_from("Nothing at all.", 0).things == ()


def test_the_same_caption_and_seed_are_drawn_alike_and_each_number_otherwise():
    draws = Redrawn()
    (one,), (again,), (later,) = (draws(["A dog and a cat."], 2, seed) for seed in (1, 1, 2))
    assert one == again
    assert one[0] != one[1] == later[0]


def test_a_mask_leaves_the_words_things_and_the_whole_picture_without_any(drawn):
    scene = drawn[0]
    name = scene.names[0]
    kept, whole = np.asarray(masked(scene, [name])), np.asarray(render(scene))
    left, top, right, bottom = (round(96 * side) for side in hull(next(t for t in scene.things if t.name == name)))
    middle = (top + bottom) // 2, (left + right) // 2
    assert (kept[middle] == whole[middle]).all()
    assert 0 < (kept == 0).all(-1).mean() < 1
    assert masked(scene, ["zebra crossing"]) == render(scene)


def test_fields_and_lists_of_a_scene(drawn):
    scene = drawn[0]
    (row,) = asked = [mgap.backbones.asked_rows.Asked(render(scene), f"Is there a {scene.names[0]} in the image?")]
    (crops,) = Fields(None, TrueBoxes(drawn), vocabulary=NAMES)(asked)
    assert [crop.size for crop in crops.pictures] == sorted(crop.size for crop in crops.pictures)
    assert len(crops.pictures) == 4
    (text,) = Listed(TrueBoxes(drawn), NAMES)(asked)
    assert all(name in text.text for name in scene.names)
    assert text.text.endswith(f"Based on this, {row.prompt[0].lower()}{row.prompt[1:]}")


@pytest.mark.long
def test_captions_that_invent_things_invent_fewer_against_pictures_of_themselves():
    model = mgap.load("pocket/qwen3-vl", device="cpu", dtype=torch.float32)
    asked, how = chair_samples(48, first=DEVELOPMENT), {"max_new_tokens": 96, "batch_size": 16}
    plain = answer_in_full(model, asked, {"plain": None}, **how).texts["plain"]
    inventing = [sample for sample in asked.samples if set(mentions(plain[sample.id])) - set(sample.truth)]
    asked = replace(asked, samples=tuple(inventing))
    method = mgap.Given(evidence=Pictured(model, Redrawn(), length=96), preset="convis")
    told = answer_in_full(model, asked, {"plain": None, "given": method}, **how)
    difference = compare(told.tallies("given")["captions"], told.tallies("plain")["captions"]).differences["CHAIRi"]
    assert difference.high < 0, difference
