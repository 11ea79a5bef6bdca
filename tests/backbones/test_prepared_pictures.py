"""A picture that was prepared alone, also in another process, gives the rows that the processor gives."""

import copy
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.backbones import prepared_pictures
from mgap.backbones.base import families_that
from mgap.backbones.prepared_pictures import Prepared, Preparer, picture_digest, stack
from mgap.backbones.shared_prefill import SharedPrefill
from mgap.errors import ImageError, PromptError
from mgap.pocket.tiny import build_tiny
from tests.backbones import families

pytestmark = pytest.mark.both_families

TINY = {"llava": lambda folder: build_tiny("llava", folder), "qwen3_vl": lambda folder: build_tiny("qwen3-vl", folder)}
ASKED = ["Is there a dog?", "What?", "Describe what you can make out in this long and winding picture, please.", " Why? "]


def noise(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


PICTURES = [noise(64, 48), noise(40, 90), noise(64, 48), noise(31, 30)]


def assert_same(ours, theirs):
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=0, atol=0, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("kind", [*TINY, *families.FAMILIES])
def test_every_family_that_is_named_gives_its_processors_own_rows_and_the_others_are_left_to_it(kind, tmp_path, monkeypatch):
    {**TINY, **families.FAMILIES}[kind](tmp_path)
    monkeypatch.setattr("mgap.backbones.loading.is_torchvision_available", lambda: False)
    backbone = mgap.load(str(tmp_path)).backbone
    preparer = Preparer.of(backbone)
    assert (preparer is not None) == (kind in families_that("prepares_pictures"))
    if preparer is None:
        return
    sent = pickle.loads(pickle.dumps(preparer))  # as multiprocessing does
    made = {id(picture): sent(picture) for picture in PICTURES}
    for images in (PICTURES, PICTURES[:1], PICTURES[3:0:-1]):
        ours = backbone.encode([made[id(image)] for image in images], ASKED[: len(images)])
        assert_same(ours, backbone.encode(images, ASKED[: len(images)]))


def test_every_family_that_is_named_is_tested():
    assert set(TINY) | set(families.FAMILIES) >= set(families_that("prepares_pictures"))


def test_a_family_that_nothing_holds_to_it_is_left_to_its_processor(model, monkeypatch):
    monkeypatch.setattr(type(model.backbone), "prepares_pictures", False)
    assert Preparer.of(model.backbone) is None


def test_a_prompt_that_may_run_into_the_picture_is_left_to_its_processor(model, monkeypatch):
    monkeypatch.setattr(prepared_pictures, "special_ids", lambda _: set())
    assert Preparer.of(model.backbone) is None


@pytest.mark.parametrize("prefill", ["own", "shared"])
def test_answers_about_prepared_pictures_are_the_same(model, prefill):
    preparer = Preparer.of(model.backbone)
    options = {"batch_size": 3, "max_new_tokens": 6, "prefill": prefill}
    plain, ready = (
        [answer.token_ids for answer in model.answers(images, ASKED, **options)]
        for images in (PICTURES, [preparer(picture) for picture in PICTURES])
    )
    assert ready == plain
    assert len(set(plain)) > 1


def test_a_prepared_picture_is_known_by_its_pixels(model):
    preparer = Preparer.of(model.backbone)
    first, second, third = (preparer(picture) for picture in PICTURES[:3])
    assert first.digest == picture_digest(PICTURES[0])
    assert first.key == third.key != second.key
    shared = SharedPrefill(model.backbone)
    shared.encode([first, third, second, PICTURES[1]], ASKED)
    assert len(shared.held.blocks) == 2


def test_rows_without_a_picture_stand_beside_prepared_ones_and_opened_pictures_do_not(model):
    backbone = model.backbone
    ready = Preparer.of(backbone)(PICTURES[0])
    assert_same(backbone.encode([ready, None], ASKED[:2]), backbone.encode([PICTURES[0], None], ASKED[:2]))
    with pytest.raises(ImageError, match="prepare all of them, or none"):
        backbone.encode([ready, PICTURES[1]], ASKED[:2])


def test_a_second_placeholder_is_refused_in_a_question_and_in_a_rendered_text(model):
    backbone, ready = model.backbone, Preparer.of(model.backbone)(PICTURES[0])
    token = backbone.tokenizer.decode([backbone.image_token_id])
    with pytest.raises(PromptError, match=r"leave .* out"):
        backbone.encode([ready], [f"What is {token}?"])
    with pytest.raises(PromptError, match="2 pictures"):
        backbone.encode_rendered([ready], [backbone.render("What is this?") + token])


def test_pictures_of_unlike_sizes_are_filled_up_behind():
    one, two = torch.ones(1, 2, 3), torch.full((2, 1, 4), 2.0)
    joined = stack([one, two])
    assert joined.shape == (3, 2, 4)
    assert joined[0].tolist() == [[1, 1, 1, 0], [1, 1, 1, 0]]
    assert joined[1].tolist() == [[2, 2, 2, 2], [0, 0, 0, 0]]


def test_a_copy_shares_no_memory(model):
    ready = Preparer.of(model.backbone)(PICTURES[0])
    own = ready.clone()
    assert isinstance(own, Prepared)
    for key, tensor in ready.tensors.items():
        assert torch.equal(own.tensors[key], tensor)
        assert own.tensors[key].data_ptr() != tensor.data_ptr()


def test_a_processor_without_its_video_part_can_be_copied(model):
    processor = model.backbone.processor
    for other in (copy.deepcopy(processor), pickle.loads(pickle.dumps(processor))):
        assert type(other).__name__ == type(processor).__name__
        assert other.get_attributes() == processor.get_attributes()
        assert other.chat_template == processor.chat_template
