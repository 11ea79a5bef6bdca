"""The representation analysis on a pocket model: what MGAP and a contrast must differ in, groups, references and refusals."""

import json
from dataclasses import replace

import pytest
import torch

import mgap
from mgap.decoding.effective_states import first_states
from mgap.diagnosis.measure_representation import TrueCaptions, measure_representation
from mgap.diagnosis.representation import Representation
from mgap.errors import BackboneMismatch, SettingError
from mgap.pocket.benchmark import DEVELOPMENT, calibration_prompts
from mgap.pocket.samples import chair_samples, pope_samples, true_captions
from mgap.priors.bank import Bank

STRENGTHS = (0.0, 0.5, 1.0)


@pytest.fixture(scope="module")
def pocket():
    return mgap.load("pocket/llava", dtype=torch.float32)


@pytest.fixture(scope="module")
def asked():
    return pope_samples(["random"], 4)


@pytest.fixture(scope="module")
def known():
    return pope_samples(["random"], 6, first=DEVELOPMENT)


@pytest.fixture(scope="module")
def bank(pocket, known):
    images = [known.picture(sample.image) for sample in known.samples]
    return Bank.collect(pocket, images, [sample.prompt for sample in known.samples], batch_size=36)


@pytest.fixture(scope="module")
def prior(pocket):
    return mgap.Subspace.fit(pocket, calibration_prompts(20))


@pytest.fixture(scope="module")
def methods(prior):
    return {"MGAP": mgap.MGAP(prior), "MGAP 2": mgap.MGAP(prior, rank=2), "Blind": mgap.Blind()}


@pytest.fixture(scope="module")
def captions():
    described = chair_samples(3)
    return TrueCaptions(described, true_captions(described.samples), max_new_tokens=24)


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def found(pocket, asked, known, bank, methods, prior, captions, told):
    return measure_representation(
        pocket,
        asked,
        bank,
        known.samples,
        methods,
        prior,
        STRENGTHS,
        captions=captions,
        k=5,
        batch_size=12,
        progress=lambda *words: told.append(words),
    )


def values(lines, name, **wanted):
    return [line.figures[name].value for line in lines if all(getattr(line, key) == value for key, value in wanted.items())]


def test_there_is_a_line_for_every_method_and_strength(found, methods):
    assert [(line.method, line.strength) for line in found.shifts] == [(m, s) for m in methods for s in STRENGTHS]
    assert {(line.method, line.reference, line.group) for line in found.oracle} == {
        *((m, r, g) for m in methods for r in ("aligned", "other answer") for g in ("wrong", "right")),
        *((m, r, "apart") for m in ("MGAP", "MGAP 2") for r in ("teacher", "other step")),
    }
    assert found.counts["right"] + found.counts["wrong"] + found.counts["unclear"] == 24
    assert found.counts["agree"] >= 3  # every first step
    assert (found.width, found.rank, found.bank, found.k) == (256, 5, 36, 5)
    assert "Blind" in found.notes[0]


def test_mgap_moves_inside_the_subspace_only_and_a_contrast_does_not(found):
    assert values(found.shifts, "held", method="MGAP", strength=1.0) == pytest.approx([1.0])
    assert values(found.shifts, "held", method="MGAP 2", strength=1.0) == pytest.approx([1.0])
    assert 0 < values(found.shifts, "held", method="Blind", strength=1.0)[0] < 0.9
    before, half, full = values(found.shifts, "prior_after", method="MGAP")
    assert before == pytest.approx(values(found.shifts, "prior", method="MGAP")[0])
    assert before > half > full
    for method in ("MGAP", "Blind"):
        nothing, half, full = values(found.shifts, "inside", method=method)
        assert nothing == 0
        assert full == pytest.approx(2 * half, rel=1e-4)


def test_the_figures_are_those_of_the_states_written_out(pocket, asked, found, methods, prior):
    samples = asked.samples
    with first_states(pocket, methods["Blind"]) as read:
        seen = read(pocket.backbone.encode([asked.picture(s.image) for s in samples], [s.prompt for s in samples]))
    h, step, P = seen.h.double(), (seen.at(1.0) - seen.h).double(), prior.projector
    expected = float((step @ P).norm(dim=-1).mean()), float((step - step @ P).norm(dim=-1).mean())
    (line,) = [line for line in found.shifts if (line.method, line.strength) == ("Blind", 1.0)]
    assert (line.figures["inside"].value, line.figures["outside"].value) == pytest.approx(expected, rel=1e-4)
    assert line.figures["prior"].value == pytest.approx(float((h @ P).norm(dim=-1).mean()), rel=1e-4)
    assert line.figures["inside"].of == 24


def test_the_theorem_bounds_what_mgap_can_gain_and_has_no_beta_for_a_contrast(found):
    for line in found.oracle:
        figures = line.figures
        if line.method == "Blind":
            assert not {"beta", "contains"} & figures.keys()
            continue
        assert figures["closer"].value <= figures["closer_best"].value + 1e-9
        assert figures["contains"].value <= figures["holds"].value
        if line.strength == 0:
            assert figures["contains"].value == figures["beta"].value == figures["closer"].value == 0
    same = values(found.oracle, "best", method="MGAP", reference="aligned", group="right")
    assert len(set(same)) == 1  # beta* knows no strength
    assert values(found.oracle, "best", method="MGAP", reference="other answer", group="right")[0] != same[0]  # it is a control


def test_batches_do_not_change_the_result_and_json_gives_it_back(pocket, asked, known, bank, methods, prior, captions, found):
    again = measure_representation(
        pocket, asked, bank, known.samples, {"MGAP": methods["MGAP"]}, prior, [1.0], captions=captions, k=5, batch_size=5
    )
    for lines, others in ((again.shifts, found.shifts), (again.oracle, found.oracle)):
        for line in lines:
            if line.reference == "other step":
                continue  # which step that is depends on the batch
            key = line.method, line.strength, line.reference, line.group
            (other,) = [o for o in others if (o.method, o.strength, o.reference, o.group) == key]
            for name, rate in line.figures.items():
                assert rate.value == pytest.approx(other.figures[name].value, rel=1e-3, abs=1e-4), (key, name)
    assert again.counts == found.counts
    assert Representation.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_progress_is_told_to_the_end(found, told):
    assert {word for word, done, of in told if done == of} == {
        "states of plain decoding",
        "states of MGAP",
        "states of MGAP 2",
        "states of Blind",
        "captions",
    }


def test_what_cannot_be_measured_is_refused_before_the_model_runs(pocket, asked, known, bank, methods, prior):
    def measure(**change):
        given = {"benchmark": asked, "bank": bank, "bank_samples": known.samples, "methods": methods, "prior": prior, **change}
        strengths = given.pop("strengths", [1.0])
        measure_representation(pocket, *given.values(), strengths)

    with pytest.raises(SettingError, match="at least one method"):
        measure(methods={})
    with pytest.raises(SettingError, match="at least one method and one strength"):
        measure(strengths=[])
    with pytest.raises(SettingError, match="strengths=-1"):
        measure(strengths=[-1.0])
    with pytest.raises(SettingError, match="leave bias out"):
        measure(methods={"Bias": mgap.Bias(shift=1.0)})
    with pytest.raises(SettingError, match="36 states with 35 samples"):
        measure(bank_samples=known.samples[1:])
    with pytest.raises(SettingError, match="yes or no as truth"):
        measure(benchmark=chair_samples(2))
    with pytest.raises(SettingError, match="pictures are in the bank and among those judged"):
        measure(bank_samples=(asked.samples * 2)[:36])
    with pytest.raises(SettingError, match="which tokens were chosen"):
        measure(bank=Bank.of(bank.states))
    with pytest.raises(BackboneMismatch):
        measure(bank=Bank.of(torch.zeros(36, 3), tokens=torch.zeros(36)))
    with pytest.raises(BackboneMismatch):
        measure(prior=replace(prior, identity=None, basis=torch.eye(3)))


def test_captions_need_a_method_at_the_head(pocket, asked, known, bank, prior, captions):
    with pytest.raises(SettingError, match="Blind is none"):
        measure_representation(pocket, asked, bank, known.samples, {"Blind": mgap.Blind()}, prior, captions=captions)


def test_captions_need_a_true_text_each(captions):
    texts = dict(captions.texts)
    texts.pop(captions.benchmark.samples[1].id)
    with pytest.raises(SettingError, match="1 samples have no true text"):
        TrueCaptions(captions.benchmark, texts)
