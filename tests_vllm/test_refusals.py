"""Applied or refused: what MGAP cannot do is said when an engine is built, or when a request comes."""

import json
import re
import shutil

import pytest
from engines import CARDS, SECOND, Refused, call, generate, needs_second
from safetensors.torch import load_file, save_file
from strengths import with_alpha, with_mgap

from mgap.priors.subspace import Subspace


def config(**keys):
    return {"additional_config": {"mgap": keys}}


def test_an_engine_that_was_not_asked_stays_as_it_is(worlds, served, engines):
    world = worlds["llava"]
    ran = engines.run(served["llava"], generate(world.requests()[:2]), additional_config={"other": 1})
    assert "MGAP" not in ran.log
    with pytest.raises(Refused, match="mgap_alpha was given, but this engine runs without MGAP") as refused:
        engines.run(served["llava"], generate(with_alpha(world.requests()[:1], 0.5)), additional_config={"other": 1})
    assert refused.value.kind == "VLLMValidationError"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"mgap_alpha": -1}, "mgap_alpha=-1 must be a finite number of at least 0"),
        ({"mgap_alpha": "strong"}, "mgap_alpha='strong' must be a finite number"),
        ({"mgap_alpha": True}, "mgap_alpha=True must be a finite number"),
        ({"mgap_lam": 1}, "unknown 'mgap_lam' in vllm_xargs: of mgap's settings a request may set mgap_alpha only"),
    ],
)
def test_a_request_that_asks_for_what_there_is_not(worlds, served, engines, asked, why):
    world = worlds["llava"]
    request = world.requests(extra_args=asked)[0]
    with pytest.raises(Refused, match=why) as refused:
        engines.run(served["llava"], generate([request]), **with_mgap(world, 0.75))
    assert refused.value.kind == "VLLMValidationError"


def test_a_request_whose_prompt_logprobs_would_have_another_strength(worlds, served, engines):
    world = worlds["llava"]
    request = with_alpha(world.requests(prompt_logprobs=0), 0.5)[0]
    with pytest.raises(Refused, match="prompt_logprobs have the server's strength"):
        engines.run(served["llava"], generate([request]), **with_mgap(world, 0.75))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "prior is missing; fit one with `mgap fit --model MODEL --out DIR`"),
        ({"prior": "PRIOR", "strength": 1}, "unknown key 'strength'; choose from prior, alpha"),
        ({"prior": "PRIOR", "alpha": -1}, "alpha=-1 must be a finite number of at least 0"),
        ({"prior": "PRIOR", "rank": 99}, "rank=99 is not between 1 and 5"),
        ({"prior": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_an_engine_with_settings_that_mgap_does_not_have(worlds, served, engines, keys, why):
    if "prior" in keys:
        keys = {**keys, "prior": keys["prior"].replace("PRIOR", str(worlds["llava"].prior))}
    with pytest.raises(Refused, match=why):
        engines.run(served["llava"], **config(**keys))


def test_a_prior_of_another_model(worlds, served, tiny, engines):
    with pytest.raises(Refused, match=r"the prior was made with pocket/llava, not with .*: architecture is Llava"):
        engines.run(served["qwen3-vl"], **with_mgap(worlds["llava"], 0.75))
    with pytest.raises(Refused, match=r"the prior was made with pocket/llava, not with .*: hidden_size is"):
        engines.run(tiny["llava"], **with_mgap(worlds["llava"], 0.75))


def test_other_weights_of_the_same_shape(worlds, served, engines, work):
    other = changed_copy(served["llava"], work / "other-weights", "embed_tokens.weight", lambda weight: weight + 0.1)
    with pytest.raises(Refused, match="the weights differ; fit one for this model"):
        engines.run(other, **with_mgap(worlds["llava"], 0.75))


@pytest.mark.parametrize("ending", ["lm_head.weight", "layers.1.mlp.up_proj.weight", "multi_modal_projector.linear_1.bias"])
def test_other_weights_behind_the_input_embedding(worlds, served, engines, work, ending):
    """A head of its own, a part of a fused layer, and one before the language model."""
    other = changed_copy(served["llava"], work / f"other-{ending}", ending, lambda weight: weight + 0.1)
    with pytest.raises(Refused, match=rf"the weights differ, such as .*{re.escape(ending)}; fit one for this model"):
        engines.run(other, **with_mgap(worlds["llava"], 0.75))


@pytest.mark.parametrize("family", ["llava", "qwen3-vl"])
def test_every_weight_of_the_prior_is_compared(worlds, served, engines, family):
    (found,) = engines.run(served[family], call("loading:identity"), **with_mgap(worlds[family], 0.75))
    known = Subspace.load(worlds[family].prior).identity.tensors
    assert set(known) <= set(json.loads(found)["tensors"])


def test_new_weights_are_measured_anew(worlds, served, engines, work):
    """A head that is twice as large has a table that is twice as large; a stale one would correct half as much."""
    other = changed_copy(served["llava"], work / "larger-head", "lm_head.weight", lambda weight: 2 * weight)
    step = call("loading:reload", requests=worlds["llava"].requests()[-2:], folder=str(other))
    (found,) = engines.run(served["llava"], step, fresh=True, **with_mgap(worlds["llava"], 5.0))
    assert json.loads(found)["ratio"] == pytest.approx(2.0, rel=1e-5)


def changed_copy(source, folder, ending, change):
    """A checkpoint with one weight changed."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith(ending))
    weights[name] = change(weights[name])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_engines_that_would_pass_by_the_head(worlds, served, engines):
    with pytest.raises(Refused, match="this engine's runner is pooling: leave mgap out"):
        engines.run(served["llava"], **with_mgap(worlds["llava"], 0.75), runner="pooling")


@needs_second
@pytest.mark.skipif(CARDS == 1, reason="vLLM configures two ranks for two cards, and there is one")
def test_ranks_that_sample_shares_of_a_batch(worlds, served, engines):
    """vLLM's own configuration of two ranks; that every rank asks is seen in test_alone.py's two."""
    step = call("loading:refusal", tensor_parallel_size=2, enable_batch_sharded_sampling=True)
    (said,) = engines.run(served["llava"], step, env=SECOND, **with_mgap(worlds["llava"], 0.75))
    assert "leave out --enable-batch-sharded-sampling, or mgap" in said


def test_a_list_of_plugins_without_mgap(worlds, served, engines):
    filtered = {"VLLM_PLUGINS": "another"}
    with pytest.raises(Refused, match="its plugin was not loaded: put mgap into VLLM_PLUGINS, or leave that unset"):
        engines.run(served["llava"], env=filtered, **with_mgap(worlds["llava"], 0.75))
    request = with_alpha(worlds["llava"].requests()[:1], 0.5)
    with pytest.raises(Refused, match="its plugin was not loaded here: put mgap into VLLM_PLUGINS"):
        engines.run(served["llava"], generate(request), env=filtered)
