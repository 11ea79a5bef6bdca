"""The benchmark of a POPE run works where there is no GPU; what it says of time is not looked at."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from tests import processes


@pytest.fixture
def pope(monkeypatch):
    """Scripts of bench/ import each other by name, as they do when one of them is run."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    yield import_module("pope")
    for name in ("measure", "pope", "prefill", "shapes"):
        sys.modules.pop(name, None)


def test_pictures_are_files_of_the_size_of_photographs(pope, tmp_path):
    names = pope.photographs(str(tmp_path), 2)
    with Image.open(tmp_path / names[1]) as picture:
        assert picture.size == (640, 480)
        assert picture.format == "JPEG"
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert all(50_000 < size < 250_000 for size in sizes)
    assert (tmp_path / names[0]).read_bytes() != (tmp_path / names[1]).read_bytes()


@pytest.mark.long
def test_all_ways_answer_and_the_stages_are_told(pope, capsys):
    words = ["--model", "tiny-llava", "--device", "cpu", "--pictures", "4", "--asked", "3", "--batch-size", "5", "--chunk", "8"]
    pope.main([*words, "--max-new-tokens", "3", "--workers", "1", "--static"])
    out, err = capsys.readouterr()
    assert "tiny-llava: 12 of 12 questions" in err
    assert "12 questions about 4 pictures, 3 tokens each, batches of 5, chunks of 8" in out
    rows = [line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("| ")]
    ways = ["own", "shared", "shared, 1 workers", "static, shared, 1 workers"]
    assert [row[0] for row in rows[1:6]] == ["one by one", *ways]
    assert rows[6] == ["seconds (share)", *ways]
    assert {row[0] for row in rows[7:]} >= {"waiting for pictures", "reading pictures", "first token", "next tokens", "all"}
    assert not processes.workers_left()
