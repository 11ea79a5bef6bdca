"""One folder a test: every case writes its files over those of the last."""

import pytest


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")
