"""Tiny random checkpoints of both families, built once a worker; a picture; the published files where they exist."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on models this small, threads wait for each other
os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client: no test reaches for the network
if "MGAP_TEST_GPU" not in os.environ:  # make test-gpu
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from PIL import Image

import mgap
from tests.processes import listen_to_signals
from tests.tiers import TINY, is_left_out, mark_the_rest

settings.register_profile("mgap", deadline=None, derandomize=True, max_examples=60)
settings.register_profile(  # make nightly: --hypothesis-profile=nightly
    "nightly", deadline=None, max_examples=10_000, suppress_health_check=list(HealthCheck), print_blob=True
)
settings.load_profile("mgap")

pytest_plugins = ["tests.tiny_runs"]

SHARED = Path(__file__).parents[2] / "shared"


def pytest_addoption(parser):
    if find_spec("pytest_timeout") is None:  # as on a card's machine, where nothing can be installed: no limits there
        for name in ("timeout", "timeout_method"):
            parser.addini(name, "pytest-timeout's, which is not installed")


def pytest_configure():
    listen_to_signals()


def pytest_collection_finish():
    """What is imported stays: the collector of garbage need not go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(tryfirst=True)  # before -m selects by markers
def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    mark_the_rest(items)
    for item in items:
        if item.get_closest_marker("gpu") and "MGAP_TEST_GPU" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device: make test-gpu"))


@pytest.fixture(autouse=True)
def _seeded():
    """A test draws the same whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """What tests learn from models is not left on the machine, nor taken from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MGAP_CACHE", raising=False)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the published reference files (../shared) are not on this machine")
    return SHARED


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    from mgap.pocket.tiny import TINY_FAMILIES, build_tiny  # late: the process that hands out tests needs no torch

    assert tuple(TINY_FAMILIES) == TINY
    folders = {family: tmp_path_factory.mktemp(family) for family in TINY}
    for family, folder in folders.items():
        build_tiny(family, folder)
    return folders


@pytest.fixture(scope="session", params=TINY)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def model(family, checkpoints) -> mgap.Model:
    return mgap.load(str(checkpoints[family]))


@pytest.fixture(scope="session")
def prior(model) -> mgap.Subspace:
    return mgap.Subspace.fit(model, mgap.default_prompts())


@pytest.fixture(scope="session")
def picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="session")
def picture_file(picture, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "street.png"
    picture.save(path)
    return path


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `mgap WORDS` in this process; returns exit status, standard output and standard error."""
    from mgap.cli.main import main

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["mgap", *map(str, words)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                main()
                status = 0
            except SystemExit as leave:
                status = leave.code or 0
        return status, *capsys.readouterr()

    return call
