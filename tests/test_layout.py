"""A folder is a feature, and an import may only point to a folder further left; late imports count."""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import architecture
import pytest
from architecture import ANYWHERE, PACKAGES, imports

import mgap
from mgap.cli.main import VERBS
from tests import processes

ROOT = Path(__file__).parents[1]
SOURCE = Path(mgap.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
MOST = 50  # modules of ours that `mgap.attach` takes


def allowed_from(path):
    home, order = path.relative_to(SOURCE).parts[0].removesuffix(".py"), list(PACKAGES)
    if home in order:
        return {*order[: order.index(home) + 1], *ANYWHERE}
    return {*ANYWHERE} if home in ANYWHERE else {*order, *ANYWHERE}  # mgap/__init__.py


def test_every_package_has_its_place():
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} == set(PACKAGES)
    assert {path.stem for path in SOURCE.glob("*.py")} == {"__init__", *ANYWHERE}


def test_imports_point_to_the_left():
    found = [each for path in MODULES for each in imports(path)]
    assert found
    assert not [each for each in found if each.target not in allowed_from(each.path)]


def test_imports_are_found_wherever_they_stand(tmp_path):
    (tmp_path / "code.py").write_text(
        "import mgap.run.job as job\nfrom mgap import pages, errors\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from mgap.cli.main import main\nclass A:\n    def f(self):\n        import mgap.pocket\n"
    )
    found = [(each.target, each.line, each.is_late) for each in imports(tmp_path / "code.py")]
    assert found == [("run", 1, False), ("pages", 2, False), ("errors", 2, False), ("cli", 5, True), ("pocket", 8, True)]


def test_the_picture_of_the_packages_shows_the_code_as_it_is():
    if not (ROOT / "docs" / "figures").is_dir():
        pytest.skip("an sdist leaves out docs/figures")
    drawn = (ROOT / architecture.PICTURE).read_text()
    assert drawn == architecture.draw(architecture.read()), "draw it again: python bench/architecture.py"


def test_the_architecture_page_has_every_package_in_order():
    page = (ROOT / "docs" / "architecture.md").read_text()
    line = re.search(r"^io -> .*(?:\n.+)*", page, re.MULTILINE)[0]
    assert re.findall(r"\w+", line) == list(PACKAGES)
    assert re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE) == list(PACKAGES)


def test_nothing_of_the_package_imports_what_is_not_in_the_wheel():
    outside = {"research", "bench", "tests", "examples"}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
            assert not [name for name in names if name.split(".")[0] in outside], (path, node.lineno)


def is_named_by_convention(path):
    """Names that may occur more than once; docs/architecture.md lists them."""
    parts = path.relative_to(SOURCE).parts
    if path.stem in ("__init__", "base"):
        return True
    if parts[:2] == ("methods", "kinds"):
        return path.stem in ("head", "branch", "layers", "attention")  # the seam
    if parts[0] == "benchmarks" and len(parts) == 3:
        return path.stem in ("questions", "scorer")  # the benchmark is the folder
    return parts[0] == "cli" and (len(parts) == 3 or path.stem in VERBS)  # the verb, after its feature


def test_no_module_name_occurs_twice():
    counted = Counter(path.stem for path in MODULES if not is_named_by_convention(path))
    assert not [name for name, count in counted.items() if count > 1]


def test_no_two_classes_have_one_name():
    counted = Counter(
        node.name for path in MODULES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in counted.items() if count > 1]


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


def test_attaching_a_method_to_a_model_of_ones_own_imports_a_small_part_of_the_package():
    ours = "[name for name in sys.modules if name.partition('.')[0] == 'mgap']"
    code = f"import sys, mgap; mgap.attach; mgap.MGAP; mgap.Subspace; print(len({ours}))"
    assert 1 < int(processes.run([sys.executable, "-c", code], text=True, capture_output=True).stdout) <= MOST


def test_importing_mgap_and_its_command_line_imports_no_torch():
    code = "import sys, mgap.cli.main; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert processes.run([sys.executable, "-c", code]).returncode == 0
