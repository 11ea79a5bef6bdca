"""The benchmark of decoding runs where there is no GPU; what it says of time is not looked at."""

import json
import math
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import mgap

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def script(monkeypatch):
    """Scripts of bench/ import each other by name, as they do when one of them is run."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield import_module
    for name in ("cases", "decoding", "floor", "marks", "measure", "profiling", "shapes"):
        sys.modules.pop(name, None)


@pytest.fixture
def bench(script, tmp_path, capsys):
    """Run it in this process: exit status, what it printed, and its JSON."""

    def call(*words):
        out = tmp_path / "decoding.json"
        status = script("decoding").main(
            ["--device", "cpu", "--new-tokens", "8", "--rounds", "2", "--out", str(out), *map(str, words)]
        )
        return status, capsys.readouterr().out, json.loads(out.read_text())

    return call


@pytest.mark.parametrize(("name", "batch"), [("tiny-llava", 1), ("tiny-qwen3-vl", 3)])
def test_every_usual_method_has_a_row_with_its_figures_in_eager_decoding(name, batch, bench, script, monkeypatch, tmp_path):
    monkeypatch.setattr(script("cases"), "DESCRIPTION_TOKENS", 4)
    profile = tmp_path / "kernels.md"
    words = ("--models", name, "--batches", batch, "--other-rounds", 1, "--profile", profile)
    status, printed, found = bench("--ways", "eager", *words)
    assert status == 0
    assert min(found["bandwidth"].values()) > 0
    (table,) = found["tables"]
    assert (table["model"], table["batch"], table["way"], table["new_tokens"]) == (name, batch, "eager", 8)
    assert list(table["methods"]) == ["vanilla", "mgap", "vcd", "icd", "code", "m3id", "blind"]
    assert not table["refused"]
    assert min(table["floor"].values()) > 0
    for method, figures in table["methods"].items():
        assert f"| {method} | " in printed
        assert len(figures["turns"]) == (2 if method in ("vanilla", "mgap") else 1)
        assert all(turn["prompt_ms"] > 0 and turn["step_ms"] > 0 for turn in figures["turns"])
        assert all(map(math.isfinite, (*figures["step_ms"], *figures["of_vanilla"], figures["of_floor"])))
        assert figures["peak_gib"] > 0
    assert table["methods"]["vanilla"]["of_vanilla"] == [1, 1, 1]
    assert "2.19" in printed  # the paper's, beside ours
    assert f"{name}, batch {batch}, eager, mgap: " in profile.read_text()
    assert "aten::mm" in profile.read_text()


@pytest.fixture
def quick_compiler(monkeypatch):
    """torch.compile traces and guards as ever, but builds no C++: that would take a minute."""
    compiled = torch.compile

    def quick(*args, mode=None, options=None, **settings):
        return compiled(*args, **{**settings, "backend": "eager"})

    monkeypatch.setattr(torch, "compile", quick)


@pytest.mark.usefixtures("quick_compiler")
def test_compiled_decoding_times_mgap_and_says_what_is_refused(bench):
    words = ("--models", "tiny-llava", "--batches", 1, "--rounds", 1, "--methods", "mgap", "vcd", "pai")
    status, printed, found = bench("--ways", "static", "compiled", *words)
    assert status == 0
    _static, table = found["tables"]
    assert list(table["methods"]) == ["vanilla", "mgap", "vcd"]
    assert "pai does not work with compile" in table["refused"]["pai"]
    assert table["refused"]["pai"] in printed


def test_ways_take_turns_inside_an_answer_and_each_acts_in_its_own(script, model, prior):
    cases, marks = script("cases"), script("marks")
    acted, case = [], cases.Case(model, cases.encode_rows(model, 2), 14, {})
    with marks.StepTimer(
        model.backbone, {"one": None, "other": lambda _head, _args, out: acted.append(out.shape) or out}
    ) as found:
        case.answer(14)
    turns = [name for name, *_ in found.calls]
    assert turns[1:] == ["one", "one", "other", "other"] * 3 + ["one"], "the first call is the prompt's"
    assert len(acted) == turns.count("other")
    assert not model.backbone.head_module._forward_hooks, "nothing stays on the model"
    times = found.step_ms(14)
    assert set(times) == {"one", "other"}
    assert min(*times.values(), found.prompt_ms) > 0


def test_steps_of_a_method_read_a_16_bit_head_in_float32_and_plain_steps_do_not(script, family, checkpoints):
    cases, marks, half = script("cases"), script("marks"), mgap.load(str(checkpoints[family]), dtype="bfloat16")
    given, seen = [], []
    case = cases.Case(half, cases.encode_rows(half, 1), 10, {})
    watch = half.backbone.head_module.register_forward_hook(lambda _head, _args, out: seen.append(out.dtype))
    ways = {"one": None, "other": lambda _head, _args, out: given.append(out.dtype) or out}
    with marks.StepTimer(half.backbone, ways) as found:
        case.answer(10)
    watch.remove()
    assert set(given) == {torch.float32}
    turns = [name for name, *_ in found.calls]
    assert [dtype for dtype, name in zip(seen, turns, strict=True) if name == "one"] == [torch.bfloat16] * turns.count("one")
    assert half.backbone.head_module(torch.zeros(1, half.backbone.identity.hidden_size).bfloat16()).dtype == torch.bfloat16


def test_a_step_of_a_branch_with_forwards_of_its_own_is_both_of_them(script, model, prior):
    cases, marks = script("cases"), script("marks")
    case = cases.Case(model, cases.encode_rows(model, 1), 6, {})
    for name, each in (("vcd", 1), ("vcd-sequential", 2), ("mod", 1)):
        with case.using(cases.build_method(name, model, prior)), marks.StepTimer(model.backbone, {name: None}) as found:
            case.answer(6)
        assert found.calls_per_token(6) == each
        assert found.step_ms(6)[name] > 0


def test_mgap_is_not_timed_where_no_strength_of_it_changes_a_token(bench, script, monkeypatch):
    monkeypatch.setattr(script("cases"), "LARGE", 0.0)  # as if the steps passed over the hook
    status, printed, found = bench("--ways", "eager", "--models", "tiny-llava", "--batches", 2, "--methods", "vanilla", "mgap")
    assert status == 1
    assert list(found["tables"][0]["methods"]) == ["vanilla"]
    assert "| mgap |" not in printed
    assert "mgap at alpha=0 chooses what the plain model would in 100% of the steps" in printed


def test_another_first_token_is_no_sign_that_the_steps_are_changed(script, model, prior, monkeypatch):
    cases = script("cases")
    case = cases.Case(model, cases.encode_rows(model, 2), 8, {})
    cases.require_effect(case, prior)
    said = (case.first_tokens(None) + 1) % 100  # another first token
    for step in range(1, 8):  # and behind it what the plain model says
        said[:, step] = case.plain_choices(said)[:, step]
    monkeypatch.setattr(cases.Case, "first_tokens", lambda *_: said)
    with pytest.raises(cases.NoEffect, match="100% of the steps"):
        cases.require_effect(case, prior)


def test_answers_are_as_long_as_they_are_timed_for(script, checkpoints):
    cases, model = script("cases"), mgap.load(str(checkpoints["llava"]))
    cases.make_endless(model)
    assert cases.Case(model, cases.encode_rows(model, 2), 300, {}).answer(300).shape == (2, 300)
    ending = cases.Case(model, cases.encode_rows(model, 1), 8, {})
    model.backbone.model.generation_config.eos_token_id = int(ending.answer(8)[0, 3])
    with pytest.raises(RuntimeError, match="asked for 1 x 8 tokens"):
        ending.answer(8)


def test_the_floor_counts_what_a_step_reads(script, model, family):
    cases, floor = script("cases"), script("floor")
    backbone, inputs = model.backbone, cases.encode_rows(model, 3)
    text = backbone.config.get_text_config()
    size = next(backbone.language.parameters()).element_size()
    width, vocabulary, inner = text.hidden_size, text.vocab_size, text.intermediate_size
    heads, keys, depth = text.num_attention_heads, text.num_key_value_heads, text.head_dim
    block = 2 * width * heads * depth + 2 * width * keys * depth + 3 * width * inner + 2 * width
    block += 2 * depth * (family == "qwen3-vl")  # norms of queries and keys
    weights = text.num_hidden_layers * block + width + vocabulary * width + 3 * width  # blocks, norm, head, embedded tokens
    least = floor.floor(backbone, inputs, 10, script("measure").Bandwidth(1e9, 2e9))
    assert least.weights == size * weights
    assert least.cache == 3 * (inputs["input_ids"].shape[1] + 5) * text.num_hidden_layers * 2 * keys * depth * size
    assert least.ms == pytest.approx(1000 * (least.weights + least.cache) / 2e9)


def test_an_unknown_method_is_refused_before_anything_is_built(script, capsys):
    with pytest.raises(SystemExit):
        script("decoding").main(["--methods", "mgab"])
    assert "unknown method 'mgab'" in capsys.readouterr().err
