"""Models that come with the package: found by name, known by name, and refused when misspelt."""

import json
from pathlib import Path

import pytest

import mgap
from mgap.errors import ModelError, SettingError
from mgap.registry import EMBEDDED, locate
from tests import processes

FAMILY_OF = {name: name.removeprefix("pocket/") for name in EMBEDDED}


@pytest.fixture
def embedded(family, checkpoints, monkeypatch):
    """The name of an embedded model, with a tiny checkpoint in the place of its weights."""
    name = f"pocket/{family}"
    monkeypatch.setitem(EMBEDDED, name, Path(checkpoints[family]))
    return name


def test_an_embedded_model_is_known_by_its_name_and_not_by_its_place(embedded, tmp_path):
    loaded = mgap.load(embedded)
    assert loaded.backbone.name == loaded.backbone.identity.name == embedded
    prior = mgap.Subspace.fit(loaded, mgap.default_prompts()[:10], rank=2)
    prior.save(tmp_path)
    assert json.loads((tmp_path / "subspace.json").read_text())["model"]["name"] == embedded
    mgap.MGAP(mgap.Subspace.load(tmp_path)).prior.require(loaded.backbone)


def test_a_prior_of_the_same_weights_by_folder_fits(embedded, prior):
    prior.require(mgap.load(embedded).backbone)


def test_a_misspelt_name_lists_the_choices():
    with pytest.raises(ModelError, match=r"pocket/lava.*pocket/llava, pocket/qwen3-vl"):
        mgap.load("pocket/lava")


def test_a_revision_of_an_embedded_model_is_refused(embedded):
    with pytest.raises(SettingError, match="no revisions"):
        mgap.load(embedded, revision="main")


def test_missing_weights_are_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(EMBEDDED, "pocket/llava", tmp_path)
    with pytest.raises(ModelError, match="pocket/llava: its weights are missing"):
        mgap.load("pocket/llava")


def test_other_names_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pocket" / "mine").mkdir(parents=True)
    for name in ("llava-hf/llava-1.5-7b-hf", "pocket/mine", "./pocket/llava", str(tmp_path)):
        assert locate(name, "main") == name


def test_nothing_that_a_checkpoint_holds_is_ignored_by_git():
    """The build leaves out of the wheel what git ignores."""
    names = ("model.safetensors", "README.md", "config.json", "figures.json", "tokenizer.json", "chat_template.jinja")
    paths = [str(folder / name) for folder in EMBEDDED.values() for name in names]
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    found = processes.run(["git", "check-ignore", "--no-index", *paths], cwd=root, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")
