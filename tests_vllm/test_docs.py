"""What the pages ask to be typed where vLLM is installed: `<!-- needs: vllm -->`, run with vLLM's CPU build.

A page's commands keep their own text and get flags behind it; a later flag replaces an earlier one. All pages have one folder:
what two of them say in the same words is typed once.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest
from clones import SHARED, Shelf, is_published
from engines import environment
from executing import execute, server
from parsing import parse
from reading import Command, Snippet, parse_page
from servers import IN_PROCESS

HERE = Path(__file__).parents[1]
CPU = "--tensor-parallel-size 1 --dtype float32 --enforce-eager --max-model-len 512 --kv-cache-memory-bytes 67108864"
OFFLINE = "tensor_parallel_size=1 enforce_eager=true max_model_len=512 kv_cache_memory_bytes=67108864"
ADDED = (  # what a command matches, the flags, and why
    (r"mgap serve .*--dry-run", "", "it starts nothing"),
    (r"mgap serve .* -- ", CPU, "a CPU is one card with little memory, and its bfloat16 is slow"),
    (r"mgap serve ", f"-- {CPU}", "as above"),
    (r"vllm serve ", f"{CPU} --limit-mm-per-prompt '{{\"image\": 1}}'", "as above"),
    (
        r"mgap run .*--engine vllm",
        f"--limit 1 --dtype float32 {' '.join(f'--engine-option {each}' for each in OFFLINE.split())}",
        "as above, and POPE asks 3000 questions a split",
    ),
)
PAGES = {
    name: [block for block in parse_page((HERE / name).read_text(), name).blocks if block.needs == "vllm"]
    for name in ["README.md", *sorted(str(path.relative_to(HERE)) for path in (HERE / "docs").rglob("*.md"))]
}


@pytest.fixture(scope="module")
def shelf(work):
    return Shelf(work / "shelf")


@pytest.fixture(scope="module")
def typed():
    """The commands that were run so far, as words."""
    return []


def named(page):
    """Pages with a server say so, and take turns: the pages' clients ask one port (conftest.py)."""
    has_server = any(isinstance(block, Command) and server(block) for block in PAGES[page])
    return pytest.param(page, id=f"serving-{page}" if has_server else page)


def added(command):
    found = {}
    for words in command.simple:
        flags = next((flags for pattern, flags, _ in ADDED if re.match(pattern, " ".join(words) + " ")), "")
        found |= {words[0]: flags} if flags else {}
    return found


def ask(snippet, folder, monkeypatch):
    """The page's client, with the page's files around it."""
    monkeypatch.chdir(folder)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(compile(snippet.text, f"{snippet.page}:{snippet.line}", "exec"), {"__name__": "__main__"})
    assert len(told.getvalue().split()) >= 3  # it was answered at three strengths


@pytest.mark.parametrize(
    "page", [named(name) for name, blocks in PAGES.items() if any(isinstance(each, Command) for each in blocks)]
)
def test_the_page_does_what_it_says(page, shelf, typed, work, monkeypatch):
    blocks, folder = PAGES[page], shelf.folder("pages")
    env = {**environment(work, **IN_PROCESS), **shelf.environment, "PYTHONPATH": environment(work)["PYTHONPATH"]}
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if isinstance(block, Snippet) or (is_published(block) and not SHARED.is_dir()):
            continue
        if any(words[0] in ("pip", "python") for words in block.simple):
            parse(block)
            continue
        client = following if server(block) and isinstance(following, Snippet) else None
        if client is None and block.simple in typed:
            continue
        typed.append(block.simple)
        execute(block, folder, env, added(block), client and (lambda asked=client: ask(asked, folder, monkeypatch)))


def test_every_client_of_the_pages_has_a_server_before_it():
    for blocks in PAGES.values():
        for before, block in zip([None, *blocks], blocks, strict=False):
            assert isinstance(block, Command) or (isinstance(before, Command) and server(before))
