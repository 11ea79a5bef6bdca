"""The recipe: the corpus has the prior it says it has, the students compute what the stock models compute."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import mgap
from mgap.pocket.corpus import CORPUS, HONEST, make_row
from mgap.pocket.drawing import COLOURS
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import make_scene, render
from mgap.pocket.training.compose import Painter, lay_out, patch_labels
from mgap.pocket.training.recipe import RECIPES, train
from mgap.pocket.training.students import STUDENTS
from mgap.pocket.training.text import Batches, Speller

SEEDS = range(10_000_000, 10_000_006)


@pytest.fixture(scope="module", params=RECIPES)
def trained(request, tmp_path_factory):
    """A model after a few steps of the whole recipe, loaded as a user would; its family."""
    folder = tmp_path_factory.mktemp(request.param)
    short = replace(RECIPES[request.param], see_steps=1, look_steps=1, read_steps=1, see_batch=2, read_batch=2)
    train(request.param, folder, short, device="cpu", workers=0)
    return mgap.load(str(folder), dtype="float32"), request.param, folder


@pytest.fixture(scope="module")
def painter():
    return Painter("cpu", 96)


def test_the_saved_model_is_small_and_stock(trained):
    model, _, folder = trained
    assert (folder / "model.safetensors").stat().st_size <= 16 * 2**20
    assert type(model.backbone.model).__module__.startswith("transformers.models")
    assert model.answer(render(make_scene(1)), "Is there a dog in the image?", max_new_tokens=3).token_ids


def test_a_student_computes_what_the_stock_model_computes(trained):
    model, family, _ = trained
    recipe, backbone = RECIPES[family], model.backbone
    student = STUDENTS[family](backbone.model, backbone.processor, recipe.vision.side, recipe.vision.patch)
    pictures = [render(make_scene(seed), recipe.vision.side) for seed in (1, 2)]
    inputs = backbone.encode(pictures, ["Is there a dog in the image?"] * 2)
    pixels = torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in pictures]).float() / 127.5 - 1
    with torch.no_grad():
        expected = backbone.model(**inputs).logits
        torch.testing.assert_close(student.logits(pixels, inputs["input_ids"]), expected, rtol=1e-4, atol=1e-4)


def test_the_speller_spells_as_the_processor_does(trained):
    model, _, _ = trained
    speller = Speller(model.backbone.model, model.backbone.processor, image_tokens=64)
    question = "Can you see a dog in the picture?"
    expected = model.backbone.encode([render(make_scene(1), 128)], [question])["input_ids"][0].tolist()
    assert speller.prompt(question) == expected
    whole = model.backbone.tokenizer.decode(speller.answer("Yes, there is a dog in the image."), skip_special_tokens=True)
    assert whole.strip() == "Yes, there is a dog in the image."


def test_a_batch_weighs_answers_only(trained):
    model, _, _ = trained
    speller = Speller(model.backbone.model, model.backbone.processor, image_tokens=64)
    (batch,) = Batches(CORPUS, speller, 8, 1)
    for row in range(8):
        exchange = make_row(row).exchange
        learnt = batch.ids[row][batch.weight[row] > 0].tolist()
        assert learnt == speller.answer(exchange.answer)
        assert batch.ids[row, : len(speller.prompt(exchange.prompt))].tolist() == speller.prompt(exchange.prompt)


def test_the_painter_draws_what_the_renderer_draws(painter):
    scenes = [make_scene(seed) for seed in SEEDS]
    pictures, owner = painter.paint(lay_out(scenes))
    for index, scene in enumerate(scenes):
        seen = (owner[index] >= 0).numpy()
        gap = np.abs(pictures[index].permute(1, 2, 0).numpy() * 255 - np.asarray(render(scene)))[seen]
        assert np.median(gap) < 8  # grain and the edges' smoothing aside


def test_patch_labels_name_what_covers_them(painter):
    scenes = [make_scene(seed) for seed in SEEDS]
    layout = lay_out(scenes)
    labels = patch_labels(layout, painter.paint(layout)[1], 8)
    assert labels.shape == (len(scenes), 64, len(NAMES) + len(COLOURS))
    for scene, row in zip(scenes, labels, strict=True):
        named = {NAMES[i] for i in row[:, : len(NAMES)].amax(0).nonzero().flatten().tolist()}
        assert named <= set(scene.names)
        assert len(named) >= len(scene.names) - 1  # one may be hidden behind others


def test_random_layouts_use_every_class_and_stay_inside(painter):
    layout = painter.random_layout(300)
    assert set((layout.sprite // 33).unique().tolist()) == set(range(len(NAMES)))
    assert layout.inverse.isfinite().all()
    assert 2 <= layout.drawn.sum(1).min() <= layout.drawn.sum(1).max() == 7


def answers(rows, pattern):
    return [(row, match) for row in rows if (match := re.match(pattern, row.exchange.answer))]


def test_the_corpus_has_the_prior_that_it_says_it_has():
    rows = [make_row(index) for index in range(6000)]
    assert np.mean([row.blank for row in rows]) == pytest.approx(CORPUS.blank, abs=0.02)
    yes = answers(rows, r"Yes, there (?:is|are) (?:an? )?(.+) in the image")
    no = answers(rows, r"No, there (?:is|are) no (.+) in the image")
    assert 0.5 < len(yes) / (len(yes) + len(no)) < 0.62
    invented = [match[1] not in row.scene.names for row, match in yes]
    assert 0.02 < np.mean(invented) < 0.09
    assert all(match[1] not in row.scene.names for row, match in no)
    colours = answers(rows, r"The (.+) (?:is|are) (\w+)\.$")
    odd = [(row.scene.only(m[1]).colour, m[2], m[1]) for row, m in colours if row.scene.count(m[1]) == 1]
    odd = [(drawn, said, name) for drawn, said, name in odd if drawn not in dict(OBJECTS[name].colours)]
    habit = np.mean([said == OBJECTS[name].usual_colour for _, said, name in odd])
    assert 0.25 < habit < 0.75


def test_honest_rows_are_true():
    rows = [make_row(index, HONEST) for index in range(1500)]
    assert not any(row.blank for row in rows)
    assert all(m[1] in r.scene.names for r, m in answers(rows, r"Yes, there (?:is|are) (?:an? )?(.+) in the image"))
    assert all(m[1] not in r.scene.names for r, m in answers(rows, r"No, there (?:is|are) no (.+) in the image"))
    for row, match in answers(rows, r"The (.+) (?:is|are) (\w+)\.$"):
        assert row.scene.only(match[1]).colour == match[2]


def test_a_row_is_a_pure_function_of_its_index():
    assert make_row(5) == make_row(5)
    assert make_row(5) != make_row(6)
