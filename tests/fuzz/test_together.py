"""Processes that write one folder at the same time leave the work of one of them, whole; readers meanwhile see nothing else."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import settings

from mgap.errors import MgapError
from mgap.io.atomic_files import written_alone
from mgap.priors.bank import Bank
from mgap.run.engine import Spent
from mgap.run.folder import Shard, note_process
from mgap.run.records import read_lines
from mgap.run.stage_times import save_profile
from tests.fuzz import writers
from tests.fuzz.readers import NOTHING, READERS, numbers, read_files, read_or_nothing
from tests.fuzz.saved import bank

KINDS = ("subspace", "steering", "prior_map", "bank", "null_space", "run", "cached")
ROUNDS = 200 if settings.default.max_examples > 100 else 20  # in make nightly, and in make test-all


@pytest.fixture(scope="module")
def server():
    with writers.server() as tell:
        yield tell


def both(place, kind, read):
    """What a reader may find: the old, the new, and for a folder that is exchanged as a whole, for a moment nothing."""
    found = [NOTHING] if kind == "cached" else []
    for version in range(2):
        shutil.rmtree(place / "alone", ignore_errors=True)
        writers.WRITERS[kind](place / "alone", version)
        found.append(read(place / "alone"))
    return found


def read_while(read, kind, folder, *working):
    """Read until all of that is done; what was read, and then once more."""
    found = []
    while not all(work.done() for work in working):
        found.append(read_or_nothing(read, folder) if kind == "cached" else read(folder))
    for work in working:
        work.result()
    return [*found, read(folder)]


@pytest.mark.parametrize("kind", KINDS)
def test_two_writers_and_a_reader_find_one_of_both_whole(place, kind):
    """Threads: the lock is of an open folder, not of a process."""
    read, folder = READERS[kind], place / "together"
    allowed = both(place, kind, read)
    shutil.rmtree(folder, ignore_errors=True)
    writers.WRITERS[kind](folder, 0)

    def write(version):
        for _ in range(12):
            writers.WRITERS[kind](folder, version)

    with ThreadPoolExecutor(2) as pool:
        found = read_while(read, kind, folder, *(pool.submit(write, version) for version in range(2)))
    assert all(one in allowed for one in found)
    assert found[-1] != NOTHING


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_processes_leave_one_of_both_whole(server, place, kind):
    read, folder = READERS[kind], place / "pairs"
    allowed = both(place, kind, read)
    shutil.rmtree(folder, ignore_errors=True)
    writers.WRITERS[kind](folder, 0)
    with ThreadPoolExecutor(1) as pool:
        for number in range(ROUNDS):
            pair = pool.submit(server, kind=kind, folder=folder, together=True)
            found = read_while(read, kind, folder, pair)
            assert pair.result()["status"] == [0, 0], number
            assert all(one in allowed for one in found), number
            assert found[-1] != NOTHING, number


def test_the_files_of_a_report_are_of_one_process(place):
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            list(pool.map(lambda version: writers.WRITERS["report"](place / "report", version % 2), range(4)))
            assert read_files(place / "report") in [
                {name: text.encode() for name, text in one.items()} for one in writers.TEXTS
            ]


@pytest.mark.long
def test_processes_that_join_a_run_together_are_all_noted(tmp_path):
    """With lines so long that another process can see half of one."""
    facts = [{**writers.FACTS[0], "pid": number, "command": "x" * 1_000_000} for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: note_process(tmp_path, one), facts))
    assert sorted(line["pid"] for line in read_lines(tmp_path / "processes.jsonl")) == list(range(20))


def test_the_times_of_two_processes_are_both_kept(tmp_path):
    labels = [str(number) for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda label: save_profile(tmp_path, Shard(), {label: Spent(1.0, 3, {})}), labels))
    assert sorted(json.loads((tmp_path / "profile.json").read_text())) == sorted(labels)


def test_a_second_collection_into_the_same_folder_is_refused_and_the_first_goes_on(tmp_path):
    made = bank()

    def interrupted():
        yield made.only(made.rows < 2).chunks().__next__()
        with pytest.raises(MgapError, match="another process is writing there"):
            Bank.gather(made.chunks(), identity=made.identity, folder=tmp_path)
        yield made.only(made.rows >= 2).chunks().__next__()

    Bank.gather(interrupted(), identity=made.identity, folder=tmp_path, per_part=2)
    assert numbers(Bank.load(tmp_path)) == numbers(made)


def test_a_bank_that_is_replaced_while_its_parts_are_opened_is_read_anew(tmp_path, monkeypatch):
    bank(0).save(tmp_path, per_part=4)
    mapped, replaced = torch.UntypedStorage.from_file, []

    def replace_and_map(path, *how, **named):  # what safetensors calls when it has opened the file itself
        if not replaced:
            replaced.append(path)
            bank(1).save(tmp_path, per_part=4)
        return mapped(path, *how, **named)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", replace_and_map)
    assert numbers(Bank.load(tmp_path)) == numbers(bank(1))
    assert replaced


def test_a_reader_needs_no_lock(tmp_path):
    for kind in ("subspace", "bank"):
        writers.WRITERS[kind](tmp_path, 0)
        with written_alone(tmp_path):
            assert READERS[kind](tmp_path)


def test_where_the_file_system_has_no_locks_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    for kind in ("subspace", "bank"):
        writers.WRITERS[kind](tmp_path, 0)
        before = set(tmp_path.glob(f"{kind}-*"))
        writers.WRITERS[kind](tmp_path, 1)
        assert before < set(tmp_path.glob(f"{kind}-*"))
        assert READERS[kind](tmp_path) == both(tmp_path / "peace", kind, READERS[kind])[-1]
