"""The state that a method decodes from: through the head it must give the method's own scores, row for row."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.backbones.asked_rows import Asked, asking
from mgap.decoding.attach import attached
from mgap.decoding.effective_states import first_states, watch
from mgap.errors import SettingError
from mgap.registry import METHODS
from tests.methods.builders import build
from tests.reference import contrast, description
from tests.reference import mgap as written_out
from tests.reference.departure import last_state

QUESTIONS = ["Is there a dog in the image?", "What?", "How many people are there in this picture?"]


def asd(alpha, prior, **settings):
    drawn = torch.randn(2, 4, 3, prior.hidden_size, generator=torch.Generator().manual_seed(0))  # the tiny models' 3 blocks
    return mgap.ASD(steering=mgap.Steering.from_states(*drawn), alpha=alpha, lam_pos=1.0, lam_neg=1.0, **settings)


# at a strength, with nothing dropped from the vocabulary
AT = {
    "vcd": lambda s, _: mgap.VCD(alpha=s, beta=0.0),
    "icd": lambda s, _: mgap.ICD(alpha=s, beta=0.0),
    "icd subtract": lambda s, _: mgap.ICD(alpha=s, beta=0.0, form="subtract"),
    "icd with vcd": lambda s, _: mgap.ICD(alpha=s, beta=0.0, with_vcd=True, noise_step=999),
    "haltrapper": lambda s, _: mgap.HalTrapper(alpha=s, beta=0.0, candidates=["dog", "table"]),
    "haltrapper augmentive": lambda s, _: mgap.HalTrapper(alpha=s, beta=0.0, candidates=["dog"], form="augmentive"),
    "ed": lambda s, _: mgap.ED(alpha=s, beta=0.0),
    "fast-ed": lambda s, _: mgap.FastED(alpha=s, beta=0.0),
    "given": lambda s, prior: replace(build("given", prior), alpha=s, beta=0.0),
    "given agree": lambda s, prior: replace(build("given", prior), alpha=s, beta=0.0, combine="agree"),
    "blind": lambda s, _: mgap.Blind(rho=s),
    "blind subtract": lambda s, _: mgap.Blind(rho=s, form="subtract"),
    "m3id": lambda s, _: mgap.M3ID(lam=math.log1p(s), beta=0.0),
    "ritual": lambda s, _: mgap.RITUAL(alpha=s, beta=0.0),
    "mod where both agree": lambda s, _: mgap.MoD(theta=10.0, a1=s, a2=7.0, beta=0.0),
    "mod where they do not": lambda s, _: mgap.MoD(theta=0.0, a1=7.0, a2=s, beta=0.0),
    "asd": asd,
    "sid": lambda s, _: mgap.SID(alpha=s, beta=0.0, keep=1),
    "avisc": lambda s, _: mgap.AvisC(alpha=s, beta=0.0),
    "pai": lambda s, _: mgap.PAI(alpha=2.0, gamma=1 + s, start=0, beta=0.0),
    "pai without its attention": lambda s, _: mgap.PAI(alpha=0.0, gamma=1 + s, beta=0.0),
    "predicted-prior": lambda s, prior: replace(build("predicted-prior", prior), rho=s),
    "predicted-prior gated": lambda s, prior: replace(build("predicted-prior", prior), rho=s, gate=True, protect=True),
    "prompt-prior": lambda s, prior: mgap.PromptPrior(prior=prior, rho=s),
    "prompt-prior gated": lambda s, prior: mgap.PromptPrior(prior=prior, rho=s, gate=True, protect=True, centre=False),
    "tether": lambda s, prior: replace(build("tether", prior), rho=s),
    "vista": lambda s, _: mgap.VISTA(lam=0.0, alpha=s, window=[1, 2]),
    "vista normed": lambda s, _: mgap.VISTA(lam=0.0, alpha=s, window=[1, 2], normed=True),
    "deco": lambda s, _: mgap.DeCo(alpha=s, layers=[1, 2]),  # all but its candidates are dropped
    "deco of one layer": lambda s, _: mgap.DeCo(alpha=s, layers=0, top_p=1.0, top_k=300),
}
ONLY_ITS_OWN = {  # no setting moves these
    "code": lambda _: mgap.CODE(length=4),
    "haltrapper that searches": lambda _: mgap.HalTrapper(alpha=2.0, beta=0.0, n=3, length=4),
    "dola": lambda _: mgap.DoLa(layers=[0, 1, 2], relative_top=0.0),
    "dola paper": lambda _: mgap.DoLa(layers=[1, 2], preset="paper"),
    "dola normed": lambda _: mgap.DoLa(layers=[1, 2], lens_norm=True),
    "mod every step": lambda _: mgap.MoD(refresh="every_step", branch_mode="sequential", a2=30.0, theta=0.0, beta=0.0),
    "mgap": lambda prior: build("mgap", prior),
    "mgap reference-code": lambda prior: mgap.MGAP(prior, preset="reference-code"),
    "given gated": lambda prior: replace(build("given", prior), beta=0.0, gate=0.05),
    "m3id gated": lambda _: mgap.M3ID(lam=0.4, constraint="confidence_gate", tau=0.02),
}
ONE_BRANCH = ("deco", "dola", "vista", "mgap", "predicted-prior")
# vista has a state at lam 0
STATELESS = {"bias": "constant", "nullu": "blocks", "opera": "search", "vaf": "attention", "vista": "blocks"}
STATELESS |= {"yes-if-close": "threshold"}


@pytest.fixture(autouse=True)
def noted(exact, pictures):
    """What batches of all rows ask, for methods that look at the pictures themselves."""
    with asking(exact.backbone.model, [Asked(p, q) for p, q in zip(pictures, QUESTIONS, strict=True)]):
        yield


def cases(names):
    """Each method in every mode that it has."""
    modes = {"batched": names, "sequential": [name for name in names if not name.startswith(ONE_BRANCH)]}
    return [pytest.param(name, mode, id=f"{name}-{mode}") for mode, some in modes.items() for name in some]


def in_mode(method, mode):
    is_fixed = not hasattr(method, "branch_mode") or method.branch_mode == "sequential"
    return method if is_fixed else replace(method, branch_mode=mode)


def logits_of(model, inputs, tokens=1):
    """What generate chooses each token from, [B, vocab] each."""
    options = {"max_new_tokens": tokens, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    with torch.no_grad():
        return model.backbone.model.generate(**inputs, **options).logits


def scores_of(model, inputs, method):
    with model.using(method):
        return logits_of(model, inputs)[0]


def assert_makes(head, states, scores):
    """The plain head makes these scores of the states, up to a constant a row, on the tokens that the method keeps."""
    kept = scores.isfinite()
    assert (kept.sum(-1) > 1).all()
    made = head.product(states).masked_fill(~kept, -torch.inf).log_softmax(-1)
    torch.testing.assert_close(made, scores.log_softmax(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "mode"), cases(AT))
def test_the_head_makes_the_methods_own_scores_of_it(exact, pictures, prior, name, mode):
    inputs, head = exact.backbone.encode(pictures, QUESTIONS), exact.backbone.probe_head()
    with first_states(exact, in_mode(AT[name](0.5, prior), mode)) as read:
        seen = read(inputs)
    for strength in (0.0, 0.25, 3.0):
        assert_makes(head, seen.at(strength), scores_of(exact, inputs, AT[name](strength, prior)))
    assert_makes(head, seen.at(), scores_of(exact, inputs, AT[name](0.5, prior)))
    assert (seen.at(3.0) - seen.at(0.0)).abs().max() > 0.01  # a state that no strength moves would show


@pytest.mark.parametrize(("name", "mode"), cases([*AT, *ONLY_ITS_OWN]))
def test_at_every_token_its_own_strength_makes_the_very_scores(exact, pictures, prior, name, mode):
    inputs, method = exact.backbone.encode(pictures, QUESTIONS), at_its_own(name, mode, prior)
    with watch(exact, method) as taken:
        scores = logits_of(exact, inputs, tokens=3)
        steps = taken()
        assert taken() == []
    assert len(steps) == len(scores) > 1
    for step, chosen_from in zip(steps, scores, strict=True):
        assert_makes(step.head, step.at(), chosen_from)


def at_its_own(name, mode, prior):
    return in_mode(AT[name](2.0, prior) if name in AT else ONLY_ITS_OWN[name](prior), mode)


@pytest.mark.parametrize("name", [*AT, *ONLY_ITS_OWN])
def test_a_row_does_not_depend_on_its_batch(exact, pictures, prior, name):
    with first_states(exact, at_its_own(name, "batched", prior)) as read:
        together, alone = read(exact.backbone.encode(pictures, QUESTIONS)), []
        for p, q in zip(pictures, QUESTIONS, strict=True):
            with asking(exact.backbone.model, [Asked(p, q)]):
                alone.append(read(exact.backbone.encode([p], [q])))
    for row, single in enumerate(alone):
        torch.testing.assert_close(together.h[row], single.h[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together.at()[row], single.at()[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lens_norm", [False, True])
def test_dolas_state_is_the_last_one_less_the_layer_it_chose(exact, pictures, lens_norm):
    inputs, backbone = exact.backbone.encode(pictures, QUESTIONS), exact.backbone
    with first_states(exact, mgap.DoLa(layers=[0, 1, 2], lens_norm=lens_norm)) as read:
        seen = read(inputs)
    with torch.no_grad():
        hidden = backbone.model(**inputs, output_hidden_states=True).hidden_states
    for row, layer in enumerate(seen.inputs.values["layer"].int().tolist()):
        early = hidden[layer][row, -1]
        early = backbone.final_norm(early).detach() if lens_norm else early
        for weight in (0.0, 0.25, 1.0):
            expected = hidden[-1][row, -1] - weight * early
            torch.testing.assert_close(seen.at(weight)[row], expected, rtol=1e-4, atol=1e-4)


def test_rows_of_one_batch_add_and_take_away_each_as_mod_decides(exact, pictures):
    inputs = exact.backbone.encode(pictures, QUESTIONS)
    with first_states(exact, mgap.MoD()) as read:
        js = read(inputs).inputs.values["js"].sort().values
    assert js[0] < js[-1]
    method = mgap.MoD(theta=float(js[0] + js[-1]) / 2, a1=3.0, a2=2.0)
    with first_states(exact, method) as read:
        seen = read(inputs)
    assert set(seen.inputs.values["mode"].tolist()) == {-1.0, 1.0}
    assert_makes(seen.head, seen.at(), scores_of(exact, inputs, replace(method, beta=0.0)))


def test_rows_behind_m3ids_gate_are_decoded_from_plainly(exact, pictures):
    inputs = exact.backbone.encode(pictures, QUESTIONS)
    surest = logits_of(exact, inputs)[0].softmax(-1).max(-1).values.sort().values
    method = mgap.M3ID(lam=1.0, constraint="confidence_gate", tau=float(surest[0] + surest[-1]) / 2)
    with first_states(exact, method) as read:
        seen = read(inputs)
    moved = (seen.at() - seen.h).abs().amax(-1) > 0.01
    assert moved.tolist() == seen.inputs.values["open"].bool().tolist()
    assert len(set(moved.tolist())) == 2


@pytest.mark.parametrize("name", ["asd", "pai"])
def test_at_strength_0_a_changed_forward_is_not_the_plain_one(exact, picture, prior, name):
    inputs = exact.backbone.encode([picture], QUESTIONS[:1])
    with first_states(exact, AT[name](1.0, prior)) as read:
        seen = read(inputs)
    assert torch.equal(seen.at(0.0), seen.h)
    assert (seen.h[0].cpu() - torch.tensor(last_state(exact, inputs))).abs().max() > 0.01


@pytest.mark.parametrize("name", ["mgap", "reference-code"])
def test_mgaps_state_is_the_one_that_the_paper_cuts(exact, picture, prior, name):
    method = mgap.MGAP(prior) if name == "mgap" else mgap.MGAP(prior, preset="reference-code")
    inputs, settings = exact.backbone.encode([picture], QUESTIONS[:1]), method.settings
    weight, basis = (t.detach().double().cpu().numpy() for t in (exact.backbone.head_module.weight, method.subspace.basis))
    h = np.array(last_state(exact, inputs))
    with first_states(exact, method) as read:
        seen = read(inputs)
    for alpha in (0.0, 0.5, 2.0):
        if name == "mgap":
            cut, _ = written_out.step(h, basis, weight, 0.0, alpha, settings.lam)
        else:
            cut, _ = written_out.step_of_the_authors_code(h, basis, weight, alpha, settings.lam, settings.threshold)
        np.testing.assert_allclose(seen.at(alpha)[0].double().cpu().numpy(), cut, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("name", ["vcd", "blind", "m3id", "code"])
def test_a_rows_branch_is_what_its_input_gives_by_itself(exact, pictures, name, mode):
    method = replace(mgap.CODE(length=6) if name == "code" else AT[name](1.0, None), branch_mode=mode)
    with first_states(exact, method) as read:
        seen = read(exact.backbone.encode(pictures, QUESTIONS))
    for row, (shown, question) in enumerate(zip(pictures, QUESTIONS, strict=True)):
        main = exact.backbone.encode([shown], [question])
        h, other = last_state(exact, main), last_state(exact, branch_of(exact, method, main, shown, question))
        expected = torch.tensor([a + 0.5 * (a - b) for a, b in zip(h, other, strict=True)])
        torch.testing.assert_close(seen.h[row].cpu(), torch.tensor(h), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(seen.at(0.5)[row].cpu(), expected, rtol=1e-4, atol=1e-4)
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
    noised = contrast.noised(main["pixel_values"], method.noise(backbone, main["pixel_values"]), method.noise_step)
    return {**main, "pixel_values": noised}


@pytest.mark.parametrize("form", ["contrastive", "augmentive"])
def test_a_picture_without_candidates_is_decoded_from_plainly(exact, picture, form):
    nothing = ["zebra crossing"]  # that a tiny model could name
    with first_states(exact, mgap.HalTrapper(n=0, length=2, vocabulary=nothing, form=form)) as read:
        seen = read(exact.backbone.encode([picture], QUESTIONS[:1]))
    assert torch.equal(seen.at(1.0), seen.h)


@pytest.mark.parametrize("name", [*METHODS.names(), "icd with vcd"])
def test_a_method_without_such_a_state_says_so_by_its_name_and_why(exact, prior, name):
    method, before = build(name, prior), hooks_of(exact)
    if name in STATELESS:
        with pytest.raises(SettingError, match=rf"^{method.name} .*{STATELESS[name]}"), first_states(exact, method):
            pass
    else:
        assert method.moved_by
        with first_states(exact, method):
            assert [a.method for a in attached(exact.backbone.model)] == [method]
    assert not attached(exact.backbone.model)
    assert hooks_of(exact) == before


def hooks_of(model):
    """How many hooks each part of the model has; transformers keeps some of its own."""
    return [len(part._forward_pre_hooks) + len(part._forward_hooks) for part in model.backbone.model.modules()]


def test_pai_without_a_branch_is_refused(exact):
    with pytest.raises(SettingError, match=r"^pai at gamma=1 "), first_states(exact, mgap.PAI(gamma=1.0)):
        pass


@pytest.mark.parametrize("place", ["head_module", "model"])
@pytest.mark.parametrize("name", ["deco", "code"])
def test_a_call_that_fails_leaves_nothing_to_the_next(exact, picture, prior, name, place):
    one, other = (exact.backbone.encode([shown], QUESTIONS[:1]) for shown in (picture, picture.rotate(90)))
    with first_states(exact, build(name, prior)) as read:
        first = read(one)
        handle = getattr(exact.backbone, place).register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            read(other)
        handle.remove()
        torch.testing.assert_close(read(one).at(), first.at())


def test_what_is_described_between_two_generations_belongs_to_neither(exact, picture, prior):
    one, other = (exact.backbone.encode([shown], QUESTIONS[:1]) for shown in (picture, picture.rotate(90)))
    with watch(exact, build("code", prior)) as taken:
        expected = [scores for inputs in (one, other) for scores in logits_of(exact, inputs, tokens=2)]
        steps = taken()
    assert len(steps) == len(expected) == 4
    for step, scores in zip(steps, expected, strict=True):
        assert len(step.branches) == 1
        assert_makes(step.head, step.at(), scores)


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
