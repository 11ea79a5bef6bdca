"""MGAP inside SGLang itself, on a CPU: its logits processor, its model runner, and a whole engine with its scheduler.

Not here: CUDA graphs and quantised heads, which need a GPU, and pictures.
"""

import json
import os
from importlib.util import find_spec

import pytest
import torch
from sglang_child import child
from sglang_models import correction, generate, load, write_model, write_prior

import mgap
from mgap.serving.checkpoint import servable

NEEDED = ("sglang", "triton", "tvm_ffi", "msgspec", "xgrammar", "zmq", "orjson")
missing = [name for name in NEEDED if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"SGLang cannot be imported without {', '.join(missing)}: docs/sglang.md")
PROMPTS = [[5, 9, 17, 33], [7, 8, 9, 10, 11, 12], [100], [64, 2, 300, 31]]
LENGTH = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sglang")
    write_model(folder / "model")
    write_model(folder / "other", seed=1)
    write_prior(folder / "prior", folder / "model")
    write_prior(folder / "other-prior", folder / "other")
    return folder


@pytest.fixture(scope="module")
def settings(folder):
    return {"prior": str(folder / "prior"), "alpha": 1.0, "lam": 1.0}


@pytest.fixture(scope="module")
def ask(folder, settings):
    """Functions of sglang_parts.py, with a runner of the model with MGAP."""
    given = {"model": str(folder / "model"), "settings": json.dumps(settings)}
    with child(folder / "child") as started:
        yield lambda function, **more: started(f"sglang_parts:{function}", **{**given, **more})


# --- the logits processor --------------------------------------------------------------------------------------------

MIXED = [None, 0.0, 0.3, 1.0, 2.0, 0.0, None]


@pytest.mark.parametrize(
    "config", [{}, {"tied": True}, {"vocab": 300}, {"logit_scale": 0.25}, {"final_logit_softcapping": 30.0}]
)
def test_rows_of_several_strengths_are_those_of_transformers_and_plain_ones_sglangs_own(ask, folder, config):
    found = ask("compare", prior=bare_prior(folder), alphas=MIXED, **config)
    assert found["error"] < 1e-4
    assert found["changed"] > 0.01
    assert found["plain_is_equal"]
    way = "a second pass through the head" if "final_logit_softcapping" in config else "a table of the head's directions"
    assert found["way"] == way


def bare_prior(folder):
    """A prior that names no model, for heads of random weights."""
    place = folder / "bare"
    if not place.exists():
        mgap.Subspace.from_states(torch.randn(40, 64, generator=torch.Generator().manual_seed(2)), 5).save(place)
    return str(place)


@pytest.mark.parametrize("alphas", [[0.0] * 4, [None] * 4, [None]])
def test_strength_zero_is_sglang_bit_for_bit_and_the_servers_own_strength_needs_no_request(ask, folder, alphas):
    found = ask("compare", prior=bare_prior(folder), alphas=alphas)
    assert found["plain_is_equal"]
    assert found["error"] < 1e-4


def test_a_head_in_sixteen_bits_is_run_in_float32_for_corrected_rows_only(ask, folder):
    found = ask("compare", prior=bare_prior(folder), alphas=MIXED, dtype="bfloat16")
    assert found["way"] == "a table of the head's directions, from float32 logits"
    assert found["error"] < 1e-4
    assert found["plain_is_equal"]
    assert found["dtype"] == "torch.float32"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_cuda_graph_captures_holds_for_every_strength_and_fills_the_buffer_that_graphs_share(ask, folder, dtype):
    found = ask("compare", prior=bare_prior(folder), alphas=MIXED, dtype=dtype, captured=True, buffer=True)
    assert found["error"] < 1e-4
    assert found["plain_is_equal"]
    assert found["is_in_buffer"]


def test_a_server_without_a_strength_of_its_own_corrects_requests_that_bring_one(ask, folder):
    found = ask("compare", prior=bare_prior(folder), alphas=[None, 1.0, 0.0], own=0.0)
    assert found["error"] < 1e-4
    assert found["plain_is_equal"]


def test_no_rows_have_no_logits(ask, folder):
    assert ask("no_rows", prior=str(folder / "prior")) == [0, 320]


def test_another_head_than_the_measured_one_is_not_corrected_with_its_table(ask, folder):
    said = ask("foreign_head", prior=str(folder / "prior"))
    assert "has measured one head, and this call is for another (ParallelLMHead)" in said


# --- the model runner ------------------------------------------------------------------------------------------------


def test_requests_of_one_batch_have_the_tokens_of_transformers_each_at_its_own_strength(ask, folder, settings):
    alphas = [None, 0.0, 0.5, 2.0]
    found = ask("decode", prompts=PROMPTS, alphas=alphas, length=LENGTH)
    for prompt, alpha, tokens in zip(PROMPTS, alphas, found, strict=True):
        own = {**settings, "alpha": settings["alpha"] if alpha is None else alpha}
        assert tokens == generate(folder / "model", prompt, LENGTH, **own)
    plain = [generate(folder / "model", prompt, LENGTH) for prompt in PROMPTS]
    assert found[1] == plain[1]
    assert sum(tokens != without for tokens, without in zip(found, plain, strict=True)) >= 2  # or it would show nothing


@pytest.mark.parametrize("chunk", [3, 100])
def test_logprobs_of_prompts_have_their_requests_strength_also_in_chunks(ask, folder, settings, chunk):
    alphas = [None, 0.0, 2.0]
    logprobs, logits = ask("prompt_logprobs", prompts=PROMPTS[:3], alphas=alphas, chunk=chunk)
    model, found = load(folder / "model"), torch.tensor(logprobs).split([len(prompt) for prompt in PROMPTS[:3]])
    for place, (prompt, alpha) in enumerate(zip(PROMPTS[:3], alphas, strict=True)):
        own = {"alpha": settings["alpha"] if alpha is None else alpha, "lam": settings["lam"]}
        step = correction(model.lm_head, settings["prior"], **own)
        with torch.no_grad():
            states = model.model(torch.tensor([prompt])).last_hidden_state[0]
            expected = step.step(states, model.lm_head(states), torch.full((len(prompt),), own["alpha"]))
        torch.testing.assert_close(torch.tensor(logits[place]), expected[-1], rtol=1e-4, atol=1e-4)
        likely = expected.log_softmax(-1)[:-1].gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]
        torch.testing.assert_close(found[place][: len(likely)], likely, rtol=1e-4, atol=1e-4)


def test_a_prior_of_pocket_qwen3_vl_fits_it_inside_sglang_and_gives_the_tokens_of_transformers(tmp_path):
    model = mgap.load("pocket/qwen3-vl", dtype="float32")
    mgap.Subspace.fit(model, ["Describe a street.", "Name a room with a bed.", "List foods."] * 6, rank=2).save(
        tmp_path / "prior"
    )
    settings = {"prior": str(tmp_path / "prior"), "alpha": 2.0, "gate": False, "protect": False}
    prompt = model.backbone.tokenize(model.backbone.render("Is there a dog?", pictures=0))
    tokens = torch.tensor([prompt])
    how = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
    plain = model.backbone.model.generate(tokens, **how)[0, len(prompt) :].tolist()
    with model.using(mgap.MGAP(mgap.Subspace.load(tmp_path / "prior"), alpha=2.0, gate=False, protect=False)):
        corrected = model.backbone.model.generate(tokens, **how)[0, len(prompt) :].tolist()
    assert corrected != plain
    given = {"model": str(servable("pocket/qwen3-vl", tmp_path / "model")), "settings": json.dumps(settings)}
    with child(tmp_path / "child") as started:
        found = started("sglang_parts:decode", **given, prompts=[prompt] * 2, alphas=[None, 0.0], length=LENGTH)
    assert found == [corrected, plain]


def test_new_weights_for_a_running_engine_are_refused(ask, folder):
    done, said = ask("update_weights", folder=str(folder / "other"))
    assert not done
    assert "start another one for new weights, or leave mgap out" in said


def test_a_prior_of_another_model_is_refused(ask, folder):
    said = ask("wrong_prior", prior=str(folder / "other-prior"))
    assert said.startswith("BackboneMismatch: the prior was made with")
    assert "the weights differ" in said


# --- refusals before anything is loaded ------------------------------------------------------------------------------

OPTIONS = [
    ({"speculative_algorithm": "NGRAM"}, "--speculative-algorithm"),
    ({"is_embedding": True}, "--is-embedding"),
    ({"pp_size": 2, "disable_overlap_schedule": True}, "--pp-size"),
    ({"attn_dp_size": 2, "tp_size": 2}, "--attn-dp-size"),
    ({"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["q_proj"]}, "--enable-lora"),
    ({"enable_torch_compile": True}, "--enable-torch-compile"),
    ({"startup_weight_load_mode": "overlap"}, "--startup-weight-load-mode"),
]


@pytest.mark.parametrize(("option", "name"), OPTIONS, ids=[name for _, name in OPTIONS])
def test_an_engine_in_which_it_cannot_be_exact_is_refused_by_name(ask, settings, option, name):
    said = ask("refusal", settings=settings, **option)
    assert said.startswith(f"SettingError: MGAP cannot be used with {name}"), said
    assert "leave one of them out" in said


def test_settings_are_checked_where_they_were_given(ask, settings):
    assert ask("refusal", settings=settings) == ""
    assert ask("refusal", settings=None, speculative_algorithm="NGRAM") == ""  # none of ours, for an engine without MGAP
    assert "unknown key 'alhpa'; choose from" in ask("refusal", settings={**settings, "alhpa": 1.0})
    assert "--json-model-override-args mgap: prior is missing" in ask("refusal", settings={"alpha": 1.0})
    assert "log_every is for vLLM" in ask("refusal", settings={**settings, "log_every": 5})
    assert "must hold keys and values" in ask("refusal", settings=3)


def test_an_unknown_sglang_stops_engines_that_ask_for_mgap_and_no_others(ask, settings):
    asked, plain, hooked = ask("refusal_by_an_unknown_version", settings=settings)
    assert "this SGLang is not one that mgap knows" in asked
    assert "_get_logits takes no new_argument" in asked
    assert plain == ""
    assert hooked == ["sglang.srt.server_args.ServerArgs.check_server_args"]


# --- an engine -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(folder, settings):
    with child(folder / "engine") as started:
        assert started("sglang_engines:start", model=str(folder / "model"), settings=settings) == ""
        yield lambda function, **more: started(f"sglang_engines:{function}", **more)
        started("sglang_engines:close")


def params(alphas, length=LENGTH):
    return [{"max_new_tokens": length, **({} if a is None else {"custom_params": {"mgap_alpha": a}})} for a in alphas]


def test_an_engine_answers_as_transformers_does_with_requests_of_all_strengths_at_once(engine, folder, settings):
    alphas = [None, 0.0, 0.5, 2.0, 0.0, None]
    prompts = [*PROMPTS, PROMPTS[0], PROMPTS[2]]
    found = engine("generate", prompts=prompts, params=params(alphas))
    plain = [generate(folder / "model", prompt, LENGTH) for prompt in prompts]
    for prompt, alpha, tokens, without in zip(prompts, alphas, found, plain, strict=True):
        own = {**settings, "alpha": settings["alpha"] if alpha is None else alpha}
        assert tokens == (without if alpha == 0 else generate(folder / "model", prompt, LENGTH, **own))
    assert found[0] != plain[0]
    assert found[0] != found[4]


def test_requests_that_come_and_go_keep_their_strengths(engine, folder, settings):
    alphas, lengths = [2.0, 0.0, None, 0.5] * 3, [3, 12, 7, 5, 12, 1, 9, 4, 2, 8, 12, 6]  # more than run at a time
    prompts = PROMPTS * 3
    asked = [{**each, "max_new_tokens": length} for each, length in zip(params(alphas), lengths, strict=True)]
    for prompt, alpha, length, tokens in zip(
        prompts, alphas, lengths, engine("generate", prompts=prompts, params=asked), strict=True
    ):
        own = {**settings, "alpha": settings["alpha"] if alpha is None else alpha}
        assert tokens == generate(folder / "model", prompt, length, **own)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"custom_params": {"mgap_alpha": "high"}}, "mgap_alpha='high' must be a finite number"),
        ({"custom_params": {"mgap_lam": 1.0}}, "unknown 'mgap_lam' in custom_params"),
        ({"beam_width": 2}, "MGAP in SGLang has no beam search"),
    ],
)
def test_a_request_that_cannot_be_done_is_refused_and_the_engine_goes_on(engine, folder, given, why):
    said = engine("generate", prompts=PROMPTS[:1], params=[{"max_new_tokens": 2, **given}])
    assert why in said
    (tokens,) = engine("generate", prompts=PROMPTS[:1], params=params([0.0], 3))
    assert tokens == generate(folder / "model", PROMPTS[0], 3)


def test_an_engine_refuses_new_weights_and_goes_on(engine, folder):
    done, said = engine("update_weights", folder=str(folder / "other"))
    assert not done
    assert "leave mgap out" in said
    (tokens,) = engine("generate", prompts=PROMPTS[:1], params=params([0.0], 3))
    assert tokens == generate(folder / "model", PROMPTS[0], 3)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="SGLang gives each rank a core of its own")
def test_two_ranks_and_prompts_in_chunks_change_no_token(folder, settings):
    alphas = [None, 0.0, 2.0, 0.5]
    with child(folder / "ranks", SGLANG_CPU_OMP_THREADS_BIND="0|1") as started:
        more = {"tp_size": 2, "chunked_prefill_size": 4}
        assert started("sglang_engines:start", model=str(folder / "model"), settings=settings, **more) == ""
        found = started("sglang_engines:generate", prompts=PROMPTS, params=params(alphas))
        started("sglang_engines:close")
    for prompt, alpha, tokens in zip(PROMPTS, alphas, found, strict=True):
        own = {**settings, "alpha": settings["alpha"] if alpha is None else alpha}
        assert tokens == generate(folder / "model", prompt, LENGTH, **own)
