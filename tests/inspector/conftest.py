"""A pocket model with its prior and a small bank, as the page has it; loaded once."""

import pytest
from mgap.inspector.shelf import Shelf

from mgap.decoding.replay import Paths
from mgap.inspector.asking import Knobs, answer, build_column
from mgap.inspector.columns import Asked
from mgap.pocket.scenes import render
from mgap.pocket.showcase import cases


@pytest.fixture(scope="session")
def shelf():
    return Shelf(["pocket/llava"], device="cpu", scenes=6)


@pytest.fixture(scope="session")
def loaded(shelf):
    return shelf.get("pocket/llava")


@pytest.fixture(scope="session")
def blue_banana():
    return cases()[1]


@pytest.fixture(scope="session")
def office():
    return cases()[6]


@pytest.fixture(scope="session")
def ask(loaded):
    """All answers to a case under some methods; `given` are settings by method."""

    def call(case, names, knobs=None, given=None, length=40):
        asked = Asked(loaded, loaded.prior, render(case.scene), case.scene, case.question, length, Paths(loaded.model))
        columns = tuple(build_column(name, loaded.prior, knobs or Knobs(), (given or {}).get(name, {})) for name in names)
        *_, last = answer(Asked(**{**vars(asked), "columns": columns}))
        return last

    return call
