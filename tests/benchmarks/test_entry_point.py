"""A benchmark of another package, the one of docs/extending.md: found by its entry points, run and reported as any other."""

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mgap.cli.main import app
from mgap.errors import SettingError
from mgap.pocket.scenes import make_scene, render
from mgap.registry import BENCHMARKS, SCORERS
from mgap.run.config import Config

GUIDE = Path(__file__).parents[2] / "docs" / "extending.md"
POINTS = "[mgap.benchmarks]\ncolours = my_package:ColourSource\n[mgap.scorers]\ncolours = my_package:ColourScorer\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """What pip leaves behind: the guide's two classes as a module, and metadata with the entry points that the guide names."""
    text = GUIDE.read_text()
    (named,) = (
        block for block in re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "mgap.scorers" in block
    )
    for group, target in (("mgap.benchmarks", "ColourSource"), ("mgap.scorers", "ColourScorer")):
        assert f'[project.entry-points."{group}"]\ncolours = "my_package:{target}"' in named
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_package.py").write_text(
        "\n".join(block for block in blocks if re.search(r"^class Colour", block, re.MULTILINE))
    )
    info = tmp_path / "my_package-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_package", None)


@pytest.fixture
def files(tmp_path):
    folder, rows = tmp_path / "colours", []
    folder.mkdir()
    for seed in (300_000, 300_001):
        scene = make_scene(seed)
        render(scene).save(folder / f"{seed}.png")
        rows += [
            {"image": f"{seed}.png", "thing": t.name, "colour": t.colour} for t in scene.things if scene.count(t.name) == 1
        ]
    (folder / "colours.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder, len(rows)


def test_it_is_run_and_reported(installed, files, tmp_path):
    folder, count = files
    assert "colours" in BENCHMARKS.names()
    assert "colours" in SCORERS.names()
    out = str(tmp_path / "run")
    words = ["run", "colours", "--data", str(folder), "--images", str(folder), "--model", "pocket/llava", "--out", out]
    ran = CliRunner().invoke(app, [*words, "--method", "vanilla", "--method", "blind"])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    assert f"colours: {count} questions" in ran.output + ran.stderr
    assert "accuracy" in ran.output
    reported = CliRunner().invoke(app, ["report", out])
    assert reported.exit_code == 0, (reported.output, reported.exception)
    assert "accuracy" in (Path(out) / "report.html").read_text()


def test_a_key_that_it_does_not_read_is_refused(installed, files):
    keys = {"benchmark": "colours", "model": "pocket/llava", "methods": ["vanilla"], "images": str(files[0])}
    assert Config.of(keys).decode().max_new_tokens == 12
    with pytest.raises(SettingError, match="splits"):
        Config.of({**keys, "splits": ["random"]})
