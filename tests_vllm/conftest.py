"""Both pocket models as vLLM reads them, questions about scenes, and what transformers answers to them, once a session."""

import os
import runpy
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; servers would inherit it and never end
    signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_path(str(Path(__file__).parent / "shim" / "sitecustomize.py"))  # this process prepares pictures as vLLM does

import pytest
from engines import CARDS, Engines
from servers import Server, Servers
from strengths import SERVER, with_mgap
from worlds import World

from mgap.pocket.tiny import TINY_FAMILIES, build_tiny
from mgap.serving.checkpoint import servable
from mgap.serving.engine_settings import EXTENSION
from mgap.serving.installed import PLUGINS, all_plugins

FAMILIES = ("llava", "qwen3-vl")
STRENGTHS = (0.0, SERVER, 5.0)  # at which servers are asked
TOGETHER = {  # by how their ids begin: tests that share engines, a server or vLLM's parser, and so a process
    "engines": ("test_card.py", "test_methods.py", "test_mgap.py", "test_plain.py", "test_refusals.py", "test_text_models.py"),
    "servers": ("test_endpoint.py", "test_parallel.py", "test_remote.py", "test_server.py"),
    "flags": ("test_examples.py::test_vllm_",),
}


def pytest_collection_modifyitems(items) -> None:
    if not CARDS:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a card; this vLLM runs on the CPU"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With -n: what is in TOGETHER stays together, and the largest part is begun first; every other test goes where time is."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            name = nodeid.rpartition("tests_vllm/")[2]
            return next((scope for scope, begins in TOGETHER.items() if name.startswith(begins)), nodeid)

    return Scheduling(config, log)


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
    engines.start()  # imports vLLM while transformers makes the references
    return worlds[family]


@pytest.fixture(scope="session")
def llava(worlds) -> World:
    return worlds["llava"]


@pytest.fixture(scope="session")
def running(llava, served, server) -> Server:
    """The OpenAI server of pocket/llava with MGAP, one for all tests that ask it."""
    told = {"env": {PLUGINS: all_plugins()}, "worker_extension_cls": EXTENSION}  # as `mgap serve` does
    started = server(served["llava"], wait=False, **told, **with_mgap(llava, SERVER, log_every=1, reload=True))
    for alpha in STRENGTHS:
        llava.answers(alpha)  # kept for `texts`, and made while the server imports vLLM
    return started.wait()


@pytest.fixture(scope="session")
def texts(llava) -> dict[float, list[str]]:
    """By strength, what transformers says to each question, one at a time in float32."""
    decode = llava.model.backbone.tokenizer.decode
    return {alpha: [decode(ids, skip_special_tokens=True).strip() for ids in llava.answers(alpha)] for alpha in STRENGTHS}
