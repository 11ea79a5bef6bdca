"""What is in the wheel and in the sdist, and that one gives the other."""

import email
import hashlib
import re
import shutil
import tarfile
import zipfile

import pytest
from conftest import ROOT, built

import mgap

DATA = (
    "py.typed",
    "priors/calibration.txt",
    "priors/coco.txt",
    "benchmarks/published.yaml",
    "experiments/pope-main.yaml",
    "inspector/static/inspector.js",
    "inspector/templates/answers.html.j2",
    "pocket/counts.json",
    "pocket/models/llava/model.safetensors",
    "pocket/models/llava/tokenizer.json",
    "pocket/models/qwen3-vl/model.safetensors",
    "pages/templates/report.html.j2",
    "verify/vectors/mgap_paper.npz",
    "verify/vectors/haltrapper.json",
)
RELATIVE = re.compile(r"\]\((?!https?:|#)")  # how a link to a file of the repository begins


def contents(wheel) -> dict[str, str]:
    """Every file's digest but that of RECORD, which lists the others."""
    with zipfile.ZipFile(wheel) as archive:
        return {n: hashlib.sha256(archive.read(n)).hexdigest() for n in archive.namelist() if not n.endswith("/RECORD")}


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    return set(contents(wheel))


def test_the_wheel_has_every_file_of_the_package_and_no_other(names):
    package = {name.removeprefix("mgap/") for name in names if name.startswith("mgap/")}
    source = ROOT / "src" / "mgap"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert package == files
    assert set(DATA) <= package
    assert {name.partition("/")[0] for name in names} == {"mgap", f"mgap-{mgap.__version__}.dist-info"}


def test_the_wheel_holds_licence_notice_and_metadata(wheel, names):
    about = f"mgap-{mgap.__version__}.dist-info"
    assert {f"{about}/licenses/LICENSE", f"{about}/licenses/NOTICE", f"{about}/entry_points.txt"} <= names
    with zipfile.ZipFile(wheel) as archive:
        told = email.message_from_bytes(archive.read(f"{about}/METADATA"))
        commands = archive.read(f"{about}/entry_points.txt").decode()
    assert told["Version"] == mgap.__version__
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"] == ">=3.10"
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload().startswith("# mgap")
    assert "mgap = mgap.cli.main:main" in commands


def described(wheel) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"mgap-{mgap.__version__}.dist-info/METADATA"))


def test_on_a_package_index_no_link_of_readme_leads_nowhere(wheel):
    told = described(wheel)
    assert told.get_all("Project-URL") == ["Paper, https://arxiv.org/abs/2606.09859"]
    assert RELATIVE.search((ROOT / "README.md").read_text())
    assert not RELATIVE.search(told.get_payload())
    assert "\ntutorial goes from a banana to your own data" in told.get_payload()


def test_links_of_readme_lead_into_the_repository_once_its_address_is_known(unpacked, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(unpacked, source)
    (source / "PKG-INFO").unlink()  # a clone has none; where there is one, the readme is taken from it
    address, project = "https://example.org/mgap", (source / "pyproject.toml").read_text()
    (source / "pyproject.toml").write_text(project.replace("\nPaper = ", f'\nRepository = "{address}/"\nPaper = '))
    told = described(built(source, "wheel", tmp_path / "made"))
    assert f"Repository, {address}/" in told.get_all("Project-URL")
    there = f"{address}/{{}}/v{mgap.__version__}/"
    for kind, path in (("raw", "docs/figures/demo.png"), ("blob", "docs/tutorial.md"), ("tree", "examples")):
        assert f"]({there.format(kind)}{path})" in told.get_payload()
    assert not RELATIVE.search(told.get_payload())


def test_weights_are_compressed(wheel):
    with zipfile.ZipFile(wheel) as archive:
        weights = [entry for entry in archive.infolist() if entry.filename.endswith(".safetensors")]
    assert len(weights) == 3
    assert all(entry.compress_size < 0.85 * entry.file_size for entry in weights)


def test_the_sdist_has_what_building_and_testing_take(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = (
        "pyproject.toml",
        "hatch_build.py",
        "Makefile",
        "constraints.txt",
        "README.md",
        "LICENSE",
        "NOTICE",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
    )
    assert {*wanted, "tests/conftest.py", "tests_release/pytest.ini", "bench/help.py", "research/card.py"} <= names
    assert {f"src/mgap/{name}" for name in DATA} <= names
    assert "docs/serving.md" in names, "tests read the docs"
    assert not [name for name in names if name.startswith("docs/figures/") or name.endswith(".pyc") or "/.venv" in name]


def test_a_wheel_from_the_sdist_is_the_wheel(wheel, unpacked, tmp_path):
    assert contents(built(unpacked, "wheel", tmp_path)) == contents(wheel)
