"""A benchmark of another package, the one of docs/extending.md: found by its entry points, run and reported as any other."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mgap.cli.main import app
from mgap.errors import SettingError
from mgap.pocket.scenes import make_scene, render
from mgap.registry import BENCHMARKS, SCORERS
from mgap.run.config import Config
from tests.packages import installed

GUIDE = Path(__file__).parents[2] / "docs" / "extending.md"
POINTS = {
    "mgap.benchmarks": {"colours": "my_package:ColourSource"},
    "mgap.scorers": {"colours": "my_package:ColourScorer"},
}


@pytest.fixture
def guide_package(tmp_path):
    """The guide's two classes as a module, with the entry points that the guide names."""
    text = GUIDE.read_text()
    (named,) = (
        block for block in re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "mgap.scorers" in block
    )
    for group, target in POINTS.items():
        assert f'[project.entry-points."{group}"]\ncolours = "{target["colours"]}"' in named
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    module = "\n".join(block for block in blocks if re.search(r"^class Colour", block, re.MULTILINE))
    with installed(tmp_path / "site", {"my_package": module}, POINTS):
        yield


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


def test_it_is_run_and_reported(guide_package, files, tmp_path):
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


def test_a_key_that_it_does_not_read_is_refused(guide_package, files):
    keys = {"benchmark": "colours", "model": "pocket/llava", "methods": ["vanilla"], "images": str(files[0])}
    assert Config.of(keys).decode().max_new_tokens == 12
    with pytest.raises(SettingError, match="splits"):
        Config.of({**keys, "splits": ["random"]})
