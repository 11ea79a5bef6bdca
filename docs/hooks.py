"""What the site's build adds to the pages: the command reference, and files of the repository that pages link to.

Pages link to source files, examples and folders as they lie in the repository, so that the links work there. On the site such
a file becomes a page of its own below source/, and a folder a list of what is in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

COMMANDS = "<!-- every command with its options -->"  # where cli.md has them
ENGINES = "<!-- engines, methods and modes -->"  # where engines.md has them
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json", ".jsonl": "json"}
MOST = 100_000  # bytes of a file that is shown


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """A page for everything that is linked to and is no page yet: by a page, or by a Markdown file that became one so."""
    docs = Path(config.docs_dir)
    texts = {docs / file.src_uri: file.content_string for file in files.documentation_pages()}
    wanted: set[Path] = set()
    while texts:
        linked = {target for origin, text in texts.items() for _, target in outward(docs, origin, text)}
        new = {each for found in linked for each in (found, *listed(found))} - wanted
        wanted |= new
        texts = {target: shown(target, docs) for target in new if target.suffix == ".md"}
    for target in sorted(wanted):
        files.append(File.generated(config, source_page(docs, target), content=shown(target, docs)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Lead outward links to those pages, and put the commands into theirs."""
    docs, here = Path(config.docs_dir), PurePosixPath(page.file.src_uri)
    origin = docs / here
    if page.file.generated_by is not None:
        origin = docs.parent / here.relative_to("source").with_suffix("")
        if origin.suffix != ".md":  # source in a fence, or a list whose links lead to pages already
            return markdown
        for link, target in links(docs, origin, markdown):
            if target.is_relative_to(docs) and target.is_file():  # a page or picture, which the text knows from elsewhere
                markdown = led(markdown, link, relative(target.relative_to(docs).as_posix(), here))
    for link, target in outward(docs, origin, markdown):
        markdown = led(markdown, link, relative(source_page(docs, target), here))
    for mark, made in ((COMMANDS, commands), (ENGINES, engines)):
        markdown = markdown.replace(mark, made()) if mark in markdown else markdown
    return markdown


def led(markdown: str, link: str, to: str) -> str:
    """The text with a link that leads elsewhere; the part of the page that it names stays."""
    _, mark, part = link.partition("#")
    return markdown.replace(f"]({link})", f"]({to}{mark}{part})")


def links(docs: Path, origin: Path, markdown: str) -> Iterator[tuple[str, Path]]:
    """The links of the text of a file to files and folders of the repository, with what they lead to."""
    root = docs.parent.resolve()
    for link in dict.fromkeys(LINK.findall(FENCE.sub("", markdown))):
        parts = urlsplit(link)
        target = Path(os.path.normpath(origin.parent / parts.path))
        if not parts.scheme and parts.path and target.exists() and target.is_relative_to(root):
            yield link, target


def outward(docs: Path, origin: Path, markdown: str) -> Iterator[tuple[str, Path]]:
    """Of these, the links to files outside the documentation, and to folders."""
    for link, target in links(docs, origin, markdown):
        if target.is_dir() or not target.is_relative_to(docs):
            yield link, target


def listed(target: Path) -> list[Path]:
    """The files of a folder that get a page too: those that a page can show."""
    if not target.is_dir():
        return []
    return [each for each in sorted(target.iterdir()) if each.suffix in LANGUAGES and each.stat().st_size <= MOST]


def source_page(docs: Path, target: Path) -> str:
    """Where the page of a file or folder lies on the site."""
    return f"source/{target.relative_to(docs.parent).as_posix()}.md"


def shown(target: Path, docs: Path) -> str:
    """The page itself."""
    name = target.relative_to(docs.parent).as_posix()
    if target.is_dir():
        own = {each: relative(source_page(docs, each), PurePosixPath(source_page(docs, target))) for each in listed(target)}
        rows = [f"- [{each.name}]({link})" for each, link in own.items()]
        rows += [f"- [{each.relative_to(target).as_posix()}]({link})" for each, link in pictures(target, docs)]
        return f"# {name}\n\n" + "\n".join(rows) + "\n"
    if target.stat().st_size > MOST:
        raise ValueError(f"{name}: too long for a page of the site; link to something shorter")
    text = target.read_text(encoding="utf-8")
    if target.suffix == ".md":
        return text
    fence = "`" * 4
    return f"# {name}\n\n{fence}{LANGUAGES.get(target.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def pictures(folder: Path, docs: Path) -> Iterator[tuple[Path, str]]:
    """What lies below a folder of the documentation and is copied to the site as it is."""
    if folder.is_relative_to(docs):
        for each in sorted(folder.rglob("*.*")):
            if each.suffix not in {".md", ".json"}:
                here = PurePosixPath(source_page(docs, folder))
                yield each, relative(each.relative_to(docs).as_posix(), here)


def relative(path: str, page: PurePosixPath) -> str:
    return Path(os.path.relpath(path, page.parent)).as_posix()


def engines() -> str:
    """Which engine decodes with which method in which mode, as the code says."""
    from mgap.integrations.engine_tables import engine_tables

    return engine_tables()


def commands() -> str:
    """Every verb with its arguments and options, as the command line itself tells them."""
    import typer
    from typer.cli import get_docs_for_click

    from mgap.cli.main import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="mgap"), name="mgap")
    _, heading, verbs = text.partition("\n## ")  # before it: what `mgap --help` says, which the page has in a table
    return re.sub(r"^Example: (.*)$", r"Example: `\1`", heading.lstrip() + verbs, flags=re.MULTILINE)
