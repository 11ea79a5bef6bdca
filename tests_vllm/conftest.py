"""Both pocket models as vLLM reads them, questions about scenes, and what transformers answers to them, once a session."""

import os
import runpy
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client
runpy.run_path(str(Path(__file__).parent / "shim" / "sitecustomize.py"))  # this process prepares pictures as vLLM does

import pytest
from engines import Engines
from servers import Servers

import mgap
from mgap.pocket.benchmark import DEVELOPMENT
from mgap.pocket.samples import Drawn, chair_samples, pope_samples
from mgap.pocket.tiny import TINY_FAMILIES, build_tiny
from mgap.serving.checkpoint import servable

FAMILIES = ("llava", "qwen3-vl")
SCENES = 10  # of each kind of question
TOKENS = 24  # of an answer, at most
FIRST = DEVELOPMENT + 50_000  # nothing is chosen, or judged, on these scenes


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
    """By family, a checkpoint of random weights as vLLM reads it: quicker, and nearly every token of it is a close call."""
    for family in TINY_FAMILIES:
        build_tiny(family, work / f"written-{family}")
    return {family: servable(str(work / f"written-{family}"), work / f"tiny-{family}") for family in TINY_FAMILIES}


class World:
    """One pocket model in transformers, its prior, the questions, and its answers at any strength."""

    def __init__(self, family: str, work: Path) -> None:
        self.family, self.draw = family, Drawn()
        self.model = mgap.load(f"pocket/{family}", dtype="float32", device="cpu")
        self.subspace = mgap.Subspace.fit(self.model, mgap.default_prompts())
        self.prior = work / f"prior-{family}"  # its folder, for additional_config
        self.subspace.save(self.prior)
        asked = [*pope_samples(["adversarial"], SCENES, first=FIRST).samples[::6], *chair_samples(SCENES, first=FIRST).samples]
        self.asked = [(sample.image, sample.prompt) for sample in asked]  # a question a scene, then a description of each
        self.answers = cache(self._answers)

    def requests(self, **sampling: object) -> list[dict[str, object]]:
        """The questions as engines.py's `generate` takes them."""
        options = {"max_tokens": TOKENS, **sampling}
        return [{"tokens": self.tokens(prompt), "picture": name, "sampling": options} for name, prompt in self.asked]

    def tokens(self, prompt: str) -> list[int]:
        """A prompt as it goes to vLLM, with one placeholder where the picture is."""
        return self.model.backbone.tokenize(self.model.backbone.render(prompt))

    def _answers(self, alpha: float | None = None, **settings: object) -> list[list[int]]:
        """Tokens of transformers' greedy answers, the end included: plain (None), or under MGAP of the prior."""
        if alpha is None:
            return [self._answer(name, prompt) for name, prompt in self.asked]
        with self.model.using(mgap.MGAP(self.subspace, alpha=alpha, **settings)):
            return self._answers()

    def _answer(self, name: str, prompt: str) -> list[int]:
        return list(self.model.answer(self.draw(name), prompt, max_new_tokens=TOKENS).token_ids)


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
