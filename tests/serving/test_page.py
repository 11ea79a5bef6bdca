"""The pages about vLLM say what the code says: keys, refusals, methods, log lines, and the options of `mgap serve`."""

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
import torch

import mgap
from mgap.cli.serve import serve
from mgap.errors import MgapError
from mgap.methods.mgap import MGAP, PRESETS
from mgap.registry import METHODS
from mgap.serving.counts import CountSummary
from mgap.serving.engine_settings import LOG_EVERY, Serving, own_alpha
from mgap.serving.servable import why_not

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join((DOCS / name).read_text() for name in ("serving.md", "serving-operations.md"))
TABLES = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]

pytestmark = pytest.mark.filterwarnings("ignore:.* names no model")  # bare states


@pytest.fixture(scope="module")
def prior(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prior") / "five"
    mgap.Subspace.from_states(torch.randn(12, 16, generator=torch.Generator().manual_seed(0)), rank=5).save(folder)
    return str(folder)


def test_every_key_has_its_line_and_its_default():
    rows = {key: row for row in TABLES for key in re.findall(r"`(\w+)`", row[0]) if len(row) == 4}
    assert {field.name for field in fields(MGAP)} | {"log_every", "reload"} <= set(rows)
    assert rows["log_every"][3] == f"{LOG_EVERY:g}"
    assert all(f"`{name}`" in rows["preset"][2] for name in (*PRESETS, "tuned"))
    assert all(rows[key][3] == f"the preset's, {PRESETS['paper'][key]:g}" for key in ("alpha", "lam"))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"prior": "PRIOR", "alpha": -1},
        {"prior": "PRIOR", "rank": 99},
        {"prior": "PRIOR", "preset": "tuned"},
    ],
)
def test_refusals_at_load_are_quoted_as_they_are(prior, given):
    with pytest.raises(MgapError) as refused:
        Serving.of({key: prior if value == "PRIOR" else value for key, value in given.items()}).method()
    assert f" {refused.value} |" in PAGE


@pytest.mark.parametrize("given", [{"mgap_alpha": -1}, {"mgap_lam": 1}])
def test_refusals_of_requests_are_quoted_as_they_are(given):
    with pytest.raises(MgapError) as refused:
        own_alpha(given)
    assert f" {refused.value} |" in PAGE


@pytest.mark.parametrize(
    "sentence",
    [
        "MGAP acts on generated tokens, and this engine's runner is ",
        "MGAP needs the logits of all rows and tokens on every rank: leave out --enable-batch-sharded-sampling, or mgap",
        " has no compute_logits: MGAP cannot act on it, leave mgap out",
        "additional_config asks for 'mgap', but ",
        ": put mgap into VLLM_PLUGINS, or leave that unset; see docs/serving.md for the versions of vLLM",
        "its plugin was not loaded",
        "this vLLM is not one that mgap knows (",
        "mgap_alpha was given, but this engine runs without MGAP: leave it out, or start one with a prior",
        "mgap_alpha was given, but with speculative decoding vLLM's first model runner does not say which rows are whose: "
        "leave it out, or switch speculation off",
        "prompt_logprobs have the server's strength: leave out mgap_alpha, or prompt_logprobs",
        "beam search has the server's strength: leave out mgap_alpha, or use_beam_search",
    ],
)
def test_refusals_that_need_vllm_are_quoted_from_the_code(sentence):
    code = "".join(path.read_text() for path in (Path(mgap.__file__).parent / "serving").glob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", code).replace("{ALPHA}", "mgap_alpha").replace("{KEY!r}", "'mgap'")
    assert sentence in joined
    assert sentence in PAGE


def test_every_method_is_told_with_its_reason():
    listed = {name: row[1] for row in TABLES if len(row) == 2 for name in row[0].split(", ")}
    for name in METHODS.names():
        reason = why_not(METHODS.get(name))
        assert listed.get(name, "") == reason, name


def test_the_log_line_is_one_that_is_written():
    (line,) = (line for line in PAGE.splitlines() if line.startswith("MGAP: mean beta"))
    beta, changed, rows = re.fullmatch(r"MGAP: mean beta ([\d.]+), .+ in ([\d.]+)% of (\d+) rows looked at", line).groups()
    assert line == f"MGAP: {CountSummary(int(rows), float(beta), float(changed) / 100, 0.0, 0.0).text()}"


def test_options_of_mgap_serve_are_those_it_has():
    (told,) = (part for part in PAGE.split("\n\n") if part.startswith("`mgap serve` has"))
    options = set(re.findall(r"`(--[a-z-]+)`", told.partition("everything after")[0]))
    names = set(signature(serve).parameters) - {"model", "further", "dry_run"}
    assert options == {f"--{name.replace('_', '-')}" for name in names}
