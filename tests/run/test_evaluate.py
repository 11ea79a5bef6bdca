"""What is evaluated in memory is what a run answers and scores."""

import pytest

import mgap
from mgap.errors import SettingError
from mgap.pocket.samples import SceneRenderer
from mgap.reports.scores import score
from mgap.run.benchmarks import read_benchmark
from mgap.run.evaluate import answer_first_words, answer_in_full
from mgap.run.first_words import CachingEncoder, encode_rows, first_words

METHODS = ["vanilla", {"method": "bias", "label": "bias", "shift": 2.0}]


@pytest.fixture
def methods():
    return {"vanilla": None, "bias": mgap.Bias(shift=2.0)}


def test_first_words_are_a_runs_answers_of_one_token_with_its_figures(answer, make_config, tiny_model, methods, tmp_path):
    keys = {"methods": METHODS, "decoding": {"max_new_tokens": 1}, "scenes": 4}
    run, _ = answer(tmp_path / "run", **keys)
    scored = score(run)
    evaluation = answer_first_words(tiny_model, read_benchmark(make_config(**keys)), methods)
    assert evaluation.texts == scored.texts
    assert evaluation.texts["vanilla"] != evaluation.texts["bias"]
    for name in methods:
        tallies = evaluation.tallies(name)
        assert list(tallies) == ["random", "popular", "adversarial"]
        assert {group: tally.rates() for group, tally in tallies.items()} == {
            group: part.rates for group, part in scored.results[name].groups.items()
        }


@pytest.mark.parametrize("benchmark", ["chair", "amber"])
def test_whole_answers_are_a_runs_with_its_figures(answer, make_config, tiny_model, methods, tmp_path, benchmark):
    keys = {"methods": METHODS[:1], "benchmark": benchmark, "scenes": 2}
    run, _ = answer(tmp_path / "run", **keys)
    scored, steps = score(run), []
    options = {"max_new_tokens": 4, "batch_size": 4, "progress": lambda *step: steps.append(step)}
    evaluation = answer_in_full(tiny_model, read_benchmark(make_config(**keys)), {"vanilla": None}, **options)
    assert evaluation.texts == scored.texts
    rates = {group: tally.rates() for group, tally in evaluation.tallies("vanilla").items()}
    assert rates == {group: part.rates for group, part in scored.results["vanilla"].groups.items()}
    assert steps[-1] == ("answers, vanilla", len(evaluation.benchmark.samples), len(evaluation.benchmark.samples))


def test_a_method_that_is_on_already_is_refused(make_config, tiny_model):
    benchmark = read_benchmark(make_config())
    with tiny_model.using(mgap.Bias(shift=1.0)):
        for evaluate in (answer_first_words, lambda *given: answer_in_full(*given, max_new_tokens=1)):
            with pytest.raises(SettingError, match="bias is attached"):
                evaluate(tiny_model, benchmark, {"vanilla": None})


def test_kept_batches_are_of_the_same_pictures(tiny_model):
    """A held-out scene has the name of the usual one."""
    rows, keep = [("pocket_200000.png", "What is it?")], CachingEncoder()
    for is_held_out in (False, True, False):
        first_words(tiny_model, rows, {"it": None}, SceneRenderer(is_held_out), encode=keep)
    assert len(keep.batches) == 2
    again = keep(tiny_model, rows, SceneRenderer(False), 64)
    assert again is keep.batches[SceneRenderer(False), tuple(rows), 64]
    (fresh, done), (kept, _) = *encode_rows(tiny_model, rows, SceneRenderer(False), 64), *again
    assert done == 1
    assert all((fresh[key] == kept[key]).all() for key in fresh)
