"""ED and FastED: against themselves written out; what is cropped, attended to and weighed; each refusal by its name."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.backbones.asked_rows import Asked, asking
from mgap.errors import ModelError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.ed import crop_weights
from mgap.methods.kinds.attention_weights import AttentionWatch
from mgap.methods.kinds.corner_crops import CORNERS, cut, quarters_of, sum_quarters
from mgap.methods.kinds.largest_weights import LargestWeights, keep_largest, mean_of_largest
from mgap.methods.kinds.main_rows import row_split_of
from tests.backbones import families
from tests.methods.following import REFUSED, check_beams
from tests.reference import ed as reference
from tests.reference.attention import eager
from tests.reference.contrast import probabilities

QUESTIONS = ("What?", "Is there a dog in the image?")
NEW = 5
MODES = ("batched", "sequential")
BOTH = (mgap.ED(), mgap.FastED())


def noise(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


WIDE, SMALL = (
    noise(83, 47),
    noise(20, 50),
)  # of the second family: with fewer tokens in a crop than in the whole; and fewer in it


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@contextmanager
def reading(exact):
    """The rows and positions of every forward of the text decoder inside, and how often the vision tower runs."""
    shapes, towers = [], []
    language, vision = exact.backbone.language, exact.backbone.vision
    handles = [
        language.register_forward_pre_hook(
            lambda _language, _args, kwargs: shapes.append(tuple(kwargs["inputs_embeds"].shape[:2])), with_kwargs=True
        ),
        vision.register_forward_hook(lambda *_: towers.append(1)),
    ]
    try:
        yield shapes, towers
    finally:
        for handle in handles:
            handle.remove()


def shape_of(family, share=None):
    """Crops as the reference takes them."""
    return {"share": share or 0.6} if share or family == "qwen3-vl" else {"side": 28}


@pytest.mark.parametrize(
    ("method", "shown"),
    [(mgap.ED(), WIDE), pytest.param(mgap.ED(alpha=1.0, beta=0.0, tau=3.0), None, marks=pytest.mark.both_families),
     (mgap.ED(alpha=0.8, beta=0.2, crop_share=0.7), SMALL), (mgap.FastED(), SMALL),
     pytest.param(mgap.FastED(alpha=1.0, beta=0.0), None, marks=pytest.mark.both_families),
     pytest.param(mgap.FastED(alpha=0.9, beta=0.0), WIDE, marks=pytest.mark.both_families)],
    ids=["ed", "ed strong", "ed share", "fast", "fast strong", "fast wide"],
)  # fmt: skip
def test_they_are_what_their_equations_say(exact, family, picture, method, shown):
    shown, is_fast = shown or picture, method.name == "fast-ed"
    settings = {"alpha": method.alpha, "beta": method.beta, "tau": None if is_fast else method.sharpness}
    expected, sums = reference.decode(exact, shown, QUESTIONS[1], settings | shape_of(family, method.crop_share), NEW)
    assert len(expected) == NEW
    for mode in MODES:
        with exact.using(replace(method, branch_mode=mode)):
            answer = exact.answer(shown, QUESTIONS[1], max_new_tokens=NEW, trace=True)
        assert answer.token_ids == expected, mode
        for step, of_step in zip(answer.trace, sums, strict=True):
            if is_fast:
                assert sums[0][int(step.values["crop"])] == max(sums[0])
            else:
                weights = probabilities([s * 10**method.sharpness for s in of_step])
                assert [step.values[corner] for corner in CORNERS] == pytest.approx(weights, rel=2e-3, abs=1e-5)


@pytest.mark.parametrize("method", BOTH, ids=lambda method: method.name)
def test_rows_of_a_batch_have_their_own_weights_and_the_answers_they_have_alone(exact, picture, method):
    method = replace(method, alpha=1.0, beta=0.0)
    rows = [picture, SMALL, WIDE], [QUESTIONS[0], QUESTIONS[1], QUESTIONS[0]]
    with exact.using(method):
        alone = [exact.answer(*row, max_new_tokens=NEW, trace=True) for row in zip(*rows, strict=True)]
        together = list(exact.answers(*rows, max_new_tokens=NEW, trace=True))
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    for one, other in zip(together, alone, strict=True):
        for step, same in zip(one.trace, other.trace, strict=True):
            assert step.values == pytest.approx(same.values, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("method", BOTH, ids=lambda method: method.name)
def test_zero_strength_is_the_plain_logits_to_the_bit(exact, picture, method):
    main, branch = torch.randn(2, 3, 40)
    zero = replace(method, **method.zero)
    assert torch.equal(zero.combine(main, branch, 1)[0], main)
    assert not torch.equal(replace(zero, beta=0.5).combine(main, branch, 1)[0], main)
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(zero):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


def test_a_token_is_worth_five_rows_or_two_and_only_the_chosen_crop_is_encoded(exact, picture):
    with exact.using(mgap.ED()), reading(exact) as (shapes, towers):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=2)
    (rows, length), *later = shapes
    assert (rows, later, len(towers)) == (5, [(5, 1)], 5)
    with exact.using(mgap.FastED()), reading(exact) as (shapes, towers):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=2)
    assert [rows for rows, _ in shapes] == [1, 1, 2]
    assert max(shapes[0][1], shapes[1][1]) == length
    assert len(towers) == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", BOTH, ids=lambda method: method.name)
@pytest.mark.long
def test_beams_score_as_a_forced_answer_does(exact, picture, method, mode):
    check_beams(exact, picture, replace(method, alpha=1.0, beta=0.0, branch_mode=mode))


def test_several_answers_share_the_crops_of_their_picture(exact, picture):
    with exact.using(mgap.FastED(alpha=1.0, beta=0.0)), reading(exact) as (_, towers):
        answer = exact.answer(picture, QUESTIONS[0], max_new_tokens=3, sample=True, num_return_sequences=3)
    assert len({answer.token_ids, *(other.token_ids for other in answer.alternatives)}) > 1
    assert len(towers) == 2


# --- crops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "shape"),
    [((80, 60), {"side": 28}), ((50, 40), {"side": 28}), ((56, 30), {"side": 28}), ((20, 50), {"side": 28}),
     ((80, 61), {"share": 0.6}), ((9, 200), {"share": 0.35}), ((640, 480), {"side": 336})],
    ids=str,
)  # fmt: skip
def test_a_crop_lies_in_each_corner_and_is_black_outside_the_picture(size, shape):
    picture = noise(*size)
    made = [cut(picture, corner, shape.get("side"), shape.get("share")) for corner in range(4)]
    assert made == reference.crops(picture, **shape)
    if size == (20, 50):
        assert np.asarray(made[0])[:, 20:].max() == np.asarray(made[1])[:, :8].max() == 0


def test_a_share_goes_before_the_models_side_and_stands_in_for_one_that_is_not_there():
    picture = noise(80, 60)
    assert [cut(picture, 3, *how).size for how in ((28, 0.5), (None, 0.5), (None, None))] == [(40, 30), (40, 30), (48, 36)]
    assert cut(noise(9, 9), 0, None, 0.01).size == (1, 1)


@pytest.mark.both_families
def test_the_prompt_about_a_crop_is_what_the_processor_makes_of_it(exact, family, picture):
    """Tokens, pixels and, where a family has them, patch grids and positions."""
    backbone, seen = exact.backbone, []
    shown = [picture, WIDE]
    handle = backbone.model.base_model.register_forward_pre_hook(lambda _m, _a, kwargs: seen.append(kwargs), with_kwargs=True)
    with exact.using(mgap.ED()):
        list(exact.answers(shown, QUESTIONS, max_new_tokens=1))
    handle.remove()
    own = [reference.crops(one, **shape_of(family)) for one in shown]
    expected = [backbone.encode(list(crops), QUESTIONS) for crops in (shown, *zip(*own, strict=True))]
    ids, mask, positions = (seen[0][key] for key in ("input_ids", "attention_mask", "position_ids"))
    for part, inputs in enumerate(expected):
        alone = backbone.positions(inputs)
        for row in range(2):
            used, real = mask[2 * part + row].bool(), inputs["attention_mask"][row].bool()
            assert ids[2 * part + row][used].tolist() == inputs["input_ids"][row][real].tolist()
            assert torch.equal(positions[..., 2 * part + row, :][..., used], alone[..., row, :][..., real])
    lengths = [inputs["attention_mask"].sum(-1).tolist() for inputs in expected]
    assert (lengths[0] != lengths[1]) == (family == "qwen3-vl")


# --- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.both_families
def test_a_watched_forward_reads_what_eager_attention_shows_of_the_main_rows(exact, picture):
    backbone = exact.backbone
    inputs = backbone.encode([picture, WIDE, picture], [*QUESTIONS, "And?"])  # some rows are left padded
    with eager(backbone), torch.no_grad():
        weights = torch.stack(backbone.model(**inputs, output_attentions=True).attentions)[:, :2, :, -1]
    expected = weights.topk(3, dim=0).values.mean(0).topk(3, dim=1).values.mean(1)
    row_split = row_split_of(backbone.model)
    watch = AttentionWatch(backbone, "ed", partial(LargestWeights, row_split=row_split))
    watch.start()
    row_split.main = 2
    try:
        with torch.no_grad():
            backbone.model(**inputs, use_cache=True)
    finally:
        row_split.main = None
    torch.testing.assert_close(watch.take(), expected, rtol=1e-4, atol=1e-6)
    assert not watch.is_on


@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
def test_the_largest_so_far_are_the_largest_of_all(blocks):
    weights = torch.rand(blocks, 2, 4, 9)
    kept = []
    for block in weights:
        kept = keep_largest(kept, block)
    assert torch.equal(torch.stack(kept), weights.sort(0, descending=True).values[:3])
    few = mean_of_largest([block[:, :2] for block in kept])
    torch.testing.assert_close(few, torch.stack(kept)[:, :, :2].mean(0).mean(1), msg="of two heads, both")


def test_the_middle_of_an_odd_map_belongs_to_the_lower_and_right_quarters():
    images = torch.tensor([[0, *[1] * 6, 0, 0], [1] * 4 + [0] * 5]).bool()
    quarters = quarters_of(images, [(3, 2), (1, 4)])
    assert quarters.tolist() == [[4, 0, 1, 2, 3, 2, 3, 4, 4], [2, 2, 3, 3, 4, 4, 4, 4, 4]]
    sums = sum_quarters(torch.arange(20.0).view(2, 10), quarters)  # the answer's keys count for nothing
    assert sums.tolist() == [[1, 2, 8, 10], [0, 0, 21, 25]]
    assert quarters_of(images[:1].repeat(2, 1), [(3, 2)]).tolist() == [quarters[0].tolist()] * 2, "beams repeat a row"
    with pytest.raises(ModelError, match=r"\[6, 4\] image tokens.*\[6, 6\]"):
        quarters_of(images, [(3, 2), (3, 2)])


@pytest.mark.parametrize("tau", [6.0, 37.0, 1e30])
def test_a_large_tau_leaves_the_most_attended_crop_alone(tau):
    sums = torch.tensor([[0.1, 0.1003, 0.09, 0.1], [0.2, 0.0, 0.0, 0.0]])
    weights = crop_weights(sums, tau)
    assert weights.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    crops, main = torch.randn(4, 2, 9), torch.randn(2, 9)
    kept = dict(zip(CORNERS, weights.unbind(-1), strict=True))
    scores, traced = mgap.ED(alpha=1.0, beta=0.0, tau=tau).weigh(main, crops.unbind(0), 1, kept)
    assert torch.equal(scores, crops[[1, 0], [0, 1]])
    assert [float(traced[corner][0]) for corner in CORNERS] == [0, 1, 0, 0]


def test_four_equal_crops_are_one_whatever_their_weights():
    main, crop, weights = torch.randn(3, 9), torch.randn(3, 9), torch.rand(3, 4).softmax(-1)
    kept = dict(zip(CORNERS, weights.unbind(-1), strict=True))
    scores, _ = mgap.ED().weigh(main, [crop] * 4, 1, kept)
    torch.testing.assert_close(scores, mgap.FastED().combine(main, crop, 1)[0])


def test_the_cut_looks_at_the_crops_and_may_drop_the_main_favourite():
    main, crops = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.0, 4.0, 3.9]])
    scores, _ = mgap.FastED(alpha=0.5, beta=0.5).combine(main, crops, 1)
    assert scores.tolist() == [[-torch.inf, 2.0, pytest.approx(1.95)]]
    certain, _ = mgap.FastED(alpha=0.5, beta=1.0).combine(main, crops, 1)
    assert certain.isfinite().tolist() == [[False, True, False]]


# --- refusals, and what stays behind ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", BOTH, ids=lambda method: method.name)
def test_a_failed_forward_leaves_the_models_own_kernel(exact, picture, method):
    text, plain = exact.backbone.config.text_config, exact.answer(picture, "What?", max_new_tokens=3).token_ids
    before = text._attn_implementation
    with exact.using(replace(method, alpha=1.0, beta=0.0)):
        told = exact.answer(picture, "What?", max_new_tokens=3).token_ids
        handle = exact.backbone.layers[1].register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            exact.answer(picture, "What?", max_new_tokens=3)
        handle.remove()
        assert text._attn_implementation == before
        assert exact.answer(picture, "What?", max_new_tokens=3).token_ids == told != plain
    assert exact.answer(picture, "What?", max_new_tokens=3).token_ids == plain
    assert not exact.backbone.language._forward_hooks


@pytest.mark.parametrize("method", BOTH, ids=lambda method: method.name)
def test_rows_without_a_picture_and_generates_of_ones_own_are_refused(exact, picture, method):
    own, inputs = exact.backbone.model, exact.backbone.encode([picture], QUESTIONS[:1])
    with exact.using(method):
        with pytest.raises(PromptError, match=f"leave {method.name} off"):
            exact.answer(None, "What?", max_new_tokens=2)
        with pytest.raises(PromptError, match="in every row"):
            list(exact.answers([picture, None], QUESTIONS, max_new_tokens=2))
        with pytest.raises(UnsupportedDecoding, match=rf"^{method.name} cuts the picture itself.*call model\.answer"):
            own.generate(**inputs, max_new_tokens=2)
        for options in REFUSED:
            with pytest.raises(UnsupportedDecoding), asking(own, [Asked(picture, QUESTIONS[0])]):
                own.generate(**inputs, max_new_tokens=2, do_sample=False, **options)
    with pytest.raises(ModelError, match="processor"):
        mgap.attach(own, method)
    assert not own._forward_pre_hooks


@pytest.mark.parametrize("method", BOTH, ids=lambda method: method.name)
def test_two_pictures_in_a_row_are_refused(exact, picture, method):
    backbone = exact.backbone
    image = backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id)
    text = backbone.render("What?").replace(image, f"{image} and {image}")
    inputs = dict(backbone.processor(images=[[picture, picture]], text=[text], return_tensors="pt"))
    with exact.using(method), pytest.raises(PromptError, match="one picture a row"):  # noqa: SIM117
        with asking(backbone.model, [Asked(picture, "What?")]):
            backbone.model.generate(**inputs, max_new_tokens=2, do_sample=False)


@pytest.mark.parametrize("kind", ["llava_next", "idefics3"])
def test_models_that_cut_pictures_into_tiles_are_refused_by_name(kind, tmp_path):
    families.FAMILIES[kind](tmp_path)
    model = mgap.load(str(tmp_path), device="cpu")
    for method in BOTH:
        with pytest.raises(ModelError, match=f"^{method.name} needs .* {kind} is not known"), model.using(method):
            pass
    assert not model.backbone.model._forward_hooks


def test_it_stacks_on_nothing(exact, prior):
    with exact.using(mgap.ED()), pytest.raises(SettingError, match="cannot be put on top"), exact.using(mgap.MGAP(prior)):
        pass


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"alpha": -1}, "alpha"), ({"beta": 2}, "beta"), ({"tau": -1}, "tau"), ({"tau": float("nan")}, "tau"),
     ({"crop_share": 0}, "crop_share"), ({"crop_share": 1.1}, "crop_share"), ({"preset": "paper"}, "preset")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.ED(**settings)


def test_presets_set_tau_and_fast_ed_has_none():
    assert [mgap.ED(preset=preset).tau for preset in mgap.ED.presets] == [2.0, 4.0]
    assert mgap.ED(tau=1.0, preset="captions").sharpness == 1.0
    with pytest.raises(SettingError, match="fast-ed has no setting 'tau'"):
        mgap.FastED.of(tau=2.0)
