"""The documentation names what there is: public names, methods, commands; and its site is built from pages that exist."""

import importlib.util
import re
import sys
from pathlib import Path

import griffe
import pytest
import typer
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

import mgap
from mgap.cli.main import VERBS, app
from mgap.registry import METHODS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BUILT_IN = sorted(METHODS._entries)
API = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["hooks"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["hooks"]


def commands_of(group, before=""):
    for name, command in group.commands.items():
        yield before + name, command
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{name} ")


def pages_of(nav):
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else pages_of(value)


@pytest.mark.parametrize("name", mgap.__all__)
def test_every_public_name_is_in_the_api_reference(name):
    overview = (DOCS / "api" / "index.md").read_text()
    assert f"`mgap.{name}`" in overview
    assert name == "__version__" or re.search(rf"^::: mgap\.{name}$", API, re.MULTILINE)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_has_a_page_that_says_what_it_is_and_when_it_harms(name):
    page = (DOCS / "methods" / f"{name}.md").read_text()
    for heading in ("Idea", "Formula", "When it harms"):
        assert len(re.findall(rf"^## {heading}$", page, re.MULTILINE)) == 1, heading
    for lead in ("Seam", "Cost"):
        assert f"**{lead}:**" in page, lead


def test_the_list_of_methods_leads_to_all_of_them():
    listed = set(re.findall(r"\]\(([a-z0-9-]+)\.md\)", (DOCS / "methods" / "README.md").read_text()))
    assert listed == set(BUILT_IN)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_list_of_commands(verb):
    assert f"| `mgap {verb}` |" in (DOCS / "cli.md").read_text()


def test_the_command_reference_has_every_verb_and_option(hooks):
    page = (DOCS / "cli.md").read_text()
    assert page.count(hooks.COMMANDS) == 1
    told = dict(re.findall(r"^#+ `mgap ([a-z -]+)`\n(.*?)(?=^#+ `mgap|\Z)", hooks.commands(), re.MULTILINE | re.DOTALL))
    for name, command in commands_of(typer.main.get_command(app)):
        for option in (option for parameter in command.params for option in parameter.opts if option.startswith("--")):
            assert option in told[name], (name, option)


def test_every_page_of_the_nav_exists_and_every_page_is_in_it():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(pages_of(site["nav"]))
    assert len(listed) == len(set(listed))
    left_out = tuple(folder.strip("/") + "/" for folder in site["not_in_nav"].split())
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert set(listed) <= there
    assert not [page for page in there - set(listed) if not page.startswith(left_out)]


def test_a_link_out_of_the_documentation_leads_to_a_page_of_its_own(hooks, tmp_path):
    docs = tmp_path / "docs"
    (docs / "guides").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "one.py").write_text("x = 1\n")
    text = "[code](../../code/one.py) [folder](../../code) [here](other.md) [net](https://x.y/z) [none](../../none.py)"
    found = dict(
        hooks.outward(docs, docs / "guides" / "page.md", text + "\n```text\n[in a fence](../../code/one.py#L1)\n```\n")
    )
    assert found == {"../../code/one.py": tmp_path / "code" / "one.py", "../../code": tmp_path / "code"}
    assert hooks.source_page(docs, tmp_path / "code" / "one.py") == "source/code/one.py.md"
    assert "```python\nx = 1\n" in hooks.shown(tmp_path / "code" / "one.py", docs)
    assert "- [one.py](code/one.py.md)" in hooks.shown(tmp_path / "code", docs)


def test_links_of_a_markdown_file_outside_the_documentation_are_followed_from_where_it_lies(tmp_path):
    docs, example = tmp_path / "docs", tmp_path / "examples" / "own"
    docs.mkdir()
    example.mkdir(parents=True)
    (docs / "index.md").write_text("# Home\n\n[an example](../examples/own/README.md)\n")
    (docs / "page.md").write_text("# Page\n\n## A part\n")
    (example / "README.md").write_text("# Own\n\n[code](one.py) [all](../list.md) [page](../../docs/page.md#a-part)\n")
    (example / "one.py").write_text("x = 1\n")
    (tmp_path / "examples" / "list.md").write_text("# List\n\n[own](own/README.md)\n")
    settings = {"site_name": "made", "theme": {"name": "mkdocs"}, "plugins": [], "strict": True, "use_directory_urls": False}
    settings |= {"hooks": [str(DOCS / "hooks.py")], "validation": {"links": {"anchors": "warn"}}}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    build(load_config(str(tmp_path / "mkdocs.yml"), site_dir=str(tmp_path / "site")))  # strict: a dead link ends it
    page = (tmp_path / "site" / "source" / "examples" / "own" / "README.md.html").read_text()
    for link in ("one.py.html", "../list.md.html", "../../../page.html#a-part"):
        assert f'href="{link}"' in page
    assert "x = 1" in (tmp_path / "site" / "source" / "examples" / "own" / "one.py.html").read_text()


def test_comments_behind_the_fields_of_a_dataclass_describe_them_in_the_reference():
    source = (
        'from dataclasses import dataclass\n@dataclass\nclass Run:\n    """One run."""\n'
        "    scenes: int = 500  # of the pocket world\n    bare: str = ''\n    _own: int = 1  # nobody's\n"
        "    def __post_init__(self): ...\n    def begin(self): ...\n"
    )
    extensions = griffe.load_extensions(str(DOCS / "fields.py"))
    with griffe.temporary_visited_package("made", {"__init__.py": source}, extensions=extensions) as package:
        run = package["Run"]
        (attributes,) = [part for part in run.docstring.parse("google") if part.kind.value == "attributes"]
        assert [(each.name, each.description) for each in attributes.value] == [("scenes", "of the pocket world")]
        assert [name for name in ("scenes", "bare", "begin", "__post_init__") if run[name].is_public] == ["begin"]
        assert [parameter.name for parameter in run.parameters] == ["self", "scenes", "bare", "_own"]


def test_the_site_asks_no_other_host_for_anything():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert site["strict"] is True
    assert site["theme"]["font"] is False
    assert not [name for name in (*site["extra_css"], *site.get("extra_javascript", ())) if "//" in name]


def test_files_of_ours_that_pages_name_exist():
    folders = ("src", "research", "bench", "examples", "docs", *(path.name for path in ROOT.glob("tests*")))
    ours = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    wrong = []
    for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = page.read_text()
        wrong += [(page.name, name) for name in re.findall(r"`(?:[a-z_]+/)*([a-z_]+\.py)`", text) if name not in ours]
        wrong += [(page.name, path) for path in re.findall(r"`(src/mgap/[a-z_/.0-9-]*)`", text) if not (ROOT / path).exists()]
    assert not wrong
