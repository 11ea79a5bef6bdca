"""The same tiny checkpoints with words to answer with: a bias of yes against no needs them as single tokens."""

from pathlib import Path

import pytest

import mgap
from mgap.pocket.tiny import TINY_FAMILIES, build_tiny


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    folders = {family: tmp_path_factory.mktemp(family) for family in TINY_FAMILIES}
    for family, folder in folders.items():
        build_tiny(family, folder, words=("Yes", "No", "yes", "no"))
    return folders


@pytest.fixture(scope="session")
def model(family, checkpoints) -> mgap.Model:  # a fixture of the same name further out would keep what it has loaded
    return mgap.load(str(checkpoints[family]))


@pytest.fixture(scope="session")
def prior(model) -> mgap.Subspace:
    return mgap.Subspace.fit(model, mgap.default_prompts())
