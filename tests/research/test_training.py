"""The recipe: the corpus has the prior it says it has, the students compute what the stock models compute."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import mgap
from mgap.pocket.corpus import CORPUS, HONEST, make_row
from mgap.pocket.drawing import COLOURS
from mgap.pocket.language import COLUMNS, ROWS, relation
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import make_scene, render
from research.training.compose import Painter, lay_out, patch_labels
from research.training.recipe import RECIPES, train
from research.training.students import STUDENTS
from research.training.text import Batches, ExchangeTokenizer

pytestmark = pytest.mark.long

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
    """Each exchange of a row, after others in one sequence, as if it came alone."""
    model, family, _ = trained
    recipe, backbone = RECIPES[family], model.backbone
    student = STUDENTS[family](backbone.model, backbone.processor, recipe.vision.side, recipe.vision.patch)
    tokenizer = ExchangeTokenizer(backbone.model, backbone.processor, image_tokens=64)
    (batch,) = Batches(HONEST, tokenizer, 3, 1)
    rows = [make_row(index, HONEST) for index in range(3)]
    pictures = [render(row.scene, recipe.vision.side) for row in rows]
    pixels = torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in pictures]).float() / 127.5 - 1
    with torch.no_grad():
        found = backbone.model.lm_head(student.states(pixels, batch.ids, batch.exchange, batch.position))
        for index, (row, picture) in enumerate(zip(rows, pictures, strict=True)):
            for number, exchange in enumerate(row.exchanges, start=1):
                inputs = backbone.encode([picture], [exchange.prompt])
                mine = batch.exchange[index] == number
                expected = backbone.model(**inputs).logits[0, len(tokenizer.prefix) :]
                torch.testing.assert_close(found[index, mine][: len(expected)], expected, rtol=1e-4, atol=1e-4)


def test_prompts_are_tokenised_as_the_processor_does_it(trained):
    model, _, _ = trained
    tokenizer = ExchangeTokenizer(model.backbone.model, model.backbone.processor, image_tokens=64)
    question = "Can you see a dog in the picture?"
    expected = model.backbone.encode([render(make_scene(1), 128)], [question])["input_ids"][0].tolist()
    assert tokenizer.prompt(question) == expected
    whole = model.backbone.tokenizer.decode(tokenizer.answer("Yes, there is a dog in the image."), skip_special_tokens=True)
    assert whole.strip() == "Yes, there is a dog in the image."


def test_a_batch_weighs_answers_only(trained):
    model, _, _ = trained
    tokenizer = ExchangeTokenizer(model.backbone.model, model.backbone.processor, image_tokens=64)
    (batch,) = Batches(CORPUS, tokenizer, 8, 1)
    for row in range(8):
        for number, exchange in enumerate(make_row(row).exchanges, start=1):
            mine = batch.exchange[row] == number
            prompt, answer = tokenizer.prompt(exchange.prompt), tokenizer.answer(exchange.answer)
            assert batch.ids[row][mine].tolist() == prompt[len(tokenizer.prefix) :] + answer
            assert batch.ids[row][mine & (batch.weight[row] > 0)].tolist() == answer
            assert batch.position[row][mine].tolist() == list(range(len(tokenizer.prefix), len(prompt + answer)))
            assert batch.is_verdict[row][mine].sum() == exchange.answer.startswith(("Yes", "No"))


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
    return [(row, match) for row in rows for e in row.exchanges if (match := re.match(pattern, e.answer))]


def test_the_corpus_has_the_prior_that_it_says_it_has():
    rows = [make_row(index) for index in range(1500)]
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
    rows = [make_row(index, HONEST) for index in range(400)]
    assert not any(row.blank for row in rows)
    assert all(m[1] in r.scene.names for r, m in answers(rows, r"Yes, there (?:is|are) (?:an? )?(.+) in the image"))
    assert all(m[1] not in r.scene.names for r, m in answers(rows, r"No, there (?:is|are) no (.+) in the image"))
    for row, match in answers(rows, r"The (.+) (?:is|are) (\w+)\.$"):
        assert row.scene.only(match[1]).colour == match[2]
    placed = answers(rows, r"The (.+) (?:is|are) at the (\w+) (\w+) of the picture\.$")
    for row, match in placed:
        thing = row.scene.only(match[1])
        assert (match[2], match[3]) == (ROWS[int(3 * thing.y)], COLUMNS[int(3 * thing.x)])
    stand = answers(rows, r"(?:Yes, t|No, t|T)he ([^.]+) (?:is|are) (to the left of|to the right of|above|below) the (.+)\.$")
    for row, match in stand:
        assert relation(row.scene, match[1], match[3]) == match[2]
    assert len(placed) > 50
    assert len(stand) > 100


def test_a_row_is_a_pure_function_of_its_index():
    assert make_row(5) == make_row(5)
    assert make_row(5) != make_row(6)
