"""A folder is a feature, and an import may only point to a folder further left; late imports count."""

import ast
from pathlib import Path

import mgap
from tests import processes

SOURCE = Path(mgap.__file__).parent
LINE = [  # the order of docs/architecture.md
    "io", "backbones", "priors", "methods", "decoding", "benchmarks", "pages", "diagnosis", "run", "reports",
    "pocket", "tuning", "serving", "integrations", "verify", "inspector", "cli",
]  # fmt: skip
ANYWHERE = {"types", "errors", "settings", "registry"}
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


def allowed_from(path):
    home = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if home in LINE:
        return {*LINE[: LINE.index(home) + 1], *ANYWHERE}
    return ANYWHERE if home in ANYWHERE else {*LINE, *ANYWHERE}  # mgap/__init__.py


def test_imports_point_to_the_left():
    wrong = [(str(path), *found) for path in MODULES for found in imported(path) if found[0] not in allowed_from(path)]
    assert MODULES
    assert not wrong


def test_a_module_is_short_and_named_after_what_it_holds():
    assert not [path for path in MODULES if len(path.read_text().splitlines()) > 400]
    assert not [path for path in MODULES if path.stem in {"utils", "helpers", "common", "misc"}]


def test_methods_name_no_model_and_backbones_no_method():
    models = ("llava", "qwen", "gemma", "idefics", "internvl")
    for path in (SOURCE / "methods").rglob("*.py"):
        assert not [name for name in models if name in path.read_text().lower()], path
    for path in (SOURCE / "backbones").rglob("*.py"):
        text = path.read_text().replace("from mgap.", "").replace("mgap.", "").replace("mgap's", "")
        assert "MGAP" not in text, path


def test_every_public_name_can_be_imported():
    for name in mgap.__all__:
        assert getattr(mgap, name) is not None


def test_importing_mgap_and_its_command_line_imports_no_torch():
    import sys

    code = "import sys, mgap.cli.main; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert processes.run([sys.executable, "-c", code]).returncode == 0
