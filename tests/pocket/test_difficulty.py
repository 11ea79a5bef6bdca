"""Difficulty: each knob changes the picture as it says, the usual one changes nothing, and the truth stays."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from PIL import Image

from mgap.errors import SettingError
from mgap.pocket.benchmark import TEST, odd_colours, pope
from mgap.pocket.difficulty import LIMITS, USUAL, Difficulty
from mgap.pocket.evaluation import evaluate_amber, evaluate_captions, evaluate_odd_colours, evaluate_pope
from mgap.pocket.language import relation
from mgap.pocket.samples import (
    SceneRenderer,
    amber_samples,
    chair_samples,
    colour_samples,
    pope_samples,
    scene_of,
    true_captions,
)
from mgap.pocket.scenes import SIDE, WORLD, _for_pillow, backdrop, make_scene, render, sprite

SEEDS = range(TEST, TEST + 40)
HARD = {"noise": 0.2, "blur": 2.0, "light": 0.5, "size": 0.5, "crowding": 0.5, "cut": 0.25}
EACH = [Difficulty(**{name: value}) for name, value in HARD.items()]
ALL = Difficulty(**HARD)
FIRST, LAST = (
    (0.20262107504848953, 0.8073676171944252, 0.29233456682368114),
    (0.28585367921693544, 0.2970513540144772, 0.2493475381700902),
)


def pixels(scene, side=SIDE):
    return np.asarray(render(scene, side)).astype(float)


def picture_of(seed, **knobs):
    return pixels(make_scene(seed, difficulty=Difficulty(**knobs)))


def inside(centre, length):
    """The share of a length around a centre that is in the picture."""
    return (min(1, centre + length / 2) - max(0, centre - length / 2)) / length


def overlap(scene):
    """The area that two things share, over all pairs."""
    return sum(
        max(0, (a.width + b.width) / 2 - abs(a.x - b.x)) * max(0, (a.height + b.height) / 2 - abs(a.y - b.y))
        for i, a in enumerate(scene.things)
        for b in scene.things[:i]
    )


def test_the_usual_difficulty_draws_as_the_world_did_without_one():
    """The drawing, step by step, as it was before there were difficulties."""
    for seed in SEEDS[:10]:
        scene = make_scene(seed)
        rng = np.random.default_rng([WORLD, seed, 1])
        picture = Image.fromarray(backdrop(scene, SIDE, rng))
        for thing in scene.things:
            drawn = sprite(thing.name, thing.style, thing.colour)
            placed = drawn.transform((SIDE, SIDE), Image.Transform.AFFINE, _for_pillow(thing, SIDE), Image.Resampling.BILINEAR)
            picture.paste(placed, (0, 0), placed)
        expected = (np.asarray(picture) + rng.normal(0, 3, (SIDE, SIDE, 1))).clip(0, 255).astype(np.uint8)
        assert np.array_equal(pixels(scene), expected)


def test_scenes_are_placed_as_before_there_were_difficulties():
    """Two things of a scene, noted then."""
    first, *_, last = make_scene(TEST).things
    assert (first.name, last.name) == ("bottle", "toothbrush")
    assert (first.x, first.y, first.width) == pytest.approx(FIRST, abs=1e-12)
    assert (last.x, last.y, last.width) == pytest.approx(LAST, abs=1e-12)


@pytest.mark.parametrize("difficulty", [USUAL, Difficulty(noise=0, blur=0, light=1, size=1, crowding=0, cut=0)])
def test_the_defaults_change_nothing(difficulty):
    for seed in SEEDS:
        assert make_scene(seed, difficulty=difficulty) == make_scene(seed)
        assert np.array_equal(pixels(make_scene(seed, difficulty=difficulty)), pixels(make_scene(seed)))


@pytest.mark.parametrize("difficulty", [*EACH, ALL], ids=str)
def test_the_truth_is_the_same_at_every_difficulty(difficulty):
    for seed in SEEDS:
        plain, hard = make_scene(seed), make_scene(seed, difficulty=difficulty)
        places = ("x", "y", "width", "height")
        kept = [replace(thing, **{name: getattr(old, name) for name in places})
                for thing, old in zip(hard.things, plain.things, strict=True)]  # fmt: skip
        assert replace(hard, things=tuple(kept), difficulty=USUAL) == plain
    for samples in (pope_samples, chair_samples, colour_samples):
        given = {"count": 30, "difficulty": difficulty}
        assert samples(**given).samples == samples(count=30).samples


@pytest.mark.parametrize("difficulty", [*EACH, ALL], ids=str)
def test_a_picture_is_a_pure_function_of_seed_and_difficulty(difficulty):
    scene = make_scene(TEST, difficulty=difficulty)
    assert scene == make_scene(TEST, difficulty=difficulty)
    assert np.array_equal(pixels(scene), pixels(make_scene(TEST, difficulty=difficulty)))
    assert not np.array_equal(pixels(scene), pixels(make_scene(TEST)))


def test_noise_has_its_strength_in_every_channel_and_is_of_its_own_in_each():
    plain = picture_of(TEST, light=0.5)  # far from black and white, where it would be cut off
    for noise in (0.02, 0.05):
        difference = picture_of(TEST, light=0.5, noise=noise) - plain
        assert difference.std((0, 1)) == pytest.approx(noise * 255, rel=0.03)
        assert difference.mean((0, 1)) == pytest.approx(0, abs=0.5)
        assert np.corrcoef(difference.reshape(-1, 3).T)[np.triu_indices(3, 1)] == pytest.approx(0, abs=0.05)
    other = picture_of(TEST + 1, light=0.5, noise=0.05) - picture_of(TEST + 1, light=0.5)
    assert np.corrcoef(difference.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.05)


def test_blur_smooths_and_keeps_the_brightness_and_grows_with_the_picture():
    def roughness(picture):
        return np.abs(np.diff(picture, axis=1)).mean()

    rough = [roughness(picture_of(TEST, blur=blur)) for blur in (0, 1, 2, 4)]
    assert rough == sorted(rough, reverse=True)
    assert rough[3] < rough[0] / 3
    assert picture_of(TEST, blur=4).mean() == pytest.approx(picture_of(TEST).mean(), abs=1)
    scene = make_scene(TEST, difficulty=Difficulty(blur=4))
    large = np.asarray(render(scene, 2 * SIDE).resize((SIDE, SIDE), Image.Resampling.BOX)).astype(float)
    unlike = make_scene(TEST, difficulty=Difficulty(blur=2))
    gaps = [np.abs(np.diff(large - pixels(other), axis=0)).mean() for other in (scene, unlike)]
    assert gaps[0] < gaps[1]


def test_light_leaves_its_share_of_the_brightness():
    plain = picture_of(TEST)
    for light in (0.75, 0.25):
        assert np.abs(picture_of(TEST, light=light) - light * plain).max() <= 0.5


def test_blur_comes_before_light_and_light_before_noise():
    """Noise that came earlier would be blurred or darkened."""
    together = picture_of(TEST, blur=2, light=0.5, noise=0.05)
    without = picture_of(TEST, blur=2, light=0.5)
    assert np.abs(without - 0.5 * picture_of(TEST, blur=2)).max() <= 0.5
    assert (together - without).std() == pytest.approx(0.05 * 255, rel=0.03)


def test_size_shrinks_things_where_they_stand():
    for seed in SEEDS:
        for old, new in zip(make_scene(seed).things, make_scene(seed, difficulty=Difficulty(size=0.5)).things, strict=True):
            assert new == replace(old, width=old.width / 2, height=old.height / 2)


def test_crowding_pulls_things_together_until_they_lie_on_each_other():
    for seed in SEEDS:
        scenes = [make_scene(seed, difficulty=Difficulty(crowding=crowding)) for crowding in (0, 0.25, 0.5, 1)]
        shared = [overlap(scene) for scene in scenes]
        assert shared == sorted(shared)
        for old, half, whole in zip(*(scenes[i].things for i in (0, 2, 3)), strict=True):
            assert (half.x - 0.5, half.y - 0.5) == pytest.approx(((old.x - 0.5) / 2, (old.y - 0.5) / 2))
            assert (whole.x, whole.y) == pytest.approx((0.5, 0.5))


def test_the_edge_cuts_things_and_leaves_at_least_half_of_each():
    lost = []
    for cut in (0, 0.25, 0.5):
        shares = []
        for seed in SEEDS:
            for thing in make_scene(seed, difficulty=Difficulty(cut=cut)).things:
                across, down = inside(thing.x, thing.width), inside(thing.y, thing.height)
                assert min(across, down) >= 0.5 - 1e-9
                assert max(across, down) == pytest.approx(1)
                shares.append(1 - across * down)
        lost.append(np.mean(shares))
    assert lost[0] == pytest.approx(0)
    assert lost[1] > 0.02
    assert lost[2] == pytest.approx(0.5)


def test_no_two_knobs_together_take_a_things_centre_out_of_the_picture():
    for seed in SEEDS:
        for crowding in (0, 0.5, 1):
            hard = make_scene(seed, difficulty=Difficulty(size=0.3, crowding=crowding, cut=0.5))
            assert all(0 <= thing.x <= 1 and 0 <= thing.y <= 1 for thing in hard.things)


def test_relations_and_captions_are_those_of_the_picture_as_it_is_drawn():
    close = Difficulty(crowding=0.75)
    asked = [[s for s in amber_samples("dr", 30, difficulty=d).samples if s.group == "relation"] for d in (USUAL, close)]
    assert len(asked[1]) < len(asked[0])
    described = chair_samples(30, difficulty=close)
    told = true_captions(described.samples, difficulty=close)
    places = ("to the left of", "to the right of", "above", "below")
    assert any(place in text for texts in true_captions(described.samples).values() for text in texts for place in places)
    for sample in described.samples:
        scene = scene_of(sample.image, difficulty=close)
        single = [name for name in scene.names if scene.count(name) == 1]
        if not any(relation(scene, one, other) for one in single for other in single if one != other):
            assert not any(place in text for text in told[sample.id] for place in places)


def test_every_benchmark_draws_with_the_difficulty():
    for samples in (pope_samples, chair_samples, amber_samples, colour_samples):
        benchmark = samples(count=30, difficulty=ALL)
        name = benchmark.samples[0].image
        assert benchmark.picture == SceneRenderer(difficulty=ALL)
        assert np.array_equal(benchmark.picture(name), render(scene_of(name, difficulty=ALL)))
    assert {q.scene.difficulty for q in pope("random", TEST, 3, difficulty=ALL)} == {ALL}
    assert {q.scene.difficulty for q in odd_colours(TEST, 30, difficulty=ALL)} == {ALL}


def test_every_evaluation_shows_the_difficult_pictures(tiny_model, monkeypatch):
    shown = []

    def drawn(self, name, real=SceneRenderer.__call__):
        shown.append(self.difficulty)
        return real(self, name)

    monkeypatch.setattr(SceneRenderer, "__call__", drawn)
    for evaluate, count in ((evaluate_pope, 1), (evaluate_amber, 1), (evaluate_captions, 1), (evaluate_odd_colours, 30)):
        shown.clear()
        more = {"max_new_tokens": 2} if evaluate is evaluate_captions else {}
        evaluate(tiny_model, {"vanilla": None}, TEST, count, difficulty=ALL, **more)
        assert set(shown) == {ALL}


def test_knobs_may_be_given_as_plain_keys_and_come_back_from_json():
    assert Difficulty.of({}) == USUAL
    assert Difficulty.of({"noise": 0.15, "blur": 2}) == Difficulty(noise=0.15, blur=2.0)
    assert Difficulty.of(json.loads(json.dumps(asdict(ALL)))) == ALL


@pytest.mark.parametrize("name", list(LIMITS))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 99, True, False, None, "0.5", [0.5], 10**400])
def test_a_value_outside_the_limits_is_refused_with_the_limits(name, value):
    least, most = LIMITS[name]
    with pytest.raises(SettingError, match=f"^difficulty {name}=.* must be a number from {least:g} to {most:g}$") as refused:
        Difficulty(**{name: value})
    assert len(str(refused.value)) < 120


def test_limits_themselves_are_allowed_and_can_be_drawn():
    for name, limits in LIMITS.items():
        for value in limits:
            assert render(make_scene(TEST, difficulty=Difficulty(**{name: value}))).size == (SIDE, SIDE)


@pytest.mark.parametrize("knobs", [None, 0.15, "noise", ["noise"], True])
def test_what_is_no_set_of_knobs_is_refused(knobs):
    with pytest.raises(SettingError, match="give knobs and their values"):
        Difficulty.of(knobs)


def test_an_unknown_knob_is_refused_with_those_there_are():
    with pytest.raises(SettingError, match="no knob 'fog': choose from noise, blur, light, size, crowding, cut"):
        Difficulty.of({"fog": 1})
