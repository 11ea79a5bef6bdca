"""What a user installs: wheel and sdist built from here, and a new environment that has the wheel and no extra.

Commands run there without a network: in a network namespace of their own that has no way out, or, where the system allows none,
with a Python whose sockets refuse every address. There is nothing in any cache.
"""

import functools
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMESPACE = ["unshare", "--map-root-user", "--net"]
REFUSING = """
import socket

def refuse(*_, **__):
    raise OSError(101, "Network is unreachable")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""
Done = subprocess.CompletedProcess[str]


def call(*words: str | Path, **options) -> None:
    """Run it; what it printed is shown where it fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **options)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}")


def built(source: Path, kind: str, folder: Path) -> Path:
    """A wheel or an sdist of a source tree, built as `pip` would build it."""
    call(sys.executable, "-m", "build", f"--{kind}", "--outdir", folder, source)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    return built(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory) -> Path:
    return built(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def unpacked(sdist, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


@pytest.fixture(scope="session")
def bare(wheel, tmp_path_factory) -> Path:
    """The bin folder of a new environment: torch as `make setup` takes it, then the wheel, at the tested versions."""
    home = tmp_path_factory.mktemp("bare")
    call(sys.executable, "-m", "venv", home)
    pip = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]
    if subprocess.run([*map(str, pip), f"{torch}+cpu"], capture_output=True, check=False).returncode:
        call(*pip, torch)
    call(*pip, "--constraint", ROOT / "constraints.txt", wheel)
    return home / "bin"


@functools.cache
def has_namespaces() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="session")
def alone(bare, tmp_path_factory) -> Callable[..., Done]:
    """Run a program of the bare environment in an empty home and without a network: `alone("mgap", "ls")`."""
    home, refusing = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("refusing")
    (refusing / "sitecustomize.py").write_text(REFUSING)
    environment = {
        "PATH": f"{bare}:{os.environ['PATH']}",
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        **({} if has_namespaces() else {"PYTHONPATH": str(refusing)}),
    }

    def run(program: str, *words: str | Path, cwd: Path | None = None) -> Done:
        command = [*(NAMESPACE if has_namespaces() else []), str(bare / program), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd or home, env=environment)

    return run


@pytest.fixture(scope="session")
def python(alone) -> Callable[[str], str]:
    """What a piece of Python prints there."""

    def run(code: str) -> str:
        done = alone("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
