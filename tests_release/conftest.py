"""What a user installs: wheel and sdist built from here, and a new environment that has the wheel and no extra.

What the wheel says it needs, and what that needs in turn, is not downloaded once more: it is linked from the environment that
runs the tests, distribution by distribution, and nothing else is. `pip check` judges the versions.

Commands run there without a network: in a network namespace of their own that has no way out, or, where the system allows none,
with a Python whose sockets refuse every address. There is nothing in any cache.
"""

import contextlib
import email
import functools
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NAMESPACE = ["unshare", "--map-root-user", "--net"]
REFUSING = """
import socket

def refuse(*_, **__):
    raise OSError(101, "Network is unreachable")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""
LONGEST = 600.0  # seconds; a safety net, not a measure
Done = subprocess.CompletedProcess[str]


def finish(command: list[str], **options) -> Done:
    """Run it to its end, within a limit; what it started ends with it, whatever happens."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **options)
    try:
        out, told = process.communicate(timeout=LONGEST)
        return Done(command, process.returncode, out, told)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def call(*words: str | Path) -> None:
    """Run it; what it printed is shown where it fails."""
    done = finish(list(map(str, words)))
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
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python's since 3.11.4
        archive.extractall(folder)
    (root,) = folder.iterdir()
    return root


@pytest.fixture(scope="session")
def bare(wheel, tmp_path_factory) -> Path:
    """The bin folder of a new environment: the wheel, and what it says it needs at the versions that are tested here."""
    home = tmp_path_factory.mktemp("bare")
    call(sys.executable, "-m", "venv", "--without-pip", home)
    (packages,) = home.glob("lib/python*/site-packages")
    link(needed(wheel), packages)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home / "bin" / "python"]
    call(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    call(*pip, "check")
    return home / "bin"


def needed(wheel: Path) -> list[Distribution]:
    """What pip would install with a wheel, without extras: the requirements of its own metadata, and theirs."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    found: dict[str, Distribution] = {}
    asked, waiting = set[tuple[str, str]](), _wanted(told, "")
    while waiting:
        wanted = waiting.pop()
        if wanted not in asked:
            asked.add(wanted)
            name, extra = wanted
            found[name] = distribution(name)
            waiting += _wanted(found[name].requires or (), extra)
    return list(found.values())


def _wanted(requirements: Iterable[str], extra: str) -> list[tuple[str, str]]:
    """Names, each with no extra and with those that are asked for, where a requirement holds on this machine."""
    held = (each for each in map(Requirement, requirements) if each.marker is None or each.marker.evaluate({"extra": extra}))
    return [(canonicalize_name(each.name), more) for each in held for more in ("", *each.extras)]


def link(wanted: list[Distribution], packages: Path) -> None:
    """Put them into an environment: whole folders, and single files of folders that several distributions share."""
    owners = Counter(top for each in distributions() for top in {path.parts[0] for path in each.files or ()})
    for each in wanted:
        assert each.files, f"{each.name} does not say what its files are"
        kept = {path if owners[path.parts[0]] > 1 else PurePosixPath(path.parts[0]) for path in each.files}
        for path in kept:
            if path.parts[0] in ("..", "__pycache__"):  # commands, and what Python makes again
                continue
            place = packages / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(each.locate_file(path))


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
        return finish(command, cwd=cwd or home, env=environment)

    return run


@pytest.fixture(scope="session")
def python(alone) -> Callable[[str], str]:
    """What a piece of Python prints there."""

    def run(code: str) -> str:
        done = alone("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
