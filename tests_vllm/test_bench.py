"""The benchmarks of vLLM run where there is no card, on tiny models; what they say of time is not looked at."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from engines import environment

BENCH = Path(__file__).parents[1] / "bench"
SMALL = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "kv_cache_memory_bytes": 64 << 20}


@pytest.fixture(scope="module")
def run(work):
    """`run(script, *words)`: what it prints; a script of bench/ in a process of its own."""

    def call(script, *words):
        command = [sys.executable, str(BENCH / script), *map(str, words)]
        ran = subprocess.run(command, env=environment(work), capture_output=True, text=True, timeout=400)
        assert ran.returncode == 0, ran.stderr[-4000:]
        return ran.stdout

    return call


@pytest.fixture(scope="module")
def checkpoint(run, work):
    run("checkpoints.py", "tiny-llava", "--out", work / "checkpoints", "--device", "cpu")
    return work / "checkpoints" / "tiny-llava"


def test_a_steps_cost(run, checkpoint, tmp_path):
    told = ["--batches", 1, 4, "--pairs", 2, "--tokens", 6, "--options", json.dumps(SMALL), "--out", tmp_path / "found.json"]
    printed = run("serving.py", checkpoint, *told)
    held = json.loads((tmp_path / "found.json").read_text())
    assert [(row["batch"], row["off_equal"], row["steps"]) for row in held["rows"]] == [(1, 1, 5), (4, 4, 5)]
    assert all(row["plain_ms"][1] > 0 and row["changed"] > 0 for row in held["rows"])
    assert held["about"] in printed


def test_questions_a_second(run, checkpoint, tmp_path):
    told = [
        "--pictures",
        2,
        "--asked",
        3,
        "--single",
        2,
        "--rounds",
        1,
        "--batch-size",
        3,
        "--workers",
        1,
        "--max-new-tokens",
        3,
    ]
    told += ["--device", "cpu", "--options", json.dumps(SMALL), "--out", tmp_path / "found.json"]
    run("pope_engines.py", checkpoint, *told)
    (found,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    ways = {"own, plain", "own, MGAP", "vLLM, plain", "vLLM, MGAP", "one by one"}
    assert found["questions_a_second"].keys() == ways
    assert all(rate > 0 for rates in found["questions_a_second"].values() for rate in rates)


def test_two_servers_under_load(run, checkpoint, tmp_path):
    flags = ["--dtype", "float32", "--enforce-eager", "--max-model-len", 512, "--kv-cache-memory-bytes", 64 << 20]
    told = ["--levels", 1, 2, "--waves", 1, "--least", 2, "--tokens", 4, "--rounds", 1, "--logs", tmp_path]
    run("serving_load.py", checkpoint, *told, "--out", tmp_path / "found.json", "--flags", *flags)
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert {(row["way"], row["level"]) for row in rows} == {("plain", 1), ("mgap", 1), ("plain", 2), ("mgap", 2)}
    assert all((row["completed"], row["failed"]) == (2, 0) for row in rows)
