"""Which engine each method of a run is answered with: decided before one is started."""

import pytest

import mgap
from mgap.backbones.loading import load_weightless
from mgap.errors import SettingError
from mgap.methods.bias import Bias
from mgap.run.benchmarks import read_benchmark
from mgap.run.config import Config
from mgap.serving.offline import EngineRecipe
from mgap.serving.vllm_worker import VllmWorker

DRAFTING = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}


@pytest.fixture
def served(checkpoints, prior, model, family):
    def make(options, methods):
        config = Config.of({"benchmark": "pope", "model": "pocket/llava", "scenes": 1, "methods": ["vanilla"]})
        places = {label: "priors/here" for label, method in methods.items() if isinstance(method, mgap.MGAP)}
        recipe, backbone = EngineRecipe("pocket/llava", options, "float32"), load_weightless(str(checkpoints[family]))
        return VllmWorker(recipe, backbone, read_benchmark(config), config.decode(), methods, places, lambda text: None)

    return make


def test_methods_that_differ_in_alpha_only_share_an_engine_and_others_do_not(served, prior):
    methods = {
        "vanilla": None,
        "weak": mgap.MGAP(prior, alpha=0.5),
        "strong": mgap.MGAP(prior, alpha=1.0),
        "ungated": mgap.MGAP(prior, alpha=1.0, gate=False),
    }
    serving = served({}, methods).serving
    assert serving["vanilla"] is None  # any engine will do
    assert serving["weak"] == serving["strong"]
    assert serving["weak"]["prior"] == "priors/here"
    assert serving["ungated"] == {**serving["weak"], "gate": False}


def test_under_speculation_every_strength_has_an_engine_of_its_own(served, prior):
    methods = {"vanilla": None, "weak": mgap.MGAP(prior, alpha=0.5), "strong": mgap.MGAP(prior, alpha=1.0)}
    serving = served(DRAFTING, methods).serving
    assert serving["vanilla"] == {}
    assert (serving["weak"]["alpha"], serving["strong"]["alpha"]) == (0.5, 1.0)


def test_words_of_a_bias_that_are_no_tokens_are_refused_before_an_engine_starts(served):
    with pytest.raises(SettingError, match="is not one token of this model"):
        served({}, {"bias": Bias(1.0, up=("unquestionably",))})
