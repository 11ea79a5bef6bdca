"""One version, and the files of a release that name it."""

import re
from pathlib import Path

import pytest
import yaml

import mgap

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_changelog_begins_with_this_version():
    first = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first[1] == mgap.__version__


def test_the_citation_is_of_this_version_and_prefers_the_paper(citation):
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == mgap.__version__
    paper = citation["preferred-citation"]
    assert paper["authors"][0] == {"family-names": "Zhuang", "given-names": "Yingxuan"}
    assert len(paper["authors"]) == 10
    assert "arXiv:2606.09859" in {identifier["value"] for identifier in paper["identifiers"]}


def test_no_other_file_states_a_version():
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version", "readme"]' in project
    assert 'path = "src/mgap/__init__.py"' in project


def test_the_citation_names_the_papers_authors(citation, shared):
    (source,) = (shared / "paper").glob("*.txt")
    printed = re.findall(r"\\icmlauthor\{(.+?)\}", source.read_text())
    cited = [f"{author['given-names']} {author['family-names']}" for author in citation["preferred-citation"]["authors"]]
    assert cited == printed


def test_the_licence_is_whole_and_the_notice_names_what_is_restated():
    licence, notice = (ROOT / "LICENSE").read_text(), (ROOT / "NOTICE").read_text()
    assert "Version 2.0, January 2004" in licence
    assert all(f"   {number}. " in licence for number in range(1, 10))
    assert "END OF TERMS AND CONDITIONS" in licence
    for path in re.findall(r"(?:src|docs)/[\w./-]+\w", notice):
        assert (ROOT / path).exists(), path
