"""Tuning: the pick is what a loop over decoding would pick, it travels with the prior, and what cannot be is refused."""

import json
from dataclasses import replace

import pytest
import torch

import mgap
from mgap.backbones.shared_vision import shared_pictures
from mgap.benchmarks.pope.scorer import PopeScorer
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.decoding.effective_states import first_states
from mgap.errors import BackboneMismatch, BenchmarkError, CorruptFile, SettingError
from mgap.methods.head_inputs import HeadInputs
from mgap.pocket.benchmark import DEVELOPMENT, calibration_prompts
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.tuning.development import Development, own_questions, pocket_questions, read_states
from mgap.tuning.sweep import Grid, Point
from mgap.tuning.tune import tune

GRID = Grid.of({"alpha": [3, 6], "lam": [0.5], "rank": [1, 5]})
SIZE = 24


@pytest.fixture(scope="module", params=["pocket/llava", "pocket/qwen3-vl"])
def pocket(request):
    return mgap.load(request.param)


@pytest.fixture(scope="module")
def prior(pocket):
    return mgap.Subspace.fit(pocket, calibration_prompts(30), 5)


@pytest.fixture(scope="module")
def development():
    return pocket_questions(4, ["popular", "adversarial"])


@pytest.fixture(scope="module")
def states(pocket, development):
    return read_states(pocket, development, batch_size=SIZE)


def settle(pocket, prior, development, states, **more):
    return tune(pocket, prior, development, states, grid=GRID, k=5, **more)


def decode(pocket, prior, development, point, tokens=1):
    """The text of every judged sample as the model answers under a setting."""
    pictures = {row.image: development.benchmark.picture(row.image) for row in development.rows}
    with pocket.using(mgap.MGAP(prior, **point.to_json())), shared_pictures(pocket.backbone):
        images, prompts = [pictures[row.image] for row in development.rows], [row.prompt for row in development.rows]
        texts = [answer.text for answer in pocket.answers(images, prompts, batch_size=SIZE, max_new_tokens=tokens)]
    return {sample.id: texts[row] for sample, row in zip(development.judged, development.row_of, strict=True)}


@pytest.mark.filterwarnings("ignore:alpha")
def test_the_labelled_pick_is_that_of_a_loop_over_answers(pocket, prior, development, states):
    found = settle(pocket, prior, development, states, rule="labels")
    scores = []
    plain = decode(pocket, prior, development, GRID.points()[0])
    for place, point in enumerate(GRID.points()):
        texts = plain if point.alpha == 0 else decode(pocket, prior, development, point)
        tallies = PopeScorer().tally(development.judged, texts)
        scores.append(sum(tally.rates()["f1"].value for tally in tallies.values()) / len(tallies))
        assert found.values[place] == pytest.approx(scores[-1])
    assert found.picked.value == pytest.approx(max(scores))
    best = [place for place, score in enumerate(scores) if score == pytest.approx(max(scores))]
    assert found.choice.picked == min(best, key=lambda place: (found.judged.swept.steps[place], place))
    assert found.picked.rates()["f1"].value == pytest.approx(max(scores))
    assert found.plain.rates()["f1"].value == pytest.approx(scores[0])
    whole = decode(pocket, prior, development, GRID.points()[-1], tokens=16)  # what is said after it changes nothing
    assert [yes_or_no(text) for text in whole.values()] == [yes_or_no(text) for text in texts.values()]


@pytest.mark.filterwarnings("ignore:alpha")
def test_the_pick_by_departures_is_that_of_a_loop_over_effective_states(pocket, prior, development, states):
    found = settle(pocket, prior, development, states, rule="departure")
    manifold = Manifold.of(Bank.of(states.bank), k=5)
    limit, stayed = found.about["outside"]["limit"], {}
    head, h = pocket.backbone.probe_head(), states.judged
    outside = lambda cut: float((manifold.distances(cut) > manifold.tau).float().mean())  # noqa: E731
    assert limit == pytest.approx(max(0.05, outside(h)))
    for rank in GRID.rank:
        for lam in GRID.lam:
            for alpha in GRID.alpha:
                cut = mgap.MGAP(prior, rank=rank, lam=lam).effective_states(head, HeadInputs(h), alpha)
                if outside(cut) > limit + 1e-9:
                    break
                stayed[rank, lam] = float((cut - h).norm(dim=-1).mean()), alpha
    rank, lam = max(stayed, key=lambda path: stayed[path][0])
    assert (found.picked.point.rank, found.picked.point.lam) == (rank, lam)
    assert found.picked.point.alpha == stayed[rank, lam][1]
    assert found.picked.value == pytest.approx(stayed[rank, lam][0], rel=1e-3)
    assert found.picked.rates()["departed"].value <= limit


def test_labels_change_nothing_without_the_rule_of_labels(pocket, prior, development, states):
    blind = Development(development.benchmark, development.bank, development.judged, has_labels=False)
    found, unread = (settle(pocket, prior, each, states, rule="departure") for each in (development, blind))
    assert found.choice == unread.choice
    assert unread.picked.labels is None
    assert "f1" not in unread.record()["figures"]["chosen"]
    assert unread.record()["data"]["labels"] is False


def test_states_are_those_of_first_states_and_pictures_of_the_bank_are_not_judged(pocket, development, states):
    assert not {s.image for s in development.bank} & {s.image for s in development.judged}
    seeds = [int(s.image.removeprefix("pocket_").removesuffix(".png")) for s in (*development.bank, *development.judged)]
    assert min(seeds) >= DEVELOPMENT
    assert max(seeds) < DEVELOPMENT + 1000
    assert len(states.judged) == len({(s.image, s.prompt) for s in development.judged}) < len(development.judged)
    rows = development.rows[:SIZE]
    with first_states(pocket, None) as read:
        seen = read(pocket.backbone.encode([development.benchmark.picture(r.image) for r in rows], [r.prompt for r in rows]))
    assert torch.equal(seen.h.float(), states.judged[:SIZE])


@pytest.mark.filterwarnings("ignore:alpha")
def test_the_tuning_is_saved_with_the_prior_and_used_by_its_preset(pocket, prior, development, states, tmp_path):
    found = settle(pocket, prior, development, states, rule="labels")
    found.prior.save(tmp_path)
    loaded = mgap.Subspace.load(tmp_path)
    assert loaded.tuning == json.loads(json.dumps(found.record()))
    assert loaded.tuning["rule"]["name"] == "labels"
    assert loaded.tuning["model"]["dtype"] == "bfloat16"
    assert loaded.tuning["data"]["judged"]["pictures"] == loaded.tuning["data"]["bank"]["pictures"] == 2
    assert len(loaded.tuning["data"]["judged"]["rows_sha256"]) == 64
    method = mgap.MGAP(loaded, preset="tuned")
    assert {name: getattr(method, name) for name in found.picked.point.to_json()} == found.picked.point.to_json()
    assert mgap.MGAP(loaded, preset="tuned", alpha=0.5).alpha == 0.5  # what is given goes before
    assert mgap.MGAP(loaded).alpha == 0.75
    off = Point(0.5, 0.25, 2, gate=False, protect=True)
    other = mgap.MGAP(replace(loaded, tuning={"settings": off.to_json()}), preset="tuned")
    assert (other.gate, other.protect, other.rank) == (False, True, 2)


def test_a_prior_without_a_tuning_refuses_the_preset_and_names_the_command(prior, tmp_path):
    assert prior.tuning is None
    prior.save(tmp_path)
    assert "tuning" not in json.loads((tmp_path / "subspace.json").read_text())
    loaded = mgap.Subspace.load(tmp_path)  # as files from before tunings
    assert loaded.tuning is None
    with pytest.raises(SettingError, match="`mgap tune`"):
        mgap.MGAP(loaded, preset="tuned")
    with pytest.raises(SettingError, match="tuned"):
        mgap.MGAP(loaded, preset="tunde")


def test_a_damaged_tuning_is_refused(prior, tmp_path):
    prior.save(tmp_path)
    file = tmp_path / "subspace.json"
    about = json.loads(file.read_text())
    for tuning in ([1], {"settings": 3}, {"rule": {}}):
        file.write_text(json.dumps({**about, "tuning": tuning}))
        with pytest.raises(CorruptFile):
            mgap.Subspace.load(tmp_path)
    file.write_text(json.dumps({**about, "tuning": {"settings": {"alpha": 1.0, "beta": 2.0}}}))
    with pytest.raises(SettingError, match="tune it again"):
        mgap.MGAP(mgap.Subspace.load(tmp_path), preset="tuned")


def test_what_cannot_be_tuned_is_refused(pocket, prior, development, states, checkpoints):
    with pytest.raises(SettingError, match="rule='best'"):
        settle(pocket, prior, development, states, rule="best")
    blind = Development(development.benchmark, development.bank, development.judged, has_labels=False)
    with pytest.raises(SettingError, match="no labels"):
        settle(pocket, prior, blind, states, rule="labels")
    with pytest.raises(SettingError, match="rank=9 is larger than 5"):
        tune(pocket, prior, development, states, grid=Grid.of({"rank": [9]}), k=5)
    with pytest.raises(BackboneMismatch):
        tune(mgap.load(str(checkpoints["llava"])), prior, development, states, grid=GRID, k=5)
    with pytest.raises(SettingError, match="leaves none"):
        pocket_questions(2, share=0.9)


def test_own_questions_need_no_labels_unless_they_are_used(tmp_path, picture):
    for number in range(4):
        picture.save(tmp_path / f"{number}.png")
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"image": f"{n}.png", "question": "Is there a dog?"}) + "\n" for n in range(4)))
    found = own_questions(str(file), has_labels=False)
    assert (len(found.bank), len(found.judged), found.has_labels) == (2, 2, False)
    assert found.judged[0].truth is None
    with pytest.raises(BenchmarkError, match="'label'"):
        own_questions(str(file))
