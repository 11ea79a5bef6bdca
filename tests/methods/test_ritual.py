"""RITUAL: against itself written out; its six transformations one by one; what the draw depends on."""

import itertools
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.backbones.picture_layout import from_pictures, to_pictures
from mgap.backbones.picture_seeds import picture_seed
from mgap.errors import ModelError, PromptError, SettingError
from mgap.methods.ritual import JITTER, TRANSFORMS, blur, crop, draw_box, draw_factors, jitter, rotate
from tests.methods.following import NEW, QUESTIONS, follow
from tests.reference import ritual as reference

SIZES = [(28, 28), (40, 24), (17, 30)]  # width, height


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def noise(width, height):
    return np.random.default_rng(width).random((height, width, 3), dtype=np.float32)


def tensor(rows):
    """[1, 3, height, width]."""
    return torch.tensor(np.array(rows, dtype=np.float32)).permute(2, 0, 1).unsqueeze(0)


def rows_of(picture):
    return picture.permute(1, 2, 0).double().tolist()


def branch_pixels(exact, pictures, **settings):
    main = exact.backbone.encode(pictures, ["What?"] * len(pictures))
    branch = mgap.RITUAL(**settings).branch(exact.backbone, main)
    return [branch["pixel_values"][rows] for rows in exact.backbone.pictures(main)]


@pytest.mark.both_families
@pytest.mark.parametrize(
    ("alpha", "beta", "transform"), [(3.0, 0.1, "random"), (9.0, 0.0, "colour_jitter")], ids=["published", "strong"]
)
def test_it_is_what_its_equations_say(exact, picture, alpha, beta, transform):
    method = mgap.RITUAL(alpha=alpha, beta=beta, transform=transform)

    def branch(main, _question):
        (whole,) = to_pictures("ritual", exact.backbone, main)
        seed = picture_seed(exact.backbone, {"pixel_values": main["pixel_values"]}, salt="ritual 42")
        other = tensor(reference.transformed(rows_of(whole[0]), transform, seed)).expand_as(whole)
        return {**main, "pixel_values": from_pictures("ritual", exact.backbone, [other], main["pixel_values"])}

    follow(exact, picture, method, branch, reference.adding(alpha, beta))


# --- the six ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_transformation_is_what_its_reference_says(size, seed):
    picture = noise(*size)
    for transform in ("random", *reference.SIX):
        found = mgap.RITUAL(transform=transform).change(tensor(picture), Random(seed))
        expected = tensor(reference.transformed(picture.tolist(), transform, seed))
        assert found.shape == expected.shape
        wrong = ((found - expected).abs() > 1e-4).float().mean()
        assert wrong <= (0.01 if transform in ("random", "rotation") else 0), transform  # between two pixels either is near


@pytest.mark.parametrize("degrees", [-90, 30, 90, 180, -117.5])
@pytest.mark.parametrize("size", [(28, 28), (40, 24)], ids=str)
def test_a_rotation_is_pillows(size, degrees):
    picture = noise(*size)
    turned = [Image.fromarray(picture[..., c]).rotate(degrees) for c in range(3)]
    found = rotate(tensor(picture), degrees)[0].permute(1, 2, 0).numpy()
    assert (np.stack(turned, -1) == found).mean() > 0.99


def test_flips_undo_themselves_and_neutral_factors_change_nothing():
    picture, draw = tensor(noise(40, 24)), Random(0)
    for flip in ("horizontal_flip", "vertical_flip"):
        once = TRANSFORMS[flip](picture, draw)
        assert not torch.equal(once, picture)
        assert torch.equal(TRANSFORMS[flip](once, draw), picture)
    neutral = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
    for order in itertools.permutations(neutral):
        torch.testing.assert_close(jitter(picture, {name: neutral[name] for name in order}), picture, rtol=0, atol=1e-6)
    torch.testing.assert_close(rotate(picture, 0.0), picture, rtol=0, atol=0)
    torch.testing.assert_close(crop(picture, (0, 0, 24, 40)), picture, rtol=0, atol=1e-6)


def test_colours_at_the_ends_of_their_ranges():
    picture = tensor(noise(28, 28))
    assert not JITTER["brightness"](picture, 0.0).any()
    assert JITTER["contrast"](picture, 0.0).std() < 1e-6
    no_colour = JITTER["saturation"](picture, 0.0)
    assert torch.equal(no_colour[:, 0], no_colour[:, 2])
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    assert JITTER["hue"](red, 1 / 3).flatten().tolist() == pytest.approx([0, 1, 0], abs=1e-6)
    assert JITTER["hue"](red, -1 / 3).flatten().tolist() == pytest.approx([0, 0, 1], abs=1e-6)
    assert JITTER["hue"](red, 0.5).flatten().tolist() == pytest.approx([0, 1, 1], abs=1e-6)


def test_frames_of_one_picture_are_changed_alike_and_the_callers_picture_stays():
    frames = tensor(noise(40, 24)).expand(2, 3, 24, 40)
    before = frames.clone()
    for name in TRANSFORMS:
        found = mgap.RITUAL(transform=name).change(frames, Random(3))
        assert torch.equal(found[0], found[1]), name
        assert found.shape == frames.shape
        assert found.min() >= 0
        assert found.max() <= 1 + 1e-6
    assert torch.equal(frames, before)


def test_a_flat_picture_stays_flat_under_blur_and_crop():
    flat = torch.full((1, 3, 24, 40), 0.3)
    torch.testing.assert_close(blur(flat, 1.7), flat)
    torch.testing.assert_close(crop(flat, (3, 5, 7, 11)), flat)


def test_draws_cover_their_ranges():
    draws = [Random(seed) for seed in range(300)]
    drawn = Counter(draw.choice(list(TRANSFORMS)) for draw in draws)
    assert set(drawn) == set(reference.SIX)
    assert min(drawn.values()) > 30
    factors = [draw_factors(draw) for draw in draws]
    assert len({tuple(each) for each in factors}) == 24  # orders
    for name in JITTER:
        values = [each[name] for each in factors]
        low, high = (-0.5, 0.5) if name == "hue" else (0, 2)
        assert low <= min(values) < low + 0.05 * (high - low)
        assert high >= max(values) > high - 0.05 * (high - low)
    for height, width in ((24, 40), (10, 200), (200, 10), (1, 1)):
        for draw in draws[:50]:
            top, left, rows, columns = draw_box(draw, height, width)
            assert 0 <= top <= top + rows <= height
            assert 0 <= left <= left + columns <= width
            assert rows > 0 < columns


def test_a_picture_that_no_draw_fits_into_is_cropped_in_the_middle():
    assert draw_box(Random(0), 10, 1000) == (0, 493, 10, 13)
    assert draw_box(Random(0), 1000, 10) == (493, 0, 13, 10)


# --- the branch ------------------------------------------------------------------------------------------------------


@pytest.mark.both_families
@pytest.mark.parametrize(
    ("transform", "flip"),
    [("horizontal_flip", Image.Transpose.FLIP_LEFT_RIGHT), ("vertical_flip", Image.Transpose.FLIP_TOP_BOTTOM)],
)
def test_a_flipped_branch_sees_what_the_processor_makes_of_the_flipped_picture(exact, family, transform, flip):
    side = 28 if family == "llava" else 64
    picture = Image.fromarray((noise(side, side) * 255).astype(np.uint8))
    (found,) = branch_pixels(exact, [picture], transform=transform)
    expected = exact.backbone.encode([picture.transpose(flip)], ["What?"])["pixel_values"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.both_families
def test_the_draw_depends_on_the_seed_and_the_picture_only(exact, picture):
    other = picture.rotate(90, expand=True)
    one, two = branch_pixels(exact, [picture, other], transform="rotation")
    swapped = branch_pixels(exact, [other, picture, other], transform="rotation")
    assert torch.equal(one, swapped[1])
    assert torch.equal(two, swapped[0])
    assert torch.equal(two, swapped[2])
    (again,) = branch_pixels(exact, [picture], transform="rotation", seed=1)
    assert not torch.equal(one, again)


def test_random_draws_other_transformations_for_other_seeds(exact, picture):
    main, found = exact.backbone.encode([picture], ["What?"]), set()
    for seed in range(12):
        views = {
            name: mgap.RITUAL(transform=name, seed=seed).branch(exact.backbone, main)["pixel_values"]
            for name in ("random", *TRANSFORMS)
        }
        (same,) = [name for name in TRANSFORMS if torch.equal(views[name], views["random"])]
        found.add(same)
    assert len(found) > 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.both_families
def test_the_draw_is_the_same_in_every_dtype(exact, picture, dtype):
    main = exact.backbone.encode([picture], ["What?"])
    cast = {**main, "pixel_values": main["pixel_values"].to(dtype)}
    for transform in ("rotation", "crop", "colour_jitter"):
        method = mgap.RITUAL(transform=transform)
        one, two = (method.branch(exact.backbone, inputs)["pixel_values"] for inputs in (main, cast))
        assert two.dtype == dtype
        torch.testing.assert_close(two.float(), one, rtol=0.01, atol=0.02)


def test_a_view_that_is_the_picture_itself_changes_no_token_and_scales_the_scores(exact, family):
    side = 28 if family == "llava" else 64
    half = (noise(side // 2, side) * 255).astype(np.uint8)
    mirrored = Image.fromarray(np.concatenate([half, half[:, ::-1]], axis=1))
    inputs = exact.backbone.encode([mirrored], [QUESTIONS[0]])
    options = {"max_new_tokens": NEW, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    plain = exact.backbone.model.generate(**inputs, **options)
    with exact.using(mgap.RITUAL(alpha=3.0, beta=0.0, transform="horizontal_flip")):
        told = exact.backbone.model.generate(**inputs, **options)
    assert torch.equal(told.sequences, plain.sequences)
    torch.testing.assert_close(told.logits[0], 4 * plain.logits[0], rtol=1e-4, atol=1e-3)


def test_at_its_zero_the_logits_are_plain_to_the_bit(exact, picture):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    options = {"max_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    plain = exact.backbone.model.generate(**inputs, **options).logits
    with exact.using(mgap.RITUAL(alpha=0.0, beta=0.0, branch_mode="sequential")):
        told = exact.backbone.model.generate(**inputs, **options).logits
    assert all(torch.equal(one, other) for one, other in zip(told, plain, strict=True))
    with exact.using(mgap.RITUAL(alpha=0.0, branch_mode="sequential")):
        cut = exact.backbone.model.generate(**inputs, **options).logits
    assert torch.equal(cut[0].isinf(), plain[0] < plain[0].max() + np.log(0.1))


@pytest.mark.both_families
def test_several_pictures_of_a_row_have_a_draw_each(exact, picture):
    backbone = exact.backbone
    text, image = backbone.render("What?"), backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id)
    block = f"<|vision_start|>{image}<|vision_end|>" if "vision_start" in text else image
    pair = [picture, picture.rotate(90, expand=True)]
    inputs = dict(backbone.processor(images=[pair], text=[text.replace(block, 2 * block)], return_tensors="pt"))
    branch = mgap.RITUAL(transform="rotation").branch(backbone, inputs)
    alone = [branch_pixels(exact, [p], transform="rotation")[0] for p in pair]
    assert torch.equal(branch["pixel_values"], torch.cat(alone))
    with exact.using(mgap.RITUAL()):
        assert backbone.model.generate(**inputs, max_new_tokens=2, do_sample=False).shape[0] == 1


def test_the_vision_tower_runs_twice(exact, picture):
    calls = []
    handle = exact.backbone.vision.register_forward_hook(lambda *_: calls.append(1))
    with exact.using(mgap.RITUAL()):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=4)
    handle.remove()
    assert len(calls) == 2


def test_a_video_is_refused(checkpoints, picture):
    model = mgap.load(str(checkpoints["qwen3-vl"]))
    backbone = model.backbone
    main = backbone.encode([picture], ["What?"])
    video = {
        "input_ids": main["input_ids"].masked_fill(backbone.image_mask(main), backbone.config.video_token_id),
        "attention_mask": main["attention_mask"],
        "mm_token_type_ids": 2 * main["mm_token_type_ids"],
        "pixel_values_videos": main["pixel_values"],
        "video_grid_thw": main["image_grid_thw"],
    }
    assert len(backbone.model.generate(**video, max_new_tokens=1)) == 1
    with model.using(mgap.RITUAL()), pytest.raises(PromptError, match="ritual changes pictures, not videos"):
        backbone.model.generate(**video, max_new_tokens=1)


def test_a_model_without_its_processor_is_refused_before_anything_is_hooked(exact):
    own = exact.backbone.model
    with pytest.raises(ModelError, match="processor"):
        mgap.attach(own, mgap.RITUAL())
    assert not own._forward_hooks
    assert not own._forward_pre_hooks
    assert not exact.backbone.vision._forward_pre_hooks


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"alpha": -1}, "alpha"),
        ({"beta": 2}, "beta"),
        ({"transform": "flip"}, "choose from random, horizontal_flip"),
        ({"transform": ["crop"]}, "transform"),
        ({"seed": -1}, "seed"),
        ({"seed": "now"}, "seed"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.RITUAL(**settings)
