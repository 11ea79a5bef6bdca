"""Packages of other people whose parts cannot be imported: each is named with its error, and everything else works."""

import json
import re

import pytest

from mgap.errors import PluginError
from mgap.registry import BENCHMARKS, METHODS, REGISTRIES
from mgap.run.config import Config, datasets
from tests.packages import installed

MODULES = {
    "other_raises": "raise RuntimeError('no licence\\nwas found')",
    "other_leaves": "import sys\nsys.exit(3)",
    "other_typo": "def method(:",
    "other_lacks": "import a_library_that_nobody_has",
    "other_empty": "",
    "other_object": "class Method:\n    summary = 'not one of ours'",
    "other_works": """
        from mgap.methods.bias import Bias


        class Works(Bias):
            name = "works"
            summary = "a method that works"
    """,
}
BROKEN = {
    "raises": "RuntimeError: no licence was found",
    "leaves": "SystemExit: 3",
    "typo": "SyntaxError",
    "lacks": "ModuleNotFoundError: No module named 'a_library_that_nobody_has'",
    "empty": "AttributeError",
    "object": "has no 'seam', which a method has",
}
POINTS = {
    "mgap.methods": {**{name: f"other_{name}:Method" for name in BROKEN}, "works": "other_works:Works"},
    **{each.group: {"raises": "other_raises:Part"} for each in REGISTRIES if each is not METHODS},
}


@pytest.fixture
def plugins(tmp_path):
    with installed(tmp_path / "site", MODULES, POINTS):
        yield tmp_path / "site"


@pytest.mark.parametrize("what", ["", "methods", "presets", "backbones"])
def test_lists_name_what_is_broken_and_list_the_rest(run, plugins, what):
    status, out, err = run("ls", *([what] if what else []))
    assert status == 0, err
    if what in ("", "methods"):
        assert "a method that works" in out
        assert re.search(r"^ *mgap ", out, re.MULTILINE)
    if what in ("", "methods", "plugins"):
        for name, reason in BROKEN.items():
            (line, *_) = (line for line in out.splitlines() if f"'{name}' (other_{name}:Method) of other-package 1.0" in line)
            assert reason in line
    if what in ("", "plugins"):
        assert out.count("no licence was found") >= len(REGISTRIES)
        assert "method works: usable" in out


def test_the_doctor_names_what_is_broken(run, plugins):
    status, out, _ = run("doctor")
    assert status == 0
    assert all(reason in out for reason in BROKEN.values())
    found = json.loads(run("doctor", "--json")[1])["plugins"]
    assert found["method works"] == "usable"
    assert BROKEN["leaves"] in found["method leaves"]
    assert len(found) == len(BROKEN) + len(REGISTRIES)


@pytest.mark.parametrize("name", BROKEN)
def test_one_that_is_asked_for_by_name_says_why_it_cannot_be_had(run, plugins, picture_file, name):
    status, out, err = run("ask", picture_file, "What?", "--model", "pocket/llava", "--method", name)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"mgap: the method '{name}' (other_{name}:Method) of other-package 1.0")
    assert BROKEN[name] in err


def test_runs_of_the_other_parts_are_planned_as_ever(plugins):
    config = Config.of({"benchmark": "pope", "model": "pocket/llava", "methods": ["vanilla", {"method": "works", "shift": 1}]})
    assert [plan.method for plan in config.methods] == ["vanilla", "works"]
    assert "coco" in datasets()
    with pytest.raises(PluginError, match="the benchmark 'raises'"):
        BENCHMARKS.get("raises")
    with pytest.raises(PluginError, match="the benchmark 'raises'"):
        Config.of({"benchmark": "raises", "model": "pocket/llava", "methods": ["vanilla"]})


@pytest.mark.parametrize(
    "text", [b"[mgap.methods]\nno equals sign\n", b"[mgap.methods]\nx = \xff:X\n"], ids=["no point", "no text"]
)
def test_a_list_of_entry_points_that_cannot_be_read_hides_nobody_elses(plugins, text):
    other = plugins / "damaged-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: damaged\nVersion: 1.0\n")
    (other / "entry_points.txt").write_bytes(text)
    assert METHODS.get("works").summary == "a method that works"
    assert "mgap" in METHODS.loaded()


def test_ctrl_c_while_one_is_imported_ends_the_command(tmp_path):
    with installed(tmp_path / "site", {"other_slow": "raise KeyboardInterrupt"}, {"mgap.methods": {"slow": "other_slow:Slow"}}):
        with pytest.raises(KeyboardInterrupt):
            METHODS.get("slow")
        with pytest.raises(KeyboardInterrupt):
            METHODS.loaded()
