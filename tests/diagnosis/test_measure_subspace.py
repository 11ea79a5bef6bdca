"""A subspace analysed as a command would: the model runs once for each set of states, and nothing is left out in silence."""

import json

import pytest
import torch

import mgap
from mgap.backbones.null_images import NULL_IMAGES
from mgap.diagnosis.measure_subspace import analyse_subspace, compare_models
from mgap.diagnosis.principal_angles import Overlap
from mgap.diagnosis.subspace_analysis import ModelComparison, SubspaceAnalysis
from mgap.diagnosis.subspace_tables import models_table, subspace_tables
from mgap.diagnosis.subspace_words import spellings
from mgap.errors import CorruptFile, PromptError, SettingError
from mgap.pages.table_formats import latex, markdown
from mgap.pocket.benchmark import CALIBRATION, calibration_prompts
from mgap.pocket.tiny import TINY_FAMILIES, build_tiny
from mgap.priors.collect_states import blind_states
from mgap.priors.prior_plan import PROMPT_SETS, Prior, prompt_set
from mgap.priors.prompts import caption_prompts, colour_prompts, existence_prompts

PRIOR = Prior(rank=2, count=12, prompts="questions")
FEW = {"counts": (6, 12, 20), "ranks": (1, 2), "words": 3, "batch_size": 8}


@pytest.fixture(scope="module", params=TINY_FAMILIES)
def spoken(request, tmp_path_factory):
    """A tiny model for which Yes and No are one token each."""
    folder = tmp_path_factory.mktemp(f"spoken-{request.param}")
    build_tiny(request.param, folder, words=("Yes", "No"))
    return mgap.load(str(folder))


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def found(spoken, told):
    told.clear()
    bank = torch.randn(5, spoken.backbone.identity.hidden_size, generator=torch.Generator().manual_seed(0))
    return analyse_subspace(
        spoken, PRIOR, size=(64, 48), states={"bank": bank}, progress=lambda *line: told.append(line), **FEW
    )


def test_the_subspace_is_the_one_that_mgap_would_use(spoken, found):
    prompts = prompt_set("questions", 12, pocket=False)
    prior = mgap.Subspace.fit(spoken, prompts, rank=2, batch_size=8)
    assert found.spectrum.singular_values[:2] == pytest.approx(prior.singular_values[:2].tolist(), rel=1e-4)
    assert found.spectrum.cumulative[1] == pytest.approx(prior.explained_variance, rel=1e-4)
    assert found.spectrum.cumulative[-1] == pytest.approx(1)
    assert [each.spread for each in found.directions] == pytest.approx((prior.singular_values[:2] / 11**0.5).tolist(), rel=1e-4)
    assert (found.rank, found.count, found.hidden_size) == (2, 12, 64)
    assert found.prior == {"rank": 2, "count": 12, "prompts": "questions", "null_image": "black336"}


def test_words_are_those_of_the_model_and_answers_their_rows(spoken, found):
    tokenizer, weight = spoken.backbone.tokenizer, spoken.backbone.head_module.weight.detach().double()
    up, down = found.readout.tokens
    assert {tokenizer.decode([up]).strip(), tokenizer.decode([down]).strip()} == {"Yes", "No"}
    line = weight[up] - weight[down]
    squares = sum(each.readout**2 for each in found.directions)
    assert squares == pytest.approx(found.readout.share)
    states = torch.cat(list(blind_states(spoken.backbone, prompt_set("questions", 12, pocket=False))))
    prior = mgap.Subspace.from_states(states, 2)
    share = float((line @ prior.basis).square().sum() / line.square().sum())
    assert found.readout.share == pytest.approx(share, rel=1e-3)
    words = list(spellings(tokenizer, len(weight)))
    changes = (weight[words] @ prior.basis[:, 0]) * (prior.mean @ prior.basis[:, 0]).sign()
    raised, lowered = (words[int(place)] for place in (changes.argmax(), changes.argmin()))
    assert (found.directions[0].up[0].token, found.directions[0].down[0].token) == (raised, lowered)
    assert found.directions[0].up[0].change == pytest.approx(float(changes.max() - changes.mean()), rel=1e-3)
    assert [step.states for step in found.steps] == ["blind", "bank"]
    assert [step.count for step in found.steps] == [12, 5]


def test_prompts_numbers_and_null_images_are_compared(spoken, found):
    by_name = {comparison.name: comparison for comparison in found.comparisons}
    assert by_name["prompts"].labels == ("questions", "default", "captions", "colours")
    assert by_name["prompts"].counts == (12, 12, 12, 12)
    assert by_name["counts"].labels == ("N = 6", "N = 12", "N = 20")
    assert set(by_name["null_images"].labels) == set(NULL_IMAGES)
    for comparison in by_name.values():
        assert all(comparison.largest[n][n] < 1e-4 for n in range(len(comparison.labels)))
        assert all(comparison.first[n][n] < 1e-4 for n in range(len(comparison.labels)))
        assert comparison.chance == 2 / 64
    fitted = [mgap.Subspace.fit(spoken, prompt_set("questions", 12, pocket=False), rank=2, null_image=n, batch_size=8)
              for n in ("black336", "no_image")]  # fmt: skip
    row = by_name["null_images"].labels.index("no_image")
    assert by_name["null_images"].shared[0][row] == pytest.approx(Overlap.of(*(s.basis for s in fitted)).shared, abs=1e-3)
    assert [half.rank for half in found.halves] == [1, 2]
    assert found.halves[0].count == 10
    assert by_name["prompts"].readout[0] == pytest.approx(found.readout.share)
    assert found.notes == ()


def test_the_model_runs_once_for_each_prompt_set_and_null_image(found, told):
    totals = {label: total for label, done, total in told if done == total}
    assert totals == {
        "blind states: questions, black336": 20,
        **{f"blind states: {name}, black336": 12 for name in ("default", "captions", "colours")},
        **{f"blind states: questions, {kind}": 12 for kind in NULL_IMAGES if kind != "black336"},
    }
    assert len(told) == sum(-(-total // 8) for total in totals.values())


def test_an_analysis_survives_a_file(found):
    text = json.dumps(found.to_json(), allow_nan=False)
    assert SubspaceAnalysis.from_json(json.loads(text)) == found
    for damaged in ({}, {"format": 1}, {**found.to_json(), "spectrum": 3}):
        with pytest.raises(CorruptFile, match="again"):
            SubspaceAnalysis.from_json(damaged)
    with pytest.raises(CorruptFile, match="upgrade"):
        SubspaceAnalysis.from_json({**found.to_json(), "format": 99})


def test_tables_hold_what_was_found_in_every_form(found):
    tables = subspace_tables(found)
    for table in tables:
        for row in (row for group in table.groups for row in group.rows):
            assert len(row.cells) == len(table.columns) - 1
        assert latex(table, "subspace")
    spectrum, words, steps, *compared, halves = map(markdown, tables)
    assert f"| 1 | {found.spectrum.singular_values[0]:.3g} |" in spectrum
    assert "not used" in spectrum
    assert f"{found.directions[0].readout:+.2f}" in words
    assert "bank" in steps
    assert "random subspaces" in "".join(compared)
    assert f"{100 * found.halves[0].shared:.0f}" in halves


def test_what_cannot_be_fitted_is_left_out_with_a_note(spoken, tmp_path):
    (tmp_path / "same.txt").write_text("What is this?\n" * 9)
    found = analyse_subspace(
        spoken,
        Prior(rank=3, count=8, prompts="default"),
        prompts=(str(tmp_path / "same.txt"), "captions"),
        counts=(3, 8, 100),
        ranks=(1, 40),
        null_images=("black_same_size", "no_image"),
        readout=None,
        words=2,
    )
    by_name = {comparison.name: comparison for comparison in found.comparisons}
    assert by_name["prompts"].labels == ("default", "captions")
    assert "counts" not in by_name  # N = 8 alone is left
    assert by_name["null_images"].labels == ("black336", "no_image")
    assert found.readout is None
    assert found.directions[0].readout is None
    text = "\n".join(found.notes)
    for reason in ("same.txt left out", "N = 3 left out", "N = 100 left out", "black_same_size left out", "rank 40 left out"):
        assert reason in text
    assert all(note in "".join(subspace_tables(found)[0].notes) for note in found.notes)
    assert SubspaceAnalysis.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_saved_prior_is_read_and_compared_with_others(spoken, tmp_path):
    fitted = mgap.Subspace.fit(spoken, mgap.default_prompts()[:15], rank=2, null_image="black_same_size", size=(64, 48))
    fitted.save(tmp_path)
    found = analyse_subspace(spoken, Prior(folder=str(tmp_path)), prompts=("default", "questions"), words=2)
    assert found.prior == {"folder": str(tmp_path)}
    (compared,) = found.comparisons
    assert compared.labels == ("saved", "default", "questions")
    assert compared.largest[0][1] == pytest.approx(0, abs=0.1)  # the same prompts with the null image that it was saved with
    assert found.steps == found.halves == ()
    assert "saved" in found.notes[0]
    assert subspace_tables(found)


def test_two_models_are_compared_through_their_words(spoken):
    prior = mgap.Subspace.fit(spoken, mgap.default_prompts()[:20], rank=2)
    told = []
    found = compare_models((spoken, prior), (spoken, prior), draws=3, progress=lambda *line: told.append(line))
    assert found.largest == pytest.approx(0, abs=1e-4)
    assert told[-1] == ("random directions", 3, 3)
    assert ModelComparison.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert "100% shared" in markdown(models_table(found))
    with pytest.raises(CorruptFile, match="again"):
        ModelComparison.from_json({"models": ["a", "b"]})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"counts": (0,)}, "counts"),
        ({"ranks": (-1,)}, "ranks"),
        ({"words": 0}, "words"),
        ({"readout": ("Yes", "Yes")}, "two words"),
        ({"readout": ("Supercalifragilistic", "No")}, "not one token"),
        ({"null_images": ("white",)}, "null_images"),
        ({"prompts": ("nowhere.txt",)}, "no such file"),
    ],
)
def test_settings_that_mean_nothing_are_refused_before_the_model_runs(spoken, keys, message):
    told = []
    less = {"counts": (), "prompts": (), "null_images": (), "ranks": (1,), **keys}
    with pytest.raises((SettingError, PromptError), match=message):
        analyse_subspace(spoken, Prior(rank=1, count=4), progress=lambda *line: told.append(line), **less)
    assert not told or message == "two words"  # which spelling is meant depends on the states


def test_a_method_in_use_and_too_few_prompts_are_refused(spoken):
    with spoken.using(mgap.Blind()), pytest.raises(SettingError, match="attached"):
        analyse_subspace(spoken, PRIOR)
    with pytest.raises(PromptError, match="default has 60"):
        analyse_subspace(spoken, Prior(count=61), counts=())


def test_prompt_sets_are_long_different_and_no_benchmarks():
    sets = {name: prompt_set(name, 200, pocket=False) for name in PROMPT_SETS}
    assert {name: len(prompts) for name, prompts in sets.items()} == {
        "default": 60, "questions": 200, "captions": 200, "colours": 200,
    }  # fmt: skip
    for made in (existence_prompts, colour_prompts, caption_prompts):
        prompts = list(made())
        assert len(set(prompts)) == len(prompts)
        assert not [p for p in prompts if p.lower().startswith(("is there a", "please help me", "describe this image."))]
    assert prompt_set("questions", 10_000, pocket=True) == calibration_prompts(CALIBRATION)
    with pytest.raises(SettingError, match=str(CALIBRATION)):
        calibration_prompts(CALIBRATION + 1)
