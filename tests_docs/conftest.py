"""Pages as tests: `pytest -c tests_docs/pytest.ini --rootdir . README.md docs tests_docs` types what they ask to be typed.

What is in a page is run in one folder, in order and in one process: `--dist loadfile` keeps it together.
"""

import os
import tempfile
from pathlib import Path

HOME = Path(tempfile.mkdtemp(prefix="mgap-docs-"))
os.environ["HF_HUB_CACHE"] = str(HOME / "hub")  # before anything imports the hub's client
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from clones import Shelf
from collecting import Pages

SHELF = Shelf(HOME)


def pytest_configure(config: pytest.Config) -> None:
    """Registered by hand, as the hooks of this file itself reach no further than its folder."""
    config.pluginmanager.register(Pages(SHELF))


@pytest.fixture(scope="session")
def shelf() -> Shelf:
    """The one that this process runs pages with."""
    return SHELF


def pytest_sessionfinish() -> None:
    """A worker of pytest-xdist has time here; when it is no longer configured, it is about to be killed."""
    SHELF.close()


def pytest_unconfigure() -> None:
    SHELF.close()
