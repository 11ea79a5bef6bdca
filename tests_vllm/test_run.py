"""`mgap run --engine vllm` as a user calls it: the records of engine transformers, after a stop as well."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import yaml
from engines import SETTINGS, environment
from safetensors.torch import load_file, save_file

from mgap.errors import RunError
from mgap.pocket.fit_map import fit_pocket_map
from mgap.pocket.samples import SceneRenderer, pope_samples
from mgap.registry import locate
from mgap.run.config import Config
from mgap.run.engine import execute
from mgap.run.folder import Shard
from mgap.run.job import Job
from mgap.run.records import Run

METHODS = [
    "vanilla",
    {"method": "mgap", "label": "weak", "alpha": 3},
    {"method": "bias", "shift": -4},
    {"method": "mgap", "label": "strong", "alpha": 10},
]
OPTIONS = {key: value for key, value in SETTINGS.items() if key != "dtype"}
SAME = ("text", "prompt", "image", "tokens", "stop", "rows", "failed")
FIRST = 350_000  # scenes that nothing is chosen, or judged, on

pytestmark = pytest.mark.filterwarnings("ignore:alpha=.* > 1")  # so that they show


@pytest.fixture(scope="session")
def pictures(work):
    """Ten scenes as files with a question each, and a file that is no picture."""
    folder = work / "pictures"
    folder.mkdir()
    lines = []
    for sample in pope_samples(["adversarial"], 10, first=FIRST).samples[1::2]:
        SceneRenderer()(sample.image).save(folder / sample.image)
        lines.append({"image": sample.image, "question": sample.prompt, "label": sample.truth})
    (folder / "broken.png").write_text("no picture")
    lines.insert(7, {"image": "broken.png", "question": "Is there a cat?", "label": "no"})
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def prior_map(worlds, work):
    """The folder of a prior map of `pocket/llava`."""
    fit_pocket_map(worlds["llava"].model).save(work / "map-of-run")
    return {"method": "predicted-prior", "prior": str(work / "map-of-run"), "rho": 6}


def keys(family, worlds, pictures, prior_map):
    """LLaVA's run draws its scenes and fits its prior, Qwen's has both from files."""
    shared = {"model": f"pocket/{family}", "dtype": "float32", "batch_size": 16, "decoding": {"max_new_tokens": 12}}
    if family == "llava":
        return {**shared, "benchmark": "pope", "splits": ["adversarial"], "scenes": 10, "methods": [*METHODS, prior_map]}
    prior = str(worlds[family].prior)
    methods = [{**each, "prior": prior} if "alpha" in each else each for each in METHODS]
    own = {"questions": str(pictures / "questions.jsonl"), "images": str(pictures)}
    return {**shared, **own, "benchmark": "own", "methods": methods}


@pytest.fixture
def start(work):
    """`start(path, out)`: `mgap run PATH --out OUT` in a process of its own, which ends with the test."""
    started = []

    def begin(path, out):
        env = environment(work, VLLM_ENABLE_V1_MULTIPROCESSING="0", XDG_CACHE_HOME=str(work / "xdg"))
        command = [sys.executable, "-m", "mgap.cli.main", "run", str(path), "--out", str(out)]
        with (work / f"{out.name}.log").open("ab") as log:
            started.append(
                subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )
        return started[-1]

    yield begin
    for process in started:
        kill(process)


def kill(process):
    """With whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def stop_after_first_batch(process, out):
    """As a machine that goes down does. What it has written is all that a run tells of a batch, hence it is looked at."""
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        if any(path.stat().st_size for path in out.glob("answers/*/*.jsonl")):
            break
        time.sleep(0.01)
    kill(process)


def told(run):
    return {
        method.label: {name: [getattr(r, key) for key in SAME] for name, r in run.records(method).items()}
        for method in run.methods
    }


def test_answers_are_those_of_engine_transformers_also_after_a_stop(family, worlds, pictures, prior_map, start, work):
    given = keys(family, worlds, pictures, prior_map)
    path, out = work / f"{family}.yaml", work / f"vllm-{family}"
    path.write_text(yaml.safe_dump({**given, "engine": "vllm", "engine_options": OPTIONS}))
    process = start(path, out)
    job = Job.prepare(Config.of(given), work / f"transformers-{family}", Shard())
    reference, worker = job.begin(worlds[family].model)
    execute(reference, worker)
    if family == "llava":
        stop_after_first_batch(process, out)
        begun = sum(map(len, told(Run.load(out)).values()))
        assert 0 < begun < 5 * len(reference.samples)
        process = start(path, out)
    assert process.wait(400) == 0, (work / f"{out.name}.log").read_text()[-6000:]

    run = Run.load(out)
    assert told(run) == told(reference)
    assert run.plan["engine"] == "vllm"
    assert run.plan["versions"]["vllm"]
    model, tensors = reference.plan["model"], reference.plan["model"]["tensors"]
    assert tensors.items() <= run.plan["model"]["tensors"].items()  # vLLM's are the checkpoint's
    assert {**run.plan["model"], "name": model["name"], "tensors": tensors, "is_partial": False} == model
    assert {"scores.json", "report.html"} <= set(os.listdir(out))
    vanilla, *others = told(run).values()
    assert all(each != vanilla for each in others)  # every method says something of its own
    failed = [name for name, record in vanilla.items() if record[-1]]
    assert len(failed) == (family == "qwen3-vl")

    with pytest.raises(RunError, match='its answers were made with engine = "vllm", not "transformers"'):
        Job.prepare(Config.of(given), out, Shard())


def test_samples_of_the_likeliest_token_alone_are_greedy(worlds, start, work):
    given = {"benchmark": "pope", "model": "pocket/llava", "dtype": "float32", "splits": ["adversarial"], "scenes": 4}
    given |= {"methods": ["vanilla"], "decoding": {"max_new_tokens": 4}}
    path, out = work / "sampled.yaml", work / "vllm-sampled"
    sampling = {"max_new_tokens": 4, "sample": True, "temperature": 2.0, "min_p": 0.99999}
    path.write_text(yaml.safe_dump({**given, "decoding": sampling, "engine": "vllm", "engine_options": OPTIONS}))
    process = start(path, out)
    reference, worker = Job.prepare(Config.of(given), work / "transformers-greedy", Shard()).begin(worlds["llava"].model)
    execute(reference, worker)
    assert process.wait(300) == 0, (work / f"{out.name}.log").read_text()[-6000:]
    answers = [{name: record[0] for name, record in told(run)["vanilla"].items()} for run in (Run.load(out), reference)]
    assert answers[0] == answers[1]


def test_questions_without_a_picture_are_asked_as_text_alone(family, worlds, start, work):
    folder = work / f"hallusion-{family}"
    folder.mkdir()
    rows = []
    for number, sample in enumerate(pope_samples(["adversarial"], 2, first=FIRST).samples[::6]):
        place = {"category": "VS", "subcategory": "chart", "set_id": str(number), "question_id": "0", "gt_answer": "1"}
        rows += [
            {**place, "question": sample.prompt, "figure_id": "0", "visual_input": "0", "filename": None},
            {**place, "question": sample.prompt, "figure_id": "1", "visual_input": "1", "filename": f"VS/chart/{number}_1.png"},
        ]
        (folder / "VS" / "chart").mkdir(parents=True, exist_ok=True)
        SceneRenderer()(sample.image).save(folder / "VS" / "chart" / f"{number}_1.png")
    (folder / "HallusionBench.json").write_text(json.dumps(rows))
    given = {
        "benchmark": "hallusionbench", "model": f"pocket/{family}", "dtype": "float32", "data": str(folder),
        "images": str(folder), "methods": ["vanilla", {"method": "bias", "shift": -4}], "decoding": {"max_new_tokens": 12},
    }  # fmt: skip
    path, out = work / f"hallusion-{family}.yaml", work / f"vllm-hallusion-{family}"
    path.write_text(yaml.safe_dump({**given, "engine": "vllm", "engine_options": OPTIONS}))
    process = start(path, out)
    job = Job.prepare(Config.of({**given, "batch_size": 256}), work / f"transformers-hallusion-{family}", Shard())
    reference, worker = job.begin(worlds[family].model)
    execute(reference, worker)
    assert process.wait(400) == 0, (work / f"{out.name}.log").read_text()[-6000:]
    assert told(Run.load(out)) == told(reference)
    assert [bool(record.image) for record in reference.records(reference.methods[0]).values()] == [True, True, False, False]


def test_scores_that_are_nan_end_a_run_in_a_sentence(start, work):
    damaged = shutil.copytree(locate("pocket/llava"), work / "damaged")
    tensors = load_file(damaged / "model.safetensors")
    (norm,) = (tensors[name] for name in tensors if name.endswith("language_model.model.norm.weight"))
    norm[0] = float("nan")
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})
    path, out = work / "damaged.yaml", work / "vllm-damaged"
    run = {"benchmark": "pope", "dataset": "pocket", "splits": ["random"], "scenes": 1, "methods": ["vanilla"]}
    how = {"model": str(damaged), "dtype": "float32", "engine": "vllm", "engine_options": OPTIONS}
    path.write_text(yaml.safe_dump({**run, **how}))
    process = start(path, out)
    assert process.wait(300) == 2
    assert "the scores are NaN, so that no token can be chosen" in (work / f"{out.name}.log").read_text()
