"""`--help` of every verb: it is there, it shows an example's worth of words, and it waits for nothing heavy."""

import json
import sys

import pytest
from help import verbs  # bench/help.py

from mgap.cli.main import VERBS
from tests import processes

HEAVY = ("torch", "transformers", "numpy", "PIL", "matplotlib", "gradio", "pandas", "rich", "yaml", "huggingface_hub", "vllm")
PROGRAM = f"""
import contextlib, io, json, sys
from mgap.cli.main import main
imported = {{}}
for words in json.loads(sys.argv[1]):
    sys.argv = ["mgap", *words, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
        main()
    assert said.getvalue().startswith("Usage: mgap"), words
    imported[" ".join(words)] = [name for name in {HEAVY} if name in sys.modules]
print(json.dumps(imported))
"""


def test_no_help_imports_anything_heavy():
    command = [sys.executable, "-c", PROGRAM, json.dumps(verbs())]
    done = processes.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = json.loads(done.stdout)
    assert {"ask", "run", "score", "score pope", "build pope", "inspect", "doctor"} <= imported.keys()
    assert {words: names for words, names in imported.items() if names} == {}


@pytest.mark.parametrize("words", verbs(), ids=" ".join)
def test_every_verb_says_what_it_does(run, words):
    status, out, _ = run(*words, "--help")
    assert status == 0
    usage, _, what = out.partition("\n\n  ")
    assert usage.startswith(" ".join(["Usage: mgap", *words]))
    assert what.split("\n\n")[0].rstrip().endswith(".")


def test_the_list_of_verbs_has_the_whole_first_sentence_of_each(run):
    out = run("--help")[1]
    listed = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line[:3].strip()]
    assert listed[: len(VERBS)] == list(VERBS)
    assert "..." not in out.partition("Commands:")[2]
    assert run("score", "--help")[1].count("...") == run("score", "--help")[1].count("COMMAND [ARGS]...")


def test_a_misspelt_verb_is_refused_with_the_nearest_one(run):
    status, _, err = run("docter")
    assert status == 2
    assert "'doctor'" in err


def test_the_version_is_shown(run):
    import mgap

    assert run("--version")[:2] == (0, f"mgap {mgap.__version__}\n")
