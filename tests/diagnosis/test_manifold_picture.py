"""The picture of the manifold, filled from real models."""

import pytest
import torch

import mgap
from mgap.decoding.effective_states import first_states
from mgap.diagnosis.manifold_figure import BLIND, JOINT, TRUTH, print_manifold
from mgap.diagnosis.manifold_picture import FIRST_WRONG, picture_manifold, wrong_answers
from mgap.errors import SettingError
from mgap.methods.mgap import MGAP
from mgap.methods.vcd import VCD
from mgap.priors.bank import Bank
from mgap.priors.collect_states import blind_states
from mgap.priors.manifold import Manifold
from mgap.types import Sample

WORDS = ("dog", "cat", "cup", "car", "tree", "boat", "bird", "lamp", "bed", "bus", "cow", "bike")
SAMPLES = [Sample(f"adversarial/{n}", "x.png", f"Is there a {w}?", "adversarial", "no") for n, w in enumerate(WORDS[:2])]


@pytest.fixture(scope="module")
def bank(model, picture):
    return Bank.collect(model, [picture] * len(WORDS), [f"Is there a {word} here?" for word in WORDS])


@pytest.fixture(scope="module")
def filled(model, picture, bank, prior):
    manifold = Manifold.of(bank, k=3)
    methods = {"VCD": VCD(), "MGAP": MGAP(prior)}

    def fill(samples=SAMPLES[:1], **changes):
        given = {"rule": FIRST_WRONG, "strengths": (0.0, 1.0), **changes}
        return picture_manifold(model, manifold, [bank.states], samples, lambda _: picture, methods, **given)

    return fill


def test_distances_and_states_are_those_of_the_methods(model, picture, bank, filled):
    found, manifold = filled(), Manifold.of(bank, k=3)
    with first_states(model, VCD()) as read:
        seen = read(model.backbone.encode([picture], [SAMPLES[0].prompt]))
    for stop in found.paths["VCD"]:
        assert stop.distance == pytest.approx(float(manifold.distances(seen.at(stop.alpha))), rel=1e-5)
    assert (found.tau, found.k, found.states) == (manifold.tau, 3, len(WORDS))
    for path in found.paths.values():
        assert path[0][1:3] == pytest.approx(found.marks[JOINT], rel=1e-3, abs=1e-4)  # strength 0 is plain decoding
    assert found.paths["VCD"][1][1:3] != pytest.approx(found.marks[JOINT], abs=1e-4)


def test_axes_are_the_principal_directions_of_the_bank(bank, filled):
    found = filled()
    states = bank.states.double()
    values = torch.linalg.svdvals(states - states.mean(0))
    shares = values.square() / values.square().sum()
    assert found.shares == pytest.approx(shares[:2].tolist(), rel=1e-6)
    spread = torch.tensor(found.bank).double()
    assert spread.mean(0).tolist() == pytest.approx([0, 0], abs=1e-5)
    assert spread.norm(dim=0).tolist() == pytest.approx(values[:2].tolist(), rel=1e-6)


def test_a_plane_keeps_lines_straight_and_means_in_the_middle(model, filled):
    one, other, both = filled(SAMPLES[:1]), filled(SAMPLES[1:]), filled(SAMPLES)
    for mark in (BLIND, JOINT):
        middle = [(a + b) / 2 for a, b in zip(one.marks[mark], other.marks[mark], strict=True)]
        assert both.marks[mark] == pytest.approx(middle, rel=1e-3, abs=1e-4)
    last = [picture.paths["VCD"][-1].distance for picture in (one, other, both)]
    assert last[2] == pytest.approx((last[0] + last[1]) / 2, rel=1e-4)
    assert both.said.startswith("the mean of 2 samples")


def test_the_blind_state_is_of_the_same_prompt(model, filled, bank):
    found = filled(reference=next(iter(blind_states(model.backbone, [SAMPLES[0].prompt], size=(80, 60))))[0])
    assert found.marks[TRUTH] == pytest.approx(found.marks[BLIND], rel=1e-4, abs=1e-5)
    assert TRUTH not in filled().marks


def test_only_so_many_states_are_drawn_and_always_the_same(filled):
    few, again, all_of_them = filled(drawn=5), filled(drawn=5), filled()
    assert few == again
    assert len(few.bank) == 5
    assert set(few.bank) < set(all_of_them.bank)
    assert f"5 of the {len(WORDS)} states" in print_manifold(few).caption


def test_what_is_missing_or_has_no_state_is_refused(model, picture, bank, filled):
    with pytest.raises(SettingError, match="at least one of each"):
        filled(samples=[])
    with pytest.raises(SettingError, match="must be a finite number"):
        filled(strengths=(-1.0,))
    opera = {"x": mgap.OPERA()}
    with pytest.raises(SettingError, match="opera"):
        picture_manifold(model, Manifold.of(bank, k=3), [bank.states], SAMPLES[:1], lambda _: picture, opera, rule="any")


def test_the_wrong_answers_answer_is_the_one_that_is_drawn():
    from mgap.pocket.samples import pope_samples

    model, asked = mgap.load("pocket/llava"), pope_samples(["random", "adversarial"], 2)
    said = {s.id: model.answer(asked.picture(s.image), s.prompt, max_new_tokens=1).text for s in asked.samples}
    hard = [s for s in asked.samples if s.group == "adversarial"]
    sample = wrong_answers(hard, said)[0]
    assert sample.group == "adversarial"
    for earlier in asked.samples:
        if earlier.group == "adversarial":
            answer = model.answer(asked.picture(earlier.image), earlier.prompt, max_new_tokens=4).text.lower()
            if earlier == sample:
                assert not answer.startswith(earlier.truth)
                break
            assert answer.startswith(earlier.truth)
    right = [s for s in asked.samples if s.group == "random"][:2]
    assert wrong_answers(right, said) == []
    assert wrong_answers(right, {s.id: "Perhaps." for s in right}) == []
