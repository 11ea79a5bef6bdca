"""Methods with a second branch: against themselves written out, in both ways of running, with beams, and refused in time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.errors import ModelError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.kinds.branch import PairedMethod, contrast, plausible
from mgap.registry import METHODS
from tests.methods.builders import build
from tests.methods.following import NEW, QUESTIONS, check_beams, follow
from tests.reference import contrast as reference

BRANCHES = [name for name in METHODS.names() if issubclass(METHODS.get(name), PairedMethod)] + ["icd with vcd"]


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.mark.parametrize(
    ("alpha", "beta", "step"), [(1.0, 0.1, 500), pytest.param(3.0, 0.0, 999, marks=pytest.mark.both_families)]
)
def test_vcd_is_what_its_equations_say(exact, picture, alpha, beta, step):
    method = mgap.VCD(alpha=alpha, beta=beta, noise_step=step)

    def branch(main, _question):
        parts = [main["pixel_values"][rows] for rows in exact.backbone.pictures(main)]
        noised = [reference.noised(part, method.noise(exact.backbone, part), step) for part in parts]
        return {**main, "pixel_values": torch.cat(noised)}

    follow(exact, picture, method, branch, reference.contrastive(alpha, beta))


@pytest.mark.parametrize("null", ["black_same_size", "mean_colour", "noise", "no_image"])
def test_the_blind_contrast_is_what_its_equation_says(exact, picture, null):
    def branch(main, question):
        if null == "no_image":
            return exact.backbone.encode([None], [question])
        if null == "mean_colour":
            return {**main, "pixel_values": torch.zeros_like(main["pixel_values"])}
        if null == "noise":
            return {**main, **exact.backbone.null_pixels(main, "noise")}
        return exact.backbone.encode([Image.new("RGB", picture.size)], [question])

    follow(exact, picture, mgap.Blind(rho=2.0, null_image=null), branch, reference.contrastive(2.0, 0.0))


@pytest.mark.both_families
def test_blind_noise_is_noise_on_grey_and_the_same_in_every_batch(exact, picture):
    backbone = exact.backbone
    other = picture.resize((picture.width * 2, picture.height))
    inputs = backbone.encode([other, picture], QUESTIONS[:2])
    noise = backbone.null_pixels(inputs, "noise")["pixel_values"]
    alone = backbone.null_pixels(backbone.encode([picture], QUESTIONS[:1]), "noise")["pixel_values"]
    assert torch.equal(noise[backbone.pictures(inputs)[1]], alone)
    images = backbone.processor.image_processor
    mean, std = (backbone.per_channel(torch.tensor(of), noise) for of in (images.image_mean, images.image_std))
    levels = noise * std + mean  # from 0 to 1 again
    assert levels.min() > -1e-6
    assert levels.max() < 1 + 1e-6
    assert abs(levels.mean() - 0.5) < 0.01
    assert abs(levels.std() - 0.30) < 0.01  # 0.35, of which the tails are clipped


def test_subtracting_chooses_as_extrapolating_does(exact, picture):
    with exact.using(mgap.Blind(rho=3.0)):
        expected = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
    with exact.using(mgap.Blind(rho=0.75, form="subtract")):
        assert exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids == expected


@pytest.mark.parametrize(("lam", "beta"), [(0.02, 0.1), (0.2, 0.0)])
def test_m3id_is_what_its_equation_says(exact, picture, lam, beta):
    method = mgap.M3ID(lam=lam, beta=beta)
    follow(exact, picture, method, lambda main, _q: reference.without_image(exact.backbone, main), reference.m3id(lam, beta))


@pytest.mark.parametrize("method", [mgap.VCD(alpha=0.0), mgap.Blind(rho=0.0), mgap.M3ID(lam=0.0)], ids=lambda m: m.name)
def test_zero_strength_says_what_the_model_says(exact, picture, method):
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(method):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_beams": 3}, marks=pytest.mark.each_kind),
        pytest.param({"sample": True, "seed": 5}, marks=pytest.mark.each_kind),
    ],
    ids=["greedy", "beams", "sampling"],
)
def test_both_ways_of_running_a_branch_agree(exact, prior, picture, name, options):
    method = build(name, prior)
    pictures = [picture, picture.rotate(90, expand=True)]
    told = []
    for mode in ("batched", "sequential"):
        with exact.using(replace(method, branch_mode=mode)):
            told.append([exact.answer(p, QUESTIONS[0], max_new_tokens=NEW, **options).token_ids for p in pictures])
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["blind", "code", "haltrapper", "icd", "m3id", "ritual", "vcd"])
def test_a_token_costs_the_forwards_that_are_declared(exact, prior, picture, name):
    """A later one; what is done before the first, such as describing the picture, is kept from the answer before."""
    method, rows = build(name, prior), []
    handle = exact.backbone.model.base_model.register_forward_pre_hook(
        lambda _model, _args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    with exact.using(method):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=1)
        rows.clear()
        for new in (3, 4):
            rows.append(0)
            exact.answer(picture, QUESTIONS[0], max_new_tokens=new)
    handle.remove()
    again = rows.index(0, 1)
    assert sum(rows[again:]) - sum(rows[:again]) == method.forwards


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.each_kind
def test_beams_search_the_combined_scores(exact, prior, picture, name, mode):
    check_beams(exact, picture, replace(build(name, prior), branch_mode=mode))


def test_a_model_without_its_processor_takes_a_branch_too(exact, picture):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    own, length = exact.backbone.model, inputs["input_ids"].shape[1]
    with exact.using(mgap.VCD(alpha=3.0)):
        expected = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
    with mgap.attach(own, mgap.VCD(alpha=3.0)):
        made = own.generate(**inputs, max_new_tokens=NEW, do_sample=False)[0, length:].tolist()
    assert tuple(made) == expected
    assert not own._forward_hooks
    assert not own._forward_pre_hooks
    assert not exact.backbone.vision._forward_pre_hooks
    with pytest.raises(ModelError, match="processor"), mgap.attach(own, mgap.Blind()):
        own.generate(**inputs, max_new_tokens=2)


@pytest.mark.parametrize(("method", "runs"), [(mgap.VCD(), 2), (mgap.Blind(), 2), (mgap.M3ID(), 1)], ids=lambda m: str(m)[:5])
def test_the_vision_tower_runs_for_new_pictures_only(exact, picture, method, runs):
    calls = []
    handle = exact.backbone.vision.register_forward_hook(lambda *_: calls.append(1))
    with exact.using(method):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=4)
    handle.remove()
    assert len(calls) == runs


def test_noise_depends_on_the_seed_and_the_picture_only(exact, picture):
    other = Image.fromarray(np.asarray(picture)[::-1].copy())
    main = exact.backbone.encode([picture, other], ["What?"] * 2)
    swapped = exact.backbone.encode([other, picture], ["What?"] * 2)
    first, second = exact.backbone.pictures(main)
    one, two = (mgap.VCD().branch(exact.backbone, inputs)["pixel_values"] for inputs in (main, swapped))
    assert torch.equal(one[first], two[second])
    assert torch.equal(one[second], two[first])
    assert not torch.equal(one, mgap.VCD(seed=1).branch(exact.backbone, main)["pixel_values"])


def first_noised(model, attach_to, call):
    """The noised pixels that the vision tower reads under VCD, in float32."""
    seen = []
    backbone = model.backbone
    handle = backbone.vision.register_forward_pre_hook(
        lambda _tower, args, kwargs: seen.append(backbone.tower_inputs(args, kwargs)["pixel_values"]), with_kwargs=True
    )
    with mgap.attach(attach_to, mgap.VCD(noise_step=999)):
        call()
    handle.remove()
    return seen[-1].float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_noise_is_the_same_in_models_of_every_dtype(family, checkpoints, exact, picture, dtype):
    expected = first_noised(exact, exact, lambda: exact.answer(picture, "What?", max_new_tokens=1))
    model = mgap.load(str(checkpoints[family]), dtype=dtype)
    inputs = model.backbone.encode([picture], ["What?"])
    cast = {**inputs, "pixel_values": inputs["pixel_values"].to(dtype)}
    own = model.backbone.model  # without its processor, as in a program of one's own
    ways = {
        "answer": (model, lambda: model.answer(picture, "What?", max_new_tokens=1)),
        "generate": (own, lambda: own.generate(**inputs, max_new_tokens=1)),
        "generate from cast pixels": (own, lambda: own.generate(**cast, max_new_tokens=1)),
    }
    for way, (attach_to, call) in ways.items():
        noised = first_noised(model, attach_to, call)
        assert torch.corrcoef(torch.stack([noised.flatten(), expected.flatten()]))[0, 1] > 0.999, way


def test_the_trace_shows_how_far_the_branches_are_apart(exact, picture):
    with exact.using(mgap.M3ID(lam=0.1)):
        steps = exact.answer(picture, QUESTIONS[0], max_new_tokens=4, trace=True).trace
    assert [step.values["weight"] for step in steps] == pytest.approx([np.expm1(0.1 * t) for t in range(1, len(steps) + 1)])
    assert all(0 < step.values["distance"] < 1 for step in steps)


def test_states_of_the_main_rows_come_back(exact, picture):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.VCD()):
        made = exact.backbone.model.generate(
            **inputs, max_new_tokens=2, do_sample=False, output_hidden_states=True, return_dict_in_generate=True
        )
    assert {len(state) for step in made.hidden_states for state in step} == {1}


@pytest.mark.parametrize("method", [mgap.VCD(), mgap.Blind(), mgap.M3ID(), mgap.RITUAL()], ids=lambda m: m.name)
def test_without_a_picture_it_is_refused(exact, method):
    with exact.using(method), pytest.raises(PromptError, match=f"leave {method.name} off"):
        exact.answer(None, "What?", max_new_tokens=2)


def test_a_forward_without_a_cache_is_refused(exact, picture):
    inputs = exact.backbone.encode([picture], ["What?"])
    with exact.using(mgap.VCD()), pytest.raises(UnsupportedDecoding, match="call generate"):
        exact.backbone.model(**inputs)


@pytest.mark.parametrize(
    "options", [{"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 2}, {"use_cache": False}], ids=str
)
def test_your_own_generate_in_a_refused_mode_is_refused(exact, picture, options):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.VCD()), pytest.raises(UnsupportedDecoding):
        exact.backbone.model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)


@pytest.mark.parametrize(
    ("kind", "settings", "word"),
    [
        ("VCD", {"alpha": -1}, "alpha"),
        ("VCD", {"beta": 2}, "beta"),
        ("VCD", {"noise_step": 1000}, "noise_step"),
        ("VCD", {"branch_mode": "both"}, "branch_mode"),
        ("Blind", {"null_image": "white"}, "null_image"),
        ("Blind", {"form": "add"}, "form"),
        ("M3ID", {"constraint": "all"}, "constraint"),
        ("M3ID", {"tau": 0}, "tau"),
        ("M3ID", {"most": -1}, "most"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, settings, word):
    with pytest.raises(SettingError, match=word):
        getattr(mgap, kind)(**settings)


@pytest.mark.parametrize(("kind", "settings"), [("VCD", {"noise_step": 0}), ("M3ID", {"most": 0.5}), ("M3ID", {"most": 0})])
def test_the_least_that_makes_sense_is_allowed(kind, settings):
    method = getattr(mgap, kind)(**settings)
    assert {name: getattr(method, name) for name in settings} == settings


def test_the_favourite_always_stays():
    logits = torch.randn(5, 40)
    scores = contrast(logits, torch.randn(5, 40), 1.0, 1.0)
    assert torch.equal(scores.isfinite().int().argmax(-1), logits.argmax(-1))
    assert scores.isfinite().sum() == 5
    assert plausible(scores, logits, 0.0) is scores


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("order", [1, -1], ids=["branch first", "head first"])
def test_mgap_stands_on_a_branch_and_corrects_the_main_rows_only(exact, picture, mode, order):
    prior = mgap.Subspace.fit(exact, mgap.default_prompts())
    correct, method = mgap.MGAP(prior, alpha=1.0), mgap.VCD(alpha=1.0, beta=0.0, noise_step=999, branch_mode=mode)
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    own = exact.backbone.model
    with torch.no_grad():
        with exact.using(correct):
            main = own(**inputs).logits[:, -1]
        branch = own(**method.branch(exact.backbone, inputs)).logits[:, -1]
    options = {"max_new_tokens": 1, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
    with exact.using(*(method, correct)[::order]):
        (scores,) = own.generate(**inputs, **options).scores
        alone = exact.answer(picture, QUESTIONS[1], max_new_tokens=NEW).token_ids
        together = list(exact.answers([picture] * 2, QUESTIONS[:2], max_new_tokens=NEW))
    torch.testing.assert_close(scores, 2 * main - branch, rtol=1e-4, atol=1e-4)
    assert together[1].token_ids == alone
    with exact.using(method):
        (without,) = own.generate(**inputs, **options).scores
    assert not torch.allclose(scores, without, atol=1e-4)


def test_two_branches_are_refused_and_a_trace_of_a_stack_too(exact, prior, picture):
    with exact.using(mgap.VCD()), pytest.raises(SettingError, match="m3id cannot be put on top"), exact.using(mgap.M3ID()):
        pass
    with pytest.raises(SettingError, match="cannot be put on top"), exact.using(mgap.MGAP(prior), mgap.MGAP(prior)):
        pass
    with exact.using(mgap.VCD(), mgap.MGAP(prior)), pytest.raises(SettingError, match="one at a time"):
        exact.answer(picture, "What?", trace=True)
    assert not exact.backbone.model._forward_hooks


@pytest.mark.parametrize("method", [mgap.VCD(), mgap.ICD(), mgap.M3ID()], ids=lambda method: method.name)
def test_a_prompt_that_is_read_in_chunks_is_refused(model, picture, method):
    """The branch would be made of the first chunk. Up to transformers 5.19 its picture is dropped, which is told first."""
    inputs = model.backbone.encode([picture], ["Is there a dog in the image?"])
    chunk = inputs["input_ids"].shape[1] - 3
    with (
        model.using(method),
        pytest.raises((PromptError, UnsupportedDecoding), match=r"give (a picture|one)|without prefill_chunk_size"),
    ):
        model.backbone.model.generate(**inputs, max_new_tokens=2, do_sample=False, prefill_chunk_size=chunk)
