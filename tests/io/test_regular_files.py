"""Regular files, and links on the way to what is written."""

import ast
import os
from collections import Counter
from pathlib import Path

import pytest

import mgap
from mgap.errors import CorruptFile, MgapError
from mgap.io.atomic_files import replacing, written_alone
from mgap.io.output_folder import write_files
from mgap.io.regular_files import inside, own, read_regular

SOURCE = Path(mgap.__file__).parent
OPENED = {  # otherwise than by the helpers of mgap.io
    "read_text": {
        "backbones/decoding_limits.py": 1,  # the kernel's own file on memory
        "benchmarks/published_files.py": 1,  # these are files of the package itself
        "cli/ls.py": 1,
        "inspector/gallery.py": 1,
        "inspector/runs.py": 1,
        "inspector/theme.py": 1,
        "pocket/benchmark.py": 1,
        "priors/custom_generate/repository.py": 1,
        "priors/object_words.py": 1,
        "priors/prompts.py": 1,
        "serving/checkpoint.py": 6,  # all of whose folder is looked at before
    },
    "read_bytes": {"serving/checkpoint.py": 1},
    "write_text": {"serving/checkpoint.py": 1},  # a new folder of its own
    "write_bytes": {"serving/checkpoint.py": 1},
    "safe_open": {"priors/bank_files.py": 1, "serving/checkpoint.py": 1},
    "load_file": {"pocket/natural.py": 1, "serving/checkpoint.py": 1},  # the former reads a file of the package itself
    "open": {},
}


def test_every_file_is_opened_by_the_helpers():
    found = {name: Counter() for name in OPENED}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or any(given.arg == "opener" for given in node.keywords):
                continue
            match node.func:
                case ast.Name(name) if name in found and name != "read_text":  # that of mgap.io.record_files
                    found[name][str(path.relative_to(SOURCE))] += 1
                case ast.Attribute(_, name) if name in found and name != "open":
                    found[name][str(path.relative_to(SOURCE))] += 1
    assert {name: dict(counted) for name, counted in found.items()} == OPENED


def test_a_link_is_read_and_not_written(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link") == b"old"
    with pytest.raises(CorruptFile, match="link: a link, and nothing is written through links"):
        open(tmp_path / "link", "a", opener=own)  # noqa: SIM115  refused
    with pytest.raises(CorruptFile, match="link: a link"), replacing(tmp_path / "link"):
        pass
    with pytest.raises(CorruptFile, match="link: a link"):
        write_files(tmp_path, {"link": "new"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_a_file_that_is_made_has_the_usual_rights(tmp_path):
    with open(tmp_path / "ours", "a", opener=own) as file:
        file.write("new")
    (tmp_path / "usual").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert read_regular(tmp_path / "ours") == b"new"


def test_the_folder_itself_may_be_a_link_and_those_in_it_may_not(tmp_path):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert inside(tmp_path / "link", "inner", "name") == tmp_path / "link" / "inner" / "name"
    with pytest.raises(CorruptFile, match="link: a link"):
        inside(tmp_path, "link", "inner")


def test_whoever_holds_a_folder_keeps_others_out_until_the_block_ends(tmp_path):
    with written_alone(tmp_path / "new") as is_locked:
        assert is_locked
        with pytest.raises(MgapError, match="another process is writing there"), written_alone(tmp_path / "new", patience=0):
            pass
    with pytest.raises(ZeroDivisionError), written_alone(tmp_path / "new", patience=0):
        raise ZeroDivisionError
    with written_alone(tmp_path / "new", patience=0):
        pass
    assert not os.listdir(tmp_path / "new")
