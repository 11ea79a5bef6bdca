"""Runs with engine vllm, as far as they go without it; answers are in tests_vllm."""

from importlib.util import find_spec

import pytest

from mgap.backbones.loading import load_weightless
from mgap.decoding.generate import end_ids
from mgap.errors import MgapError, MissingExtra, RunError
from mgap.run.config import Config
from mgap.run.folder import Shard, refuse_other
from mgap.run.job import Job

GOOD = {"benchmark": "pope", "model": "pocket/llava", "methods": ["vanilla", "mgap"], "engine": "vllm"}


def test_more_is_asked_at_once_unless_the_batch_is_given():
    assert Config.of(GOOD).batch_size == 256
    assert Config.of({**GOOD, "batch_size": 8}).batch_size == 8
    assert Config.of({**GOOD, "engine": "transformers"}).batch_size == 32


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"engine": "vlm"}, "unknown engine 'vlm'.*did you mean 'vllm'"),
        ({"engine": "transformers", "engine_options": {"dtype": "float32"}}, "engine transformers has no engine_options"),
        ({"engine_options": 3}, "engine_options must hold keys"),
        ({"engine_options": {"model": "x"}}, "engine_options model: the run's key model decides"),
        ({"engine_options": {"worker_extension_cls": "x"}}, "the run's key engine decides"),
        ({"engine_options": {"additional_config": {"mgap": {}}}}, "the run's methods set mgap"),
        ({"engine_options": {"data_parallel_size": 2}}, "--shard 0/2"),
        ({"engine_options": {"dtype": "float16"}, "dtype": "float32"}, "give one of them"),
        ({"methods": ["vanilla", "vcd"]}, "engine vllm cannot do vcd: .* second context"),
        ({"methods": ["opera"]}, "engine vllm cannot do opera"),
        ({"benchmark": "departure"}, "departures are measured with engine transformers"),
        ({"workers": 2}, "vLLM prepares pictures itself"),
        ({"profile": True}, "profile tells the stages of engine transformers"),
        ({"prefill": "shared"}, "prefix cache"),
        ({"device": "cpu"}, "CUDA_VISIBLE_DEVICES"),
        ({"decoding": {"num_beams": 3}}, "no beams"),
        ({"decoding": {"compile": True}}, "compiles by itself"),
        (
            {"decoding": {"sample": True, "min_p": 0.2}, "engine_options": {"speculative_config": {"method": "ngram"}}},
            "leave out min_p, or speculative_config",
        ),
    ],
)
def test_what_vllm_cannot_do_is_told_in_a_sentence(change, told):
    with pytest.raises(MgapError, match=told):
        Config.of({**GOOD, **change})


def test_sampling_sequences_and_a_bias_are_taken():
    Config.of({**GOOD, "decoding": {"sample": True, "temperature": 0.5, "num_return_sequences": 3}, "prefill": "own"})
    Config.of({**GOOD, "methods": [{"method": "bias", "shift": 1}], "workers": 0})


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_extra_is_named_before_anything_is_read(tmp_path):
    with pytest.raises(MissingExtra, match=r'engine vllm needs vllm; install it with: pip install "mgap\[vllm\]"'):
        Job.prepare(Config.of(GOOD), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_takes_the_engine_and_its_options(run):
    status, _, error = run("run", "pope", "--model", "pocket/llava", "--engine", "vllm", "--engine-option", "tokenizer=x")
    assert (status, "engine_options tokenizer" in error) == (2, True)


def test_a_folder_that_one_engine_has_begun_is_not_taken_up_with_the_other(answer, make_config, tmp_path):
    run, _ = answer(tmp_path / "run")
    job = Job.prepare(make_config(), tmp_path / "run", Shard())
    with pytest.raises(RunError, match='its answers were made with engine = "transformers", not "vllm"'):
        refuse_other(run, {**job.plan(), "engine": "vllm"}, run.samples)


def test_a_folder_of_an_earlier_version_was_begun_with_transformers(answer, make_config, tmp_path):
    run, _ = answer(tmp_path / "run")
    for key in ("engine", "engine_options"):
        run.plan.pop(key)
    plan = Job.prepare(make_config(), tmp_path / "run", Shard()).plan()
    refuse_other(run, plan, run.samples)
    with pytest.raises(RunError, match="engine"):
        refuse_other(run, {**plan, "engine": "vllm"}, run.samples)


def test_an_engine_may_lie_elsewhere_but_not_compute_otherwise(answer, make_config, tmp_path):
    run, _ = answer(tmp_path / "run")
    plan = Job.prepare(make_config(), tmp_path / "run", Shard()).plan()
    refuse_other(run, {**plan, "engine_options": {"tensor_parallel_size": 4, "enforce_eager": True}}, run.samples)
    with pytest.raises(RunError, match=r'engine_options\.quantization = null, not "fp8"'):
        refuse_other(run, {**plan, "engine_options": {"quantization": "fp8"}}, run.samples)


def test_a_backbone_without_weights_reads_prompts_as_the_whole_model_does(family, model, checkpoints):
    light, prompt = load_weightless(str(checkpoints[family])), "Is there a dog in the image?"
    assert type(light) is type(model.backbone)
    assert not list(light.model.parameters())
    assert light.tokenize(light.render(prompt)) == model.backbone.tokenize(model.backbone.render(prompt))
    assert end_ids(light) == end_ids(model.backbone)
    (checkpoints[family] / "generation_config.json").rename(checkpoints[family] / "kept.json")
    try:
        assert end_ids(load_weightless(str(checkpoints[family]))) == end_ids(mgap_load(checkpoints[family]))
    finally:
        (checkpoints[family] / "kept.json").rename(checkpoints[family] / "generation_config.json")


def mgap_load(folder):
    from mgap.decoding.model import load

    return load(str(folder)).backbone
