"""What a shell gets when TAB is pressed, by the protocol of the scripts that `mgap --show-completion` prints."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from mgap.benchmarks.yesno_parsers import PARSERS
from mgap.cli import completion
from mgap.registry import EXPERIMENTS, METHODS
from tests import processes

PROGRAM = """
import atexit, json, sys
sys.argv[0] = "mgap"
from mgap.cli.main import main
heavy = ("torch", "transformers", "numpy", "matplotlib", "gradio", "pandas")
atexit.register(lambda: print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr))
main()
"""


pytestmark = pytest.mark.long


def mgap(words, folder, **variables):
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-c", PROGRAM, *words]
    return processes.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def bash(line, folder):
    """The words that bash offers at the end of a line."""
    words = line.split(" ")
    variables = {"_MGAP_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = mgap([], folder, **variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == [], "a key press must not import these"
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mgap do", ["doctor"]),
        ("mgap score ", ["amber", "chair", "hallusionbench", "implied", "mme", "pope", "run"]),
        ("mgap score pope --relabel ", ["repope"]),
        ("mgap build ", ["pope"]),
        ("mgap export ", ["nullu"]),
        ("mgap export nullu --model pocket/q", ["pocket/qwen3-vl"]),
        ("mgap ask a.jpg What --method d", ["deco", "dola"]),
        ("mgap ask a.jpg What --method van", ["vanilla"]),
        ("mgap ask a.jpg What --method opera --preset ", ["paper", "fast"]),
        ("mgap ask a.jpg What --preset table", ["table-random", "table-hard"]),
        ("mgap ask a.jpg What -m pocket/", ["pocket/llava", "pocket/qwen3-vl", "pocket/natural"]),
        ("mgap serve pocket/q", ["pocket/qwen3-vl"]),
        ("mgap doctor pocket/l", ["pocket/llava"]),
        ("mgap run pope --method vcd --method mo", ["mod"]),
        ("mgap run pope --engine ", ["server", "transformers", "vllm"]),
        ("mgap run pope --dataset a", ["aokvqa", "amber"]),
        ("mgap run d", ["departure", *(name for name in EXPERIMENTS if name.startswith("d"))]),
        ("mgap score pope --parser ", list(PARSERS)),
        ("mgap report folder --parser v", ["vcd", "vlmevalkit"]),
        ("mgap score mme --parser ", ["first-sentence", "mme", "lmms_eval", "vlmevalkit"]),
        ("mgap run mme --tasks co", ["cognition", "count", "color", "commonsense_reasoning", "code_reasoning"]),
        ("mgap score chair --language ", ["builtin", "nltk"]),
        ("mgap score chair --unfinished ", ["keep", "drop"]),
        ("mgap fetch ", ["pope", "repope", "chair", "amber", "mme", "hallusionbench", "smollm2"]),
        ("mgap ls m", ["models", "methods"]),
        ("mgap tune --model pocket/l", ["pocket/llava"]),
        ("mgap tune --svd-is-no-option ", []),
    ],
)
def test_bash_offers(line, offered, tmp_path):
    assert bash(line, tmp_path) == offered


def test_every_method_is_offered_and_every_preset_of_one():
    assert completion.method("") == [*METHODS.names(), "vanilla"]
    registered = {name: tuple(METHODS.get(name).presets) for name in METHODS.names()}
    assert {name: presets for name, presets in registered.items() if presets} == completion.PRESETS


def test_folders_are_offered_as_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("models/llava", "models/qwen", "models/.hidden", "mine"):
        Path(folder).mkdir(parents=True)
    Path("models/llava/config.json").write_text("{}")
    Path("models/notes.txt").write_text("")
    assert completion.model("") == ["pocket/llava", "pocket/qwen3-vl", "pocket/natural", "mine/", "models/"]
    assert completion.model("m") == ["mine/", "models/"]
    assert completion.model("models/") == ["models/llava", "models/qwen/"]
    assert completion.model(f"{tmp_path}/models/l") == [f"{tmp_path}/models/llava"]
    assert completion.model("mo") == [], "the shell itself goes into the only folder that is left"
    assert completion.model("nowhere/") == []


def test_zsh_and_fish_are_told_what_each_verb_does(tmp_path):
    line = {"_TYPER_COMPLETE_ARGS": "mgap ve"}
    zsh = mgap([], tmp_path, _MGAP_COMPLETE="complete_zsh", **line).stdout
    assert zsh.startswith("_arguments")
    assert '"verify":"Compare every installed method' in zsh
    fish = mgap([], tmp_path, _MGAP_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **line).stdout
    assert fish.startswith("verify\tCompare every installed method")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_shown_and_installed(shell, tmp_path):
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the shell is named, not found out
    shown = mgap(["--show-completion", shell], tmp_path, **named)
    assert shown.returncode == 0, shown.stderr
    assert f"_MGAP_COMPLETE=complete_{shell}" in shown.stdout
    installed = mgap(["--install-completion", shell], tmp_path, **named)
    assert installed.returncode == 0, installed.stderr
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(shown.stdout.strip() in text for text in written)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_itself_completes_by_the_installed_script(tmp_path):
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = mgap(["--show-completion", "bash"], tmp_path, **named).stdout
    program = tmp_path / "mgap"
    program.write_text(f"#!{sys.executable}\nfrom mgap.cli.main import main\nmain()\n")
    program.chmod(0o755)
    line = (
        f'{script}\nCOMP_WORDS=(mgap ask a.jpg What --method ha) COMP_CWORD=5\n_mgap_completion mgap\necho "${{COMPREPLY[@]}}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = processes.run(["bash", "-c", line], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["haltrapper"]
