"""A process that is killed while it writes leaves what was there or what it wrote, never half of either."""

import shutil
import signal
import zipfile

import pytest
from hypothesis import settings

from mgap.io.atomic_files import file_sha256
from mgap.pocket.tiny import build_tiny
from mgap.run.records import read_lines
from mgap.serving.checkpoint import servable
from tests.fuzz import writers
from tests.fuzz.readers import NOTHING, READERS, read_files, read_or_nothing

NIGHT = settings.default.max_examples > 100
SIZES = range(0, 4_000, 61) if NIGHT else (0, 700)  # bytes at which the kernel stops a file


@pytest.fixture(scope="module")
def server(place):
    """Does what it is told in forks, and outlives them."""
    for version in range(2):
        with zipfile.ZipFile(place / f"published-{version}.zip", "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("inner.txt", f"{version}" * 2000)
        build_tiny("llava", place / f"checkpoint-{version}")
    with writers.server() as tell:
        yield tell


EARLY = ("run",)  # in make test; all of them in make test-all
LINES = {"records": "answers/plain/0-of-1.jsonl", "processes": "processes.jsonl"}  # appended to
FILES = ("report", "figure", "fetched")  # several, each by itself
MAKESHIFT = ("collection", "cached")  # the first goes on below, and what a cache does not have is learnt again


def make_both(server, place, kind):
    """Two folders, done in peace: one with the old version, one with the new after the old."""
    for name, versions in (("old", 1), ("new", 2)):
        shutil.rmtree(place / name, ignore_errors=True)
        for version in range(versions):
            assert server(kind=kind, folder=place / name, version=version)["status"] == 0
    return place / "old", place / "new"


def begin(place, before):
    """A folder to be killed in: with the old version in it, or none."""
    shutil.rmtree(place / "killed", ignore_errors=True)
    if before:
        shutil.copytree(place / "old", place / "killed")
    return place / "killed"


def moments(server, place, kind, before):
    """Commands that kill the writing of version `before` at every moment."""
    events = server(kind=kind, folder=begin(place, before), version=before)["events"]
    assert events
    found = [{"event": event} for event in range(1, events + 1)] + [{"bytes": size} for size in SIZES]
    return found if kind != "figure" else found[:: 3 if NIGHT else 6]  # it is drawn anew each time


def goes_on(number):
    """Whether what a kill left is written over: by day, of some moments only."""
    return NIGHT or number % 3 == 0


def kill(server, folder, kind, version, moment):
    status = server(kind=kind, folder=folder, version=version, **moment)["status"]
    assert status in (-signal.SIGKILL if "event" in moment else -signal.SIGXFSZ, 0)
    return status != 0


@pytest.mark.parametrize("before", [pytest.param(0, marks=pytest.mark.long), 1], ids=["first", "again"])
@pytest.mark.parametrize("kind", [kind if kind in EARLY else pytest.param(kind, marks=pytest.mark.long) for kind in READERS])
def test_an_object_is_the_old_one_or_the_new_one(server, place, kind, before):
    read, killed = READERS[kind], 0
    old, new = map(read, make_both(server, place, kind))
    for number, moment in enumerate(moments(server, place, kind, before)):
        folder = begin(place, before)
        killed += kill(server, folder, kind, before, moment)
        found = read_or_nothing(read, folder)
        both = [old, new] if before else [NOTHING, old]
        assert found in both or (kind in MAKESHIFT and found == NOTHING), moment
        if goes_on(number):  # what is left does no harm
            assert server(kind=kind, folder=folder, version=before)["status"] == 0, moment
            assert read(folder) == (new if before else old), moment
    assert killed > 3


@pytest.mark.parametrize("kind", LINES)
def test_lines_that_were_written_stay_and_new_ones_are_whole(server, place, kind):
    killed = 0
    before, whole = (list(read_lines(folder / LINES[kind])) for folder in make_both(server, place, kind))
    for moment in moments(server, place, kind, 1):
        folder = begin(place, 1)
        killed += kill(server, folder, kind, 1, moment)
        found = list(read_lines(folder / LINES[kind]))
        assert found in [whole[:count] for count in range(len(before), len(whole) + 1)], moment
        assert server(kind=kind, folder=folder, version=1)["status"] == 0
        assert list(read_lines(folder / LINES[kind])) == [*found, *whole[len(before) :]], moment
    assert killed > 1


@pytest.mark.long
@pytest.mark.parametrize("before", [0, 1], ids=["first", "again"])
@pytest.mark.parametrize("kind", FILES)
def test_each_of_several_files_is_the_old_one_or_the_new_one(server, place, kind, before):
    killed = 0
    old, new = map(read_files, make_both(server, place, kind))
    for number, moment in enumerate(moments(server, place, kind, before)):
        folder = begin(place, before)
        killed += kill(server, folder, kind, before, moment)
        for name, data in read_files(folder).items():
            assert data in ((old[name], new[name]) if before else (old[name],)), (name, moment)
        assert before == 0 or set(read_files(folder)) == set(new)
        if goes_on(number):
            assert server(kind=kind, folder=folder, version=before)["status"] == 0
            assert read_files(folder) == (new if before else old)
    assert killed > (3 if NIGHT else 1)


@pytest.mark.long
def test_a_copy_for_vllm_is_whole_or_not_there(server, place):
    killed, source = 0, str(place / "checkpoint-0")
    peace = whole(servable(source, place / "peace"))
    for moment in moments(server, place, "servable", 0)[:: 1 if NIGHT else 4]:
        folder = begin(place, 0)
        folder.mkdir()
        killed += kill(server, folder, "servable", 0, moment)
        assert not (folder / "served").exists() or whole(folder / "served") == peace, moment
        assert whole(servable(source, folder / "served")) == peace
    assert killed > 3


def whole(folder):
    return {str(path.relative_to(folder)): file_sha256(path) for path in folder.rglob("*") if path.is_file()}


def test_every_writer_is_killed_here():
    assert {*READERS, *LINES, *FILES, "servable"} == set(writers.WRITERS)
