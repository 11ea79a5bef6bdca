"""`mgap serve` up to the moment in which vLLM would start; what comes then is in tests_vllm."""

import json
import shlex
import socket
from importlib import metadata
from importlib.util import find_spec

import pytest
import torch

import mgap
from mgap.errors import BackboneMismatch, SettingError
from mgap.serving.installed import TESTED_MINORS, untested
from mgap.serving.launch import SERVER, has_flag, plan_launch, read_flags, require_model

PLACE = {"host": "127.0.0.1", "port": 8000}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where copies for vLLM go
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)


@pytest.fixture(scope="module")
def pocket_prior(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prior")
    mgap.Subspace.fit(mgap.load("pocket/llava"), mgap.default_prompts()[:12]).save(folder)
    return folder


def after(line):
    """The flags of a line."""
    return shlex.split(line)[4:]


def words(line):
    return dict(zip(given := after(line), given[1:], strict=False))


def test_a_dry_run_prints_the_line_that_serves_the_same_and_starts_nothing(run, pocket_prior):
    status, out, error = run(
        "serve", "pocket/llava", "--prior", pocket_prior, "--alpha", 1, "--lam", 0.5, "--rank", 3, "--port", 9000, "--dry-run",
        "--", "--tensor-parallel-size", 4, "--enforce-eager",
    )  # fmt: skip
    assert status == 0, error
    given = words(out)
    assert out.startswith("VLLM_PLUGINS=mgap vllm serve ")
    assert json.loads(given["--additional-config"]) == {
        "mgap": {"prior": str(pocket_prior), "alpha": 1.0, "lam": 0.5, "rank": 3}
    }
    assert (given["--host"], given["--port"]) == ("127.0.0.1", "9000")
    assert given["--served-model-name"] == "pocket/llava"  # vLLM reads a copy of it
    assert json.loads(given["--limit-mm-per-prompt"]) == {"image": 1}
    assert given["--tensor-parallel-size"] == "4"
    assert shlex.split(out)[-1] == "--enforce-eager"


def test_the_command_that_is_run_has_the_flags_of_the_line(pocket_prior):
    launch = plan_launch("pocket/llava", str(pocket_prior), {}, **PLACE)
    assert launch.command[1:5] == ["-m", SERVER, "--model", launch.model]
    assert launch.command[5:] == after(launch.line)


@pytest.mark.filterwarnings("ignore:.* names no model")
def test_a_predicted_prior_is_served_from_its_map(run, tmp_path):
    states = torch.randn(20, 256, generator=torch.Generator().manual_seed(0))
    mgap.PriorMap.from_states(states, states.roll(1, 0), mgap.Subspace.from_states(states, 2)).save(tmp_path / "map")
    asked = ["serve", "pocket/llava", "--method", "predicted-prior", "--prior", tmp_path / "map", "--dry-run"]
    status, out, error = run(*asked, "--alpha", 2)
    assert status == 0, error
    wanted = {"method": "predicted-prior", "prior_map": str(tmp_path / "map"), "rho": 2.0}
    assert json.loads(words(out)["--additional-config"]) == {"mgap": wanted}
    status, _, error = run(*asked, "--rank", 2)
    assert (status, "unknown key 'rank'" in error) == (2, True)
    status, _, error = run("serve", "pocket/llava", "--method", "mgpa", "--prior", tmp_path, "--dry-run")
    assert (status, "--method='mgpa': choose from mgap, predicted-prior" in error) == (2, True)


def test_versions_that_were_tested_are_those_of_the_extra_and_others_are_told():
    (needed,) = (line for line in metadata.requires("mgap") if line.startswith("vllm") and "extra" in line)
    first, last = TESTED_MINORS[0], TESTED_MINORS[-1]
    assert f">={first}" in needed
    assert f"<0.{int(last.split('.')[1]) + 1}" in needed
    assert [untested(f"{minor}.1+cpu") for minor in TESTED_MINORS] == [""] * len(TESTED_MINORS)
    assert untested("0.99.0") == f"this is vLLM 0.99.0, and mgap was tested with {', '.join(TESTED_MINORS)}"


def test_what_the_user_says_of_pictures_and_of_the_name_stays(pocket_prior):
    given = ["--limit_mm_per_prompt.image", "2", "--served-model-name=mine"]
    launch = plan_launch("pocket/llava", str(pocket_prior), {}, **PLACE, further=given)
    assert "--limit-mm-per-prompt" not in launch.flags
    assert "--served-model-name" not in launch.flags
    assert launch.flags[-3:] == tuple(given)


@pytest.mark.parametrize(
    "flags", [["--additional-config", '{"a": 1}'], ['--additional_config={"a": 1}'], ["--additional", '{"a": 1}']]
)
def test_other_keys_of_the_additional_config_are_joined_with_ours(pocket_prior, flags):
    launch = plan_launch("pocket/llava", str(pocket_prior), {}, **PLACE, further=flags)
    assert launch.line.count("--additional") == 1
    assert set(json.loads(words(launch.line)["--additional-config"])) == {"a", "mgap"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--additional-config", '{"mgap": {"alpha": 1}}'], "give --prior, --alpha and the others"),
        (["--additional-config.mgap.alpha", "1"], "as one JSON object"),
        (["--additional-config", "alpha=1"], "is no JSON"),
        (["--additional-config"], "is no JSON"),
        (["--additional-config=[1]"], "must be a JSON object"),
        (["--model", "other"], "an option of `mgap serve`"),
        (["--port=9"], "an option of `mgap serve`"),
        (["--config", "x.yaml"], "--config among vLLM's flags"),
    ],
)
def test_flags_that_would_change_what_is_set_here_are_refused(flags, told):
    with pytest.raises(SettingError, match=told):
        read_flags(flags)


def test_a_flag_is_found_in_all_of_its_spellings():
    for word in ("--served-model-name", "--served_model_name", "--served-model-name=x", "--served-model-name.x"):
        assert has_flag(["--x", word], "--served-model-name")
    assert not has_flag(["served-model-name", "--served-model"], "--served-model-name")


def test_a_prior_of_another_model_is_refused_from_the_configuration_alone(pocket_prior):
    with pytest.raises(BackboneMismatch, match=r"architecture is Llava.*`mgap fit --model pocket/qwen3-vl --out DIR"):
        plan_launch("pocket/qwen3-vl", str(pocket_prior), {}, **PLACE)
    bare = mgap.Subspace.from_states(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), 2)
    with pytest.raises(BackboneMismatch, match="hidden_size is 8 there and 256 here"):
        require_model(bare, "pocket/llava")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "mgap fit --model pocket/llava --out DIR"),
        (("--prior", "nowhere/at/all"), "no subspace 'nowhere/at/all'"),
        (("--prior", "PRIOR", "--alpha", -1), "alpha=-1.0 must be"),
        (("--prior", "PRIOR", "--rank", 99), "rank=99"),
        (("--prior", "PRIOR", "--preset", "best"), "preset='best'"),
        (("--prior", "PRIOR", "--preset", "tuned"), "this prior has no tuning"),
    ],
)
def test_mistakes_are_told_in_a_sentence_before_anything_starts(run, pocket_prior, options, told):
    given = [pocket_prior if word == "PRIOR" else word for word in options]
    status, _, error = run("serve", "pocket/llava", *given, "--dry-run")
    assert status == 2
    assert told in error


def test_a_list_of_plugins_without_ours_is_refused(run, pocket_prior, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "lora")
    status, _, error = run("serve", "pocket/llava", "--prior", pocket_prior, "--dry-run")
    assert (status, "set VLLM_PLUGINS=lora,mgap" in error) == (2, True)
    monkeypatch.setenv("VLLM_PLUGINS", "lora,mgap")
    assert run("serve", "pocket/llava", "--prior", pocket_prior, "--dry-run")[0] == 0


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_extra_is_named(run, pocket_prior):
    status, _, error = run("serve", "pocket/llava", "--prior", pocket_prior)
    assert status == 2
    assert 'pip install "mgap[vllm]"' in error


def test_a_place_where_nothing_can_listen_is_refused_before_the_model_is_loaded(run, pocket_prior, monkeypatch):
    monkeypatch.setattr("mgap.serving.installed.require_vllm", lambda _purpose: None)
    words = ["serve", "pocket/llava", "--prior", pocket_prior, "--port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, error = run(*words, port)
    assert (status, out) == (2, "")
    assert (
        error == f"mgap: cannot listen on 127.0.0.1, port {port} (Address already in use): choose another --port, or --host\n"
    )
    for host in ("203.0.113.7", "x" * 300):
        status, out, error = run(*words, 9, "--host", host)
        assert (status, out) == (2, "")
        assert error.startswith("mgap: cannot listen on ")
        assert error.count("\n") == 1
