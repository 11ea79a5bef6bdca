"""The tree is the data flow: an import may only point to a station further left."""

import ast
from pathlib import Path

import pytest

import mgap
from tests import processes

SOURCE = Path(mgap.__file__).parent
LINE = ["data", "backbones", "states", "methods", "decoding", "scoring", "reports"]
ANYWHERE = {"types", "errors", "registry"}
OUTER = {"run", "harness", "serving", "inspector", "pocket", "verify", "cli"}
MODULES = sorted(SOURCE.rglob("*.py"))


def imported(path):
    """(top-level station, line) of every mgap import in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "mgap" else [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "mgap" and len(parts) > 1:
                yield parts[1], node.lineno


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_to_the_left(path):
    home = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if home in LINE:
        allowed = {*LINE[: LINE.index(home) + 1], *ANYWHERE}
    elif home in ANYWHERE:
        allowed = ANYWHERE
    else:
        allowed = {*LINE, *ANYWHERE, *OUTER}
    wrong = [(name, line) for name, line in imported(path) if name not in allowed]
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_is_short_and_named_after_what_it_holds(path):
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "helpers", "common", "misc"}


def test_methods_name_no_model_and_backbones_no_method():
    models = ("llava", "qwen", "gemma", "idefics", "internvl")
    for path in (SOURCE / "methods").glob("*.py"):
        assert not [name for name in models if name in path.read_text().lower()], path
    for path in (SOURCE / "backbones").glob("*.py"):
        text = path.read_text().replace("from mgap.", "").replace("mgap.", "").replace("mgap's", "")
        assert "MGAP" not in text, path


def test_every_public_name_can_be_imported():
    for name in mgap.__all__:
        assert getattr(mgap, name) is not None


def test_importing_mgap_and_its_command_line_imports_no_torch():
    import sys

    code = "import sys, mgap.cli.main; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert processes.run([sys.executable, "-c", code]).returncode == 0
