"""VISTA: against itself written out; a vector for every row, made once and unsteered; lengths stay; off without a trace."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import mgap
from mgap.errors import ModelError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.base import Tap
from mgap.methods.kinds.visual_steering import find_site
from mgap.methods.vista import turn
from tests.methods.following import REFUSED, check_beams
from tests.reference import vista as reference

QUESTIONS = ("Is there a dog in the image?", "What?")
NEW = 6
GREEDY = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@contextmanager
def reading(model):
    """The shape of what the text decoder reads in every forward inside."""
    shapes = []
    handle = model.backbone.language.register_forward_pre_hook(
        lambda _language, _args, kwargs: shapes.append(tuple(kwargs["inputs_embeds"].shape[:2])), with_kwargs=True
    )
    try:
        yield shapes
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"lam": 0.17, "alpha": 0.3, "window": [2], "layers": [1, 2, 3]}, id="defaults"),
        pytest.param(
            {"lam": 1.0, "alpha": 0.5, "window": [1, 2], "layers": [1, 2, 3]}, id="strong", marks=pytest.mark.both_families
        ),
        pytest.param({"lam": 1.0, "alpha": 0.5, "window": [0, 2], "layers": [2], "normed": True}, id="one block, normed"),
        pytest.param({"lam": 0.5, "alpha": 0.3, "window": [2], "layers": [1, 3], "gain": False}, id="no gain"),
        pytest.param({"lam": 0.3, "alpha": 0.0, "window": [2], "layers": [1, 2, 3], "site": "block"}, id="block outputs"),
    ],
)
def test_vista_is_what_its_equations_say(exact, picture, settings):
    lengths = []
    for question in QUESTIONS:
        inputs = exact.backbone.encode([picture], [question])
        tokens, scores = reference.decode(exact, inputs, NEW, **settings)
        with exact.using(mgap.VISTA(**settings)):
            made = exact.backbone.model.generate(**inputs, **GREEDY)
        assert tuple(made.sequences[0, inputs["input_ids"].shape[1] :].tolist())[: len(tokens)] == tokens
        found = torch.cat(made.logits[: len(tokens)]).double()
        torch.testing.assert_close(found, torch.tensor(scores, dtype=torch.float64), rtol=1e-4, atol=1e-4)
        lengths.append(len(tokens))
    assert max(lengths) == NEW, lengths


def test_by_default_all_blocks_are_steered_and_the_published_window_is_read(exact, picture):
    told = []
    for settings in ({}, {"lam": 0.17, "alpha": 0.3, "window": [2], "layers": [1, 2, 3]}):
        with exact.using(mgap.VISTA(**settings)):
            made = exact.backbone.model.generate(**exact.backbone.encode([picture], [QUESTIONS[0]]), **GREEDY)
            told.append(torch.cat(made.logits))
    assert torch.equal(*told)


@pytest.mark.both_families
def test_every_row_has_the_vectors_that_it_has_alone(exact, picture):
    """Measured apart from the method: the outputs of every block with the picture and without."""
    backbone, pictures = exact.backbone, [picture, picture.rotate(90, expand=True)]
    steering, cache = mgap.VISTA(lam=1.0)._steering(backbone), DynamicCache(config=backbone.config)
    handles = steering.hook()
    try:
        inputs = backbone.encode(pictures, QUESTIONS)
        backbone.model.generate(**inputs, max_new_tokens=2, do_sample=False, past_key_values=cache)
    finally:
        for handle in handles:
            handle.remove()
    found = torch.cat(steering.vectors[cache], dim=1).double()  # [B, L, d]
    assert steering.current == []
    for row, (shown, question) in enumerate(zip(pictures, QUESTIONS, strict=True)):
        expected = torch.stack(reference.vectors(backbone, backbone.encode([shown], [question])))
        assert (expected.norm(dim=-1) > 1e-3).all()
        cosine = torch.cosine_similarity(found[row], expected, dim=-1)
        torch.testing.assert_close(cosine, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-6)
    assert (torch.cosine_similarity(found[0], found[1], dim=-1) < 0.999).all()


def test_both_strengths_at_zero_give_the_plain_logits_to_the_bit_and_run_nothing_more(exact, picture):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    with reading(exact) as plainly:
        plain = exact.backbone.model.generate(**inputs, **GREEDY).logits
    with exact.using(mgap.VISTA(lam=0.0, alpha=0.0)), reading(exact) as shapes:
        found = exact.backbone.model.generate(**inputs, **GREEDY).logits
    assert all(map(torch.equal, found, plain))
    assert shapes == plainly


@pytest.mark.both_families
def test_without_steering_it_mixes_what_the_plain_model_has_in_its_layers(exact, picture):
    inputs, weight = exact.backbone.encode([picture, None], QUESTIONS), exact.backbone.head_module.weight
    plain = exact.backbone.model.generate(**inputs, **{**GREEDY, "max_new_tokens": 1}, output_hidden_states=True)
    early = torch.stack([plain.hidden_states[0][i][:, -1] for i in (1, 2)]).mean(0)
    with exact.using(mgap.VISTA(lam=0.0, alpha=0.4, window=[1, 2])), reading(exact) as shapes:
        found = exact.backbone.model.generate(**inputs, **{**GREEDY, "max_new_tokens": 1}).logits[0]
    torch.testing.assert_close(found, 0.6 * plain.logits[0] + 0.4 * early @ weight.T, rtol=1e-5, atol=1e-5)
    assert len(shapes) == 1


def test_a_prompt_costs_two_more_prefills_the_tower_runs_once_and_a_token_costs_one_forward(exact, picture):
    towers, text = [], exact.backbone.without_image(exact.backbone.encode([picture], [QUESTIONS[0]]))["input_ids"].shape[1]
    handle = exact.backbone.vision.register_forward_hook(lambda *_: towers.append(1))
    with exact.using(mgap.VISTA()), reading(exact) as shapes:
        exact.answer(picture, QUESTIONS[0], max_new_tokens=3)
    handle.remove()
    prompt = exact.backbone.encode([picture], [QUESTIONS[0]])["input_ids"].shape[1]
    assert shapes == [(1, prompt), (1, text), (1, prompt), (1, 1), (1, 1)]
    assert len(towers) == 1


def test_the_head_reads_the_mean_as_it_reads_each_layer(exact):
    backbone = exact.backbone
    method, head = mgap.VISTA(window=[0, 1, 2]), backbone.probe_head()
    states = torch.randn(3, 2, 4, head.hidden_size, generator=torch.Generator().manual_seed(0))
    for norm in (None, backbone.final_norm):
        readout = method.readout(method.lens(backbone, head)[0], norm, head, Tap())
        with torch.no_grad():
            mean, each = readout._early(states), super(type(readout), readout)._early(states)
        assert (len(mean), len(each)) == (1, 3)
        torch.testing.assert_close(mean[0], each.mean(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lengths_stay_and_outputs_turn_towards_the_vector(dtype, gain):
    generator = torch.Generator().manual_seed(0)
    m = torch.randn(2, 5, 32, generator=generator, dtype=dtype) * 7
    unit = nn.functional.normalize(torch.randn(2, 1, 32, generator=generator, dtype=dtype), dim=-1)
    found = turn(m, unit, lam=0.3, gain=gain)
    torch.testing.assert_close(found.norm(dim=-1), m.norm(dim=-1), rtol=1e-5, atol=0)
    assert ((found @ unit.mT) > (m @ unit.mT)).all()
    for row in range(2):
        for t in range(5):
            expected = reference.turn(m[row, t].double(), unit[row, 0].double(), 0.3, gain)
            torch.testing.assert_close(found[row, t].double(), expected, rtol=1e-4, atol=1e-4)


def test_zeros_change_nothing_and_an_output_that_looks_away_is_pushed_twice_as_hard():
    m, unit = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0)), torch.eye(8)[None, :1]
    for gain in (True, False):
        assert torch.equal(turn(m, torch.zeros(1, 1, 8), lam=0.5, gain=gain), m)
        assert torch.equal(turn(m, unit, lam=0.0, gain=gain), m)
        assert torch.equal(turn(torch.zeros(1, 3, 8), unit, lam=0.5, gain=gain), torch.zeros(1, 3, 8))
    away = torch.tensor([[[-3.0, 0.001, 0, 0, 0, 0, 0, 0]]])
    assert turn(away, unit, lam=0.6, gain=True)[0, 0, 0] > 2.99, "1.2 times its length: it turns round"
    assert turn(away, unit, lam=0.6, gain=False)[0, 0, 0] < -2.99
    assert turn(away, unit, lam=0.5, gain=True).isfinite().all()


def test_beams_score_as_a_forced_answer_does(exact, picture):
    check_beams(exact, picture, mgap.VISTA(lam=0.5, alpha=0.3))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_the_trace_has_the_tokens_of_the_answer_and_nothing_of_its_prefills(exact, picture, alpha):
    with exact.using(mgap.VISTA(lam=0.5, alpha=alpha)):
        answer = exact.answer(picture, QUESTIONS[0], max_new_tokens=3, trace=True)
    assert [step.after[0].token_id for step in answer.trace] == list(answer.token_ids)
    assert [set(step.values) for step in answer.trace] == [{"distance"} if alpha else set()] * len(answer.trace)


def test_in_16_bits_steering_is_computed_in_single(checkpoints, picture):
    half = mgap.load(str(checkpoints["llava"]), dtype=torch.bfloat16)
    inputs = half.backbone.encode([picture], [QUESTIONS[0]])
    for alpha in (0.0, 0.3):
        with half.using(mgap.VISTA(lam=1e-6, alpha=alpha)):
            found = half.backbone.model.generate(**inputs, **GREEDY).logits
        assert {step.dtype for step in found} == {torch.float32}
    with half.using(mgap.VISTA(lam=1e-6, alpha=0.0, exact=False)):
        found = half.backbone.model.generate(**inputs, **GREEDY).logits
    assert all(map(torch.equal, found, half.backbone.model.generate(**inputs, **GREEDY).logits)), "too weak for 16 bits"


def test_detaching_leaves_the_model_as_it_was(exact, picture):
    own = exact.backbone.model
    exact.answer(picture, QUESTIONS[0], max_new_tokens=2)  # transformers adds hooks of its own once

    def look():
        return [(list(module._forward_hooks), list(module._forward_pre_hooks)) for module in own.modules()]

    before, plain = look(), exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
    for settings in ({}, {"alpha": 0.0}, {"lam": 0.0}):
        with exact.using(mgap.VISTA(**settings)):
            exact.answer(picture, QUESTIONS[0], max_new_tokens=2)
            if settings.get("lam") != 0:
                with pytest.raises(PromptError, match="leave vista off"):
                    exact.answer(None, QUESTIONS[0], max_new_tokens=2)
            assert look() != before
        assert look() == before
    for wrong, word in (({"layers": [4]}, "between 1 and 3"), ({"window": [3]}, "before the last of 3 blocks")):
        with pytest.raises(SettingError, match=word), exact.using(mgap.VISTA(**wrong)):
            pass
        assert look() == before
    assert exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids == plain


def test_a_forward_that_fails_leaves_no_steering_behind(exact, picture):
    method = mgap.VISTA(lam=1.0)
    with exact.using(method):
        expected = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
        handle = exact.backbone.layers[1].register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            exact.answer(picture, QUESTIONS[1], max_new_tokens=2)
        handle.remove()
        assert exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids == expected


def test_a_row_without_a_picture_is_refused(exact, picture):
    with exact.using(mgap.VISTA()), pytest.raises(PromptError, match="in every row"):
        list(exact.answers([picture, None], QUESTIONS, batch_size=2, max_new_tokens=2))


@pytest.mark.parametrize("options", REFUSED[:3], ids=str)
def test_your_own_generate_in_a_refused_mode_is_refused(exact, picture, options):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.VISTA()), pytest.raises(UnsupportedDecoding, match="vista"):
        exact.backbone.model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)


def test_a_block_without_an_mlp_is_refused_and_may_be_steered_itself():
    block = nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"Linear has no part called mlp.*site=block"):
        find_site("vista", block, "mlp")
    assert find_site("vista", block, "block") is block


def test_presets_fill_in_what_is_not_given():
    assert (mgap.VISTA().lam, mgap.VISTA(preset="questions").lam, mgap.VISTA(preset="questions", lam=0.1).lam) == (
        0.17,
        0.01,
        0.1,
    )


@pytest.mark.parametrize(
    ("count", "window"), [(1, [0]), (2, [1]), (3, [2]), (4, [3]), (28, range(22, 28)), (32, range(26, 32)), (36, range(29, 35))]
)
def test_the_window_is_the_same_fractions_of_every_depth_and_never_the_last_block(count, window):
    assert mgap.VISTA().early_layers(count, None) == tuple(window)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"lam": -1}, "lam"), ({"alpha": float("nan")}, "alpha"), ({"site": "attention"}, "site"), ({"gain": 1}, "gain"),
     ({"normed": "yes"}, "normed"), ({"window": []}, "window"), ({"layers": [-1]}, "layers"), ({"preset": "best"}, "preset")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.VISTA(**settings)


def test_while_it_steers_there_is_no_one_state(exact):
    assert mgap.VISTA(lam=0.0).has_state
    with pytest.raises(SettingError, match=r"^vista at lam=0\.17 .*lam=0"):
        mgap.VISTA().require_state()
