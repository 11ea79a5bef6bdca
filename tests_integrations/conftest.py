"""What the tests here share: no network, no learnt priors of the user's, tiny random checkpoints."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on models this small, threads wait for each other
os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MGAP_CACHE", raising=False)
        yield


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    from mgap.pocket.tiny import TINY_FAMILIES, build_tiny

    folders = {family: tmp_path_factory.mktemp(family) for family in TINY_FAMILIES}
    for family, folder in folders.items():
        build_tiny(family, folder)
    return folders
