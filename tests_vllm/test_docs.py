"""What the pages ask to be typed where vLLM is installed: `<!-- needs: vllm -->`, run with vLLM's CPU build.

A page's commands keep their own text and get flags behind it; a later flag replaces an earlier one. All pages have one folder:
what two of them say in the same words is typed once. A server that no client of a page asks gets a free port where its flags
allow one, so that pages can be tried at the same time: one page alone uses the port that its client asks.
"""

import contextlib
import io
import re
import socket
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


def is_told_before(page, command):
    """Whether a page before this one starts the same server."""
    same = (
        name for name, blocks in PAGES.items() for each in blocks if isinstance(each, Command) and each.simple == command.simple
    )
    return bool(server(command)) and next(same) != page


def with_port(flags, program):
    """The flags and a free port, where the program's own flags can still be given."""
    if program == "mgap" and not flags.startswith("-- "):
        return flags
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"--port {free.getsockname()[1]} {flags}"


def added(command, *, has_client):
    found = {}
    for words in command.simple:
        flags = next((flags for pattern, flags, _ in ADDED if re.match(pattern, " ".join(words) + " ")), "")
        if server(command) and not has_client:
            flags = with_port(flags, words[0])
        found |= {words[0]: flags} if flags else {}
    return found


def ask(snippet, folder, monkeypatch):
    """The page's client, with the page's files around it."""
    monkeypatch.chdir(folder)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(compile(snippet.text, f"{snippet.page}:{snippet.line}", "exec"), {"__name__": "__main__"})
    assert len(told.getvalue().split()) >= 3  # it was answered at three strengths


@pytest.mark.parametrize("page", [name for name, blocks in PAGES.items() if any(isinstance(each, Command) for each in blocks)])
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
        if client is None and (block.simple in typed or is_told_before(page, block)):
            continue
        typed.append(block.simple)
        flags = added(block, has_client=client is not None)
        execute(block, folder, env, flags, client and (lambda asked=client: ask(asked, folder, monkeypatch)))


def test_every_client_of_the_pages_has_a_server_before_it():
    for blocks in PAGES.values():
        for before, block in zip([None, *blocks], blocks, strict=False):
            assert isinstance(block, Command) or (isinstance(before, Command) and server(before))
