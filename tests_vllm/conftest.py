"""Both pocket models as vLLM reads them, questions about scenes, and what transformers answers to them, once a session."""

import os
import runpy
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client
runpy.run_path(str(Path(__file__).parent / "shim" / "sitecustomize.py"))  # this process prepares pictures as vLLM does

import pytest
from engines import Engines
from servers import Server, Servers
from strengths import SERVER, with_mgap
from worlds import World

from mgap.pocket.tiny import TINY_FAMILIES, build_tiny
from mgap.serving.checkpoint import servable

FAMILIES = ("llava", "qwen3-vl")


@pytest.fixture(scope="session")
def work() -> Iterator[Path]:
    """A folder with a short name for what vLLM leaves behind: its caches, its sockets, the logs."""
    folder = Path(tempfile.mkdtemp(prefix="mv-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def engines(work) -> Iterator[Engines]:
    """Engine checks: `engines.run(model, generate(...), **settings)`; see engines.py."""
    started = Engines(work)
    started.start()  # imports vLLM while transformers makes the references
    yield started
    started.close()


@pytest.fixture(scope="session")
def server(work) -> Iterator[Servers]:
    """`server(model, *flags, **settings)` starts one and waits until it answers; it is stopped at the end if need be."""
    started = Servers(work)
    yield started
    started.close()


@pytest.fixture(scope="session", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def served(work) -> dict[str, Path]:
    """By family, the pocket model as vLLM reads it."""
    return {family: servable(f"pocket/{family}", work / f"pocket-{family}") for family in FAMILIES}


@pytest.fixture(scope="session")
def tiny(work) -> dict[str, Path]:
    """By family, a checkpoint of random weights as vLLM reads it. They load faster."""
    for family in TINY_FAMILIES:
        build_tiny(family, work / f"written-{family}", heads=2)
    return {family: servable(str(work / f"written-{family}"), work / f"tiny-{family}") for family in TINY_FAMILIES}


@pytest.fixture(scope="session")
def worlds(work) -> dict[str, World]:
    class Lazy(dict[str, World]):
        def __missing__(self, family: str) -> World:
            self[family] = World(family, work)
            return self[family]

    return Lazy()


@pytest.fixture(scope="session")
def world(family, worlds, engines) -> World:
    """The world of the family in hand: `world.requests()`, `world.answers(alpha)`, `world.prior`."""
    return worlds[family]


@pytest.fixture(scope="session")
def llava(worlds) -> World:
    return worlds["llava"]


@pytest.fixture(scope="module")
def running(llava, served, server) -> Server:
    """The OpenAI server of pocket/llava with MGAP, one for each file of tests."""
    return server(served["llava"], **with_mgap(llava, SERVER, log_every=1))


@pytest.fixture(scope="session")
def texts(llava) -> dict[float, list[str]]:
    """By strength, what transformers says to each question, one at a time in float32."""
    decode = llava.model.backbone.tokenizer.decode
    strengths = (0.0, SERVER, 5.0)
    return {alpha: [decode(ids, skip_special_tokens=True).strip() for ids in llava.answers(alpha)] for alpha in strengths}
