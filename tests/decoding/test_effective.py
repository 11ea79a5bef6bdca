"""The state that a method decodes from: through the head it must give the method's own scores, row for row."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.decoding.attach import attached
from mgap.decoding.effective import first_states
from mgap.errors import SettingError
from mgap.registry import METHODS
from tests.methods.builders import build
from tests.reference import contrast, description
from tests.reference import mgap as written_out
from tests.reference.departure import last_state

QUESTIONS = ["Is there a dog in the image?", "What?", "How many people are there in this picture?"]
# at a strength, with nothing dropped from the vocabulary
AT = {
    "vcd": lambda s: mgap.VCD(alpha=s, beta=0.0),
    "icd": lambda s: mgap.ICD(alpha=s, beta=0.0),
    "icd subtract": lambda s: mgap.ICD(alpha=s, beta=0.0, form="subtract"),
    "haltrapper": lambda s: mgap.HalTrapper(alpha=s, beta=0.0, n=3, length=6),
    "haltrapper augmentive": lambda s: mgap.HalTrapper(alpha=s, beta=0.0, n=3, length=6, form="augmentive"),
    "blind": lambda s: mgap.Blind(rho=s),
    "blind subtract": lambda s: mgap.Blind(rho=s, form="subtract"),
    "m3id": lambda s: mgap.M3ID(lam=math.log1p(s), beta=0.0),
}
STATEFUL = {"mgap", "vcd", "icd", "code", "haltrapper", "blind", "m3id"}


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.fixture(scope="module")
def pictures(picture):
    return [picture, Image.fromarray(np.asarray(picture)[::-1].copy()), picture]


def scores_of(model, inputs, method):
    """What a generate under the method chooses the first token from, [B, vocab]."""
    with model.using(method):
        options = {"max_new_tokens": 1, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
        return model.backbone.model.generate(**inputs, **options).logits[0]


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("name", AT)
def test_the_head_makes_the_methods_own_scores_of_it(exact, pictures, name, mode):
    inputs, head = exact.backbone.encode(pictures, QUESTIONS), exact.backbone.probe_head()
    with first_states(exact, replace(AT[name](1.0), branch_mode=mode)) as read:
        seen = read(inputs)
    for strength in (0.0, 0.25, 3.0):
        made = head.product(seen.at(strength)).log_softmax(-1)
        expected = scores_of(exact, inputs, AT[name](strength)).log_softmax(-1)
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


def test_the_weight_that_code_finds_gives_codes_own_scores(exact, picture):
    inputs, method = exact.backbone.encode([picture], QUESTIONS[:1]), mgap.CODE(length=6)
    with exact.using(method):
        weight = exact.answer(picture, QUESTIONS[0], max_new_tokens=1, trace=True).trace[0].values["weight"]
    with first_states(exact, method) as read:
        seen = read(inputs)
    made = seen.head.product(seen.at(weight)).log_softmax(-1)
    expected = scores_of(exact, inputs, method)
    kept = expected.isfinite()  # what CODE drops is no matter of the state
    assert kept.sum() > 1
    difference = (made - expected)[kept]
    torch.testing.assert_close(difference, difference.mean().expand_as(difference), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mgap", "reference-code"])
def test_mgaps_state_is_the_one_that_the_paper_cuts(exact, picture, prior, name):
    method = mgap.MGAP(prior) if name == "mgap" else mgap.MGAP(prior, preset="reference-code")
    inputs, settings = exact.backbone.encode([picture], QUESTIONS[:1]), method.settings
    weight, basis = (t.detach().double().numpy() for t in (exact.backbone.head_module.weight, method.subspace.basis))
    h = np.array(last_state(exact, inputs))
    with first_states(exact, method) as read:
        seen = read(inputs)
    for alpha in (0.0, 0.5, 2.0):
        if name == "mgap":
            cut, _ = written_out.step(h, basis, weight, 0.0, alpha, settings.lam)
        else:
            cut, _ = written_out.step_of_the_authors_code(h, basis, weight, alpha, settings.lam, settings.threshold)
        np.testing.assert_allclose(seen.at(alpha)[0].double().numpy(), cut, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("name", ["vcd", "blind", "m3id", "code"])
def test_a_rows_branch_is_what_its_input_gives_by_itself(exact, pictures, name, mode):
    method = replace(mgap.CODE(length=6) if name == "code" else AT[name](1.0), branch_mode=mode)
    with first_states(exact, method) as read:
        seen = read(exact.backbone.encode(pictures, QUESTIONS))
    for row, (shown, question) in enumerate(zip(pictures, QUESTIONS, strict=True)):
        main = exact.backbone.encode([shown], [question])
        h, other = last_state(exact, main), last_state(exact, branch_of(exact, method, main, shown, question))
        expected = torch.tensor([a + 0.5 * (a - b) for a, b in zip(h, other, strict=True)])
        torch.testing.assert_close(seen.h[row], torch.tensor(h), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(seen.at(0.5)[row], expected, rtol=1e-4, atol=1e-4)
        assert (torch.tensor(other) - torch.tensor(h)).abs().max() > 0.01  # a branch mistaken for the main row would show


def branch_of(model, method, main, shown, question):
    """The branch's input of one row, by hand."""
    backbone = model.backbone
    if method.name == "m3id":
        return contrast.without_image(backbone, main)
    if method.name == "blind":
        return backbone.encode([Image.new("RGB", shown.size)], [question])
    if method.name == "code":
        words = description.describe(model, shown, mgap.methods.code.PROMPTS["thorough"], 6)
        return description.told(backbone, shown, question, words, "in_place_of_image")
    noised = contrast.noised(main["pixel_values"], method._noise(main["pixel_values"]), method.noise_step)
    return {**main, "pixel_values": noised}


def test_a_picture_without_candidates_is_decoded_from_plainly(exact, picture):
    method = mgap.HalTrapper(n=0, length=2, vocabulary=["zebra crossing"])  # nothing that a tiny model could name
    with first_states(exact, method) as read:
        seen = read(exact.backbone.encode([picture], QUESTIONS[:1]))
    torch.testing.assert_close(seen.at(1.0), seen.h, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*METHODS.names(), "icd with vcd"])
def test_a_method_without_such_a_state_says_so_by_its_name(exact, prior, name):
    method = build(name, prior)
    if name in STATEFUL:
        assert method.moved_by
        with first_states(exact, method):
            assert [a.method for a in attached(exact.backbone.model)] == [method]
    else:
        with pytest.raises(SettingError, match=rf"^{method.name} "), first_states(exact, method):
            pass
    assert not attached(exact.backbone.model)
    assert not exact.backbone.head_module._forward_pre_hooks


def test_plain_decoding_has_strength_0_only_and_says_what_the_model_says(exact, pictures):
    with first_states(exact, None) as read:
        seen = read(exact.backbone.encode(pictures, QUESTIONS))
    said = [exact.answer(p, q, max_new_tokens=1).token_ids[0] for p, q in zip(pictures, QUESTIONS, strict=True)]
    assert seen.plain_tokens() == said
    with pytest.raises(SettingError, match="no strength"):
        seen.at(0.5)


def test_a_model_with_a_method_on_is_refused(exact):
    with exact.using(mgap.Blind()), pytest.raises(SettingError, match="blind is attached"), first_states(exact, None):
        pass
