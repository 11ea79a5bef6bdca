"""The wheel alone, without a network: the demo, an answer, every help, and a sentence for every extra that is missing."""

import json
import re
from itertools import pairwise

import pytest
from conftest import ROOT, needed

import mgap

CHECKPOINT = """
import json, sys
from pathlib import Path
from transformers.utils import logging
from mgap.pocket.tiny import build_tiny
logging.disable_progress_bar()
for name in ("plain", "adapted", "quantised"):
    build_tiny("llava", Path(sys.argv[1]) / name)
(Path(sys.argv[1]) / "adapted" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
config = Path(sys.argv[1]) / "quantised" / "config.json"
settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": settings}))
"""
SCENE = """
import sys
from mgap.pocket.scenes import make_scene, render
scene = make_scene(200_000)
render(scene, 336).save(sys.argv[1])
print(scene.names[0])
"""


@pytest.fixture(scope="module")
def place(alone, tmp_path_factory):
    """A folder with checkpoints, a prior that is not there, and files for the scorers."""
    folder = tmp_path_factory.mktemp("place")
    done = alone("python", "-c", CHECKPOINT, folder)
    assert done.returncode == 0, done.stderr
    (folder / "captions.json").write_text(json.dumps([{"image_id": 1, "caption": "A dog."}]))
    return folder


def test_there_is_no_network(python):
    code = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    print("refused:", error)
"""
    assert "unreachable" in python(code)


def test_no_extra_is_installed(python, wheel):
    modules = ("scipy", "nltk", "faiss", "spacy", "gradio", "vllm", "peft", "accelerate", "bitsandbytes", "sklearn", "pytest")
    code = f"from importlib.util import find_spec; print([name for name in {modules} if find_spec(name)])"
    assert python(code) == "[]"
    listed = python("from importlib.metadata import distributions; print(*{each.name for each in distributions()})").split()
    assert sorted(listed) == sorted(["mgap", *(each.name for each in needed(wheel))])
    assert python("import mgap; print(mgap.__version__)") == mgap.__version__


def test_the_demo_writes_its_report(alone, tmp_path):
    done = alone("mgap", "demo", "--out", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    assert "Adversarial" in done.stdout
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert results["plan"]["model"] == "pocket/llava"
    plain, picked = (results["pope"]["adversarial"][arm]["precision"]["value"] for arm in ("vanilla", "picked"))
    assert picked > plain
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "<html" in page
    assert not re.search(r"""(?:src|href)=["']https?://""", page), "the page needs no network either"


@pytest.mark.parametrize("model", ["pocket/llava", "pocket/qwen3-vl"])
def test_a_drawn_picture_is_answered(alone, model, tmp_path):
    drawn = alone("python", "-c", SCENE, tmp_path / "scene.png")
    assert drawn.returncode == 0, drawn.stderr
    question = f"Is there a {drawn.stdout.strip()} in the image?"
    done = alone("mgap", "ask", tmp_path / "scene.png", question, "--model", model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith("yes")


def test_what_readme_asks_a_newcomer_to_type_first_runs_as_typed(alone, tmp_path):
    """In an empty home, offline: all of the first two sections but what sets the environment up and what needs a hub."""
    first = re.search(
        r"^## The first minute$(.*?)^## What it does$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )[1]
    blocks = re.findall(r"^```(bash|python|text)\n(.*?)^```$", first, re.MULTILINE | re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = []
    for (tag, text), (after, shown) in pairwise([*blocks, ("", "")]):
        if tag == "text" or re.search(r"pip install|^make |llava-hf/", text, re.MULTILINE):
            continue
        done = alone("/bin/bash", "-ec", text, cwd=tmp_path) if tag == "bash" else alone("python", "-c", text, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert after != "text" or done.stdout == shown
        ran.append(tag)
    assert ran == ["bash", "bash", "python"]
    assert (tmp_path / "runs" / "first" / "report.html").is_file()


def test_every_verb_has_its_help(alone, python):
    listed = "import json; from typer.main import get_command; from mgap.cli.main import app; top = get_command(app).commands\n"
    listed += "print(json.dumps([[v, *w] for v in top for w in ([], *([n] for n in getattr(top[v], 'commands', ())))]))"
    verbs = json.loads(python(listed))
    assert ["score", "pope"] in verbs
    for words in ([], *verbs):
        done = alone("mgap", *words, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(" ".join(["Usage: mgap", *words]))


def test_the_doctor_names_the_extras(alone):
    done = alone("mgap", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    missing = {package["extra"] for package in found["optional"].values() if "extra" in package and not package["version"]}
    assert missing == {"svd", "bench", "neighbours", "vectors", "inspector", "vllm", "sglang", "mlx", "server"}
    assert not [name for name, package in found["required"].items() if "note" in package], "it installed what it says it needs"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("mgap[svd]", ["mgap", "fit", "-m", "pocket/llava", "-o", "prior", "--svd", "lanczos"]),
        ("mgap[bench]", ["mgap", "score", "chair", "--captions", "captions.json"]),
        ("mgap[neighbours]", ["mgap", "diagnose", "-m", "pocket/llava", "--search", "approximate"]),
        ("mgap[vectors]", ["mgap", "run", "amber", "-m", "pocket/llava", "--scenes", "2", "--scoring", "similarity=spacy"]),
        ("mgap[inspector]", ["mgap", "inspect"]),
        ("mgap[vllm]", ["mgap", "serve", "pocket/llava", "--prior", "prior"]),
        ("mgap[vllm]", ["mgap", "run", "pope", "-m", "pocket/llava", "--scenes", "2", "--engine", "vllm"]),
        ("mgap[server]", ["mgap", "run", "pope", "-m", "pocket/llava", "--engine", "server", "--url", "http://127.0.0.1:1"]),
        ("pip install peft", ["mgap", "doctor", "adapted"]),
        ("pip install accelerate", ["mgap", "doctor", "quantised"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_what_is_not_installed_is_named_in_one_sentence(alone, place, named, words):
    done = alone(*words, cwd=place)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if named in line]
    assert len(said) == 1
    assert not (place / "prior").exists()


def test_research_is_not_in_the_wheel_and_in_a_clone_names_what_it_needs(alone, place):
    words = ("python", "-m", "research.frontier", "ceiling", "pocket/llava", "--out", place / "ceiling")
    assert "No module named research" in alone(*words, cwd=place).stderr.replace("'", "")
    done = alone(*words, cwd=ROOT)
    assert done.returncode == 2, done.stderr
    assert len([line for line in done.stderr.splitlines() if "scikit-learn" in line]) == 1


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("it is no folder here and not in the cache", ["ask", "none.png", "What?", "-m", "llava-hf/llava-1.5-7b-hf"]),
        ("by hand", ["fetch", "pope"]),
    ],
)
def test_what_needs_a_network_says_so(alone, place, named, words):
    drawn = alone("python", "-c", SCENE, place / "none.png")
    assert drawn.returncode == 0, drawn.stderr
    done = alone("mgap", *words, cwd=place)
    assert done.returncode == 2, done.stdout
    assert named in done.stderr
    assert "Traceback" not in done.stderr
