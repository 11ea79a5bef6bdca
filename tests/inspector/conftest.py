"""The pocket LLaVA as the page has it, and small runs of it, made once: questions, captions, own pictures."""

import asyncio
import json
import warnings
from pathlib import Path

import gradio as gr
import pytest

import mgap
from mgap.decoding.replay import Paths
from mgap.inspector.answering import Knobs, answer, build_column
from mgap.inspector.columns import Comparison
from mgap.inspector.model_shelf import ModelShelf
from mgap.pocket.samples import SceneRenderer
from mgap.pocket.scenes import render
from mgap.pocket.showcase import cases
from mgap.run.config import Config
from mgap.run.engine import execute
from mgap.run.job import Job

STRONG = {"method": "mgap", "alpha": 6.0}  # strong enough to change something in a few scenes
FEW = {"model": "pocket/llava", "methods": ["vanilla", STRONG], "decoding": {"max_new_tokens": 16}, "workers": 0}


@pytest.fixture
def in_a_tab():
    """Build a part of the page; inside a running loop, for Gradio makes loops of its own without one and never closes them."""

    async def build(part, *given):
        with gr.Blocks() as page, gr.Tab("Part"):
            built = part(*given)
        return page, built

    return lambda part, *given: asyncio.run(build(part, *given))


@pytest.fixture(scope="session")
def pocket():
    return mgap.load("pocket/llava")


@pytest.fixture(scope="session")
def make_run(pocket):
    """Do a whole run in a folder."""

    def make(out: Path, **keys) -> Path:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            patch.setattr("sys.argv", ["mgap", "run"])
            warnings.filterwarnings("ignore", message="alpha=")  # above 1, and meant
            job = Job.prepare(Config.of({**FEW, **keys}), out)
            run, worker = job.begin(pocket)
            execute(run, worker, shard=job.shard, labels=job.labels)
        return out

    return make


@pytest.fixture(scope="session")
def runs(make_run, tmp_path_factory) -> Path:
    """A folder with runs; read only."""
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "questions", benchmark="pope", scenes=10, splits=("random", "adversarial"))
    make_run(root / "deep" / "captions", benchmark="chair", scenes=3)
    make_run(root / "held-out", benchmark="pope", scenes=1, splits=("random",), held_out=True)
    return root


@pytest.fixture(scope="session")
def own(make_run, tmp_path_factory) -> Path:
    """A folder with one run, on pictures that lie beside it."""
    root = tmp_path_factory.mktemp("own")
    pictures = root / "pictures"
    pictures.mkdir()
    questions = []
    for seed in (100_000, 100_001):
        SceneRenderer()(f"pocket_{seed}.png").resize((300, 300)).save(pictures / f"{seed}.png")
        questions.append({"image": f"{seed}.png", "question": "Is there a dog in the image?", "label": "no"})
    (root / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    asked = str(root / "questions.jsonl")
    make_run(root / "runs" / "mine", benchmark="own", images=str(pictures), questions=asked, methods=["vanilla", "vcd"])
    return root


@pytest.fixture(scope="session")
def shelf():
    return ModelShelf(["pocket/llava"], device="cpu", scenes=6)


@pytest.fixture(scope="session")
def loaded(shelf):
    return shelf.get("pocket/llava")


@pytest.fixture(scope="session")
def yellow_banana():
    return cases()[0]


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
        asked = Comparison(loaded, loaded.prior, render(case.scene), case.scene, case.question, length, Paths(loaded.model))
        columns = tuple(build_column(name, loaded.prior, knobs or Knobs(), (given or {}).get(name, {})) for name in names)
        *_, last = answer(Comparison(**{**vars(asked), "columns": columns}))
        return last

    return call
