"""The example of a method outside the package: found by its entry point, and used as any other."""

import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import mgap
from mgap.cli.main import app
from mgap.decoding.prefill_sharing import can_share
from mgap.errors import SettingError
from mgap.registry import METHODS

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """What pip leaves behind: the module on the path, and metadata with the entry point that pyproject.toml declares."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["mgap.methods"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[mgap.methods]", *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return points


def test_it_is_listed_and_does_what_it_says(installed, model, picture):
    assert "silence" in METHODS.names()
    plain = model.answer(picture, "What?", max_new_tokens=12)
    word = model.backbone.tokenizer.decode([plain.token_ids[0]]).strip()
    method = METHODS.get("silence").of(words=word)
    with model.using(method):
        quiet = model.answer(picture, "What?", max_new_tokens=12, trace=True)
    assert quiet.token_ids[0] != plain.token_ids[0]
    assert quiet.trace[0].values["mass"] > 0
    assert model.answer(picture, "What?", max_new_tokens=12).token_ids == plain.token_ids


def test_stacked_on_a_second_branch_it_leaves_the_branchs_rows_alone(installed, model, picture):
    plain = model.answer(picture, "What?", max_new_tokens=12)
    word = model.backbone.tokenizer.decode([plain.token_ids[0]]).strip()
    seen, head = [], model.backbone.head_module
    with model.using(mgap.VCD(), METHODS.get("silence").of(words=word)):
        handle = head.register_forward_hook(lambda _head, _args, logits: seen.append(logits[:, -1]))
        both = model.answer(picture, "What?", max_new_tokens=1)
        handle.remove()
    assert both.token_ids[0] != plain.token_ids[0]
    ours, branch = seen[0]
    assert torch.isinf(ours).any()
    assert torch.isfinite(branch).all()


def test_a_picture_is_read_once_for_all_its_prompts(installed, model, picture):
    method = METHODS.get("silence").of(words="dog")
    assert can_share(model, method) == ""
    with model.using(method):
        own, shared = (
            [answer.token_ids for answer in model.answers([picture] * 2, ["What?", "Where?"], prefill=way, max_new_tokens=4)]
            for way in ("own", "shared")
        )
    assert own == shared


def test_no_words_are_refused(installed):
    with pytest.raises(SettingError, match="at least one word"):
        METHODS.get("silence").of(words="")


def test_the_command_line_knows_it(installed):
    told = CliRunner().invoke(app, ["ls", "methods"])
    assert told.exit_code == 0
    assert "never say some words" in told.output
