"""A run of samples that the caller made: answered, taken up again and scored as any other."""

from dataclasses import replace

import pytest

from mgap.benchmarks.base import Benchmark
from mgap.errors import RunError, SettingError
from mgap.pocket.samples import SceneRenderer
from mgap.reports.scores import score
from mgap.run.engine import execute
from mgap.run.job import Job
from mgap.types import Sample

SAMPLES = tuple(Sample(f"mine/{n}", f"pocket_{200_000 + n}.png", "Say it.", "captions", ["dog"]) for n in range(5))
MINE = Benchmark("mine", "captions", SAMPLES, SceneRenderer())


@pytest.fixture
def prepare(make_config, tmp_path):
    """A job of this benchmark; keys that say how many scenes are of the config's own samples, and left out."""
    config = replace(make_config(benchmark="chair"), scenes=500)
    return lambda benchmark=MINE, **keys: Job.prepare(replace(config, **keys), tmp_path / "run", benchmark=benchmark)


def test_what_is_given_is_asked_and_scored_and_a_second_process_finds_it_done(prepare, tiny_model):
    job = prepare()
    run, worker = job.begin(tiny_model)
    execute(run, worker)
    assert [sample.id for sample in run.samples] == [sample.id for sample in SAMPLES]
    assert score(run).results["vanilla"].groups["captions"].samples == 5
    seen = []
    execute(*prepare().begin(tiny_model), listener=lambda state: seen.append((state.before, state.done)))
    assert seen == [(5, 5)]


def test_a_folder_of_other_samples_is_refused_before_the_model_answers(prepare, tiny_model):
    prepare().begin(tiny_model)
    with pytest.raises(RunError, match="5 other samples than these 4"):
        prepare(replace(MINE, samples=SAMPLES[:4]))


@pytest.mark.parametrize(
    "key",
    [
        {"limit": 2},
        {"scenes": 3},
        {"held_out": True},
        {"difficulty": {"noise": 0.1}},
        {"prompt": "question"},
        {"splits": ("random",)},
    ],
)
def test_keys_that_choose_samples_would_do_nothing_and_are_refused(prepare, key):
    with pytest.raises(SettingError, match=f"^{next(iter(key))}=.*chooses samples, and these are given: leave it out"):
        prepare(**key)
