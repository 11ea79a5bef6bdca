"""Where the machine gives no more, a command ends in a sentence: full disks, closed pipes, few open files, odd bytes."""

import os
import resource
import signal
import sys
from contextlib import contextmanager
from subprocess import PIPE

import pytest

from mgap.run.records import Run
from tests import processes
from tests.packages import installed

LS = [sys.executable, "-m", "mgap.cli.main", "ls", "models"]
WAYS = {"at the end": {"PYTHONUNBUFFERED": ""}, "while it prints": {"PYTHONUNBUFFERED": "1"}}  # when standard output is written


@contextmanager
def limited(kind, most):
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@pytest.mark.parametrize("way", WAYS)
def test_output_that_a_full_device_does_not_take_is_told(way):
    with open("/dev/full", "wb") as full:
        done = processes.run(LS, stdout=full, stderr=PIPE, text=True, env={**os.environ, **WAYS[way]})
    assert done.returncode == 2
    assert done.stderr == "mgap: no room is left on the disk that this command writes or prints to: make some\n"


@pytest.mark.parametrize("way", WAYS)
def test_a_reader_that_has_seen_enough_ends_the_command_in_silence(way):
    reader, writer = os.pipe()
    os.close(reader)
    done = processes.run(LS, stdout=writer, stderr=PIPE, text=True, env={**os.environ, **WAYS[way]})
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_terminal_that_cannot_show_a_letter_gets_its_number(tmp_path):
    place = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with installed(tmp_path, {}, {"mgap.methods": {"caf\u00e9": "nowhere:Nothing"}}):
        command = [*LS[:-1], "plugins"]
        done = processes.run(command, capture_output=True, env={**os.environ, **place, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"method caf\\xe9: ")


def test_bytes_that_are_no_utf_8_are_refused():
    done = processes.run([*LS[:3], "ask", b"caf\xe9.png", "What?"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mgap: word 2 of the command, 'caf\\udce9.png', is no UTF-8 text")
    assert done.stderr.count("\n") == 1


def test_a_run_on_a_full_disk_says_how_it_goes_on_and_does(run, tiny, tmp_path):
    words = ["run", "pope", "--model", tiny, "--dataset", "pocket", "--scenes", 4, "--method", "vanilla", "--batch-size", 4]
    words += ["--decoding", "max_new_tokens=2"]
    assert run(*words, "--out", tmp_path / "whole")[0] == 0
    whole = Run.load(tmp_path / "whole")
    (answers,) = (tmp_path / "whole" / "answers").rglob("*.jsonl")
    most = answers.stat().st_size * 2 // 3
    assert most > max((tmp_path / "whole" / name).stat().st_size for name in ("run.json", "samples.jsonl"))
    out = tmp_path / "full disk"
    with limited(resource.RLIMIT_FSIZE, most):
        status, printed, err = run(*words, "--out", out)
    assert (status, printed) == (2, "")
    told = err.splitlines()[-1]
    saved = len(Run.load(out).records(whole.methods[0]))
    assert 0 < saved < len(whole.samples)
    assert told.startswith("mgap: a file would grow larger than this process may write")
    assert f"{saved} of {len(whole.samples)} answers are saved in {out}; resume with: mgap run pope " in told
    assert f"--out '{out}'" in told
    status, _, err = run(*words, "--out", out)
    assert status == 0, err
    texts = [{name: record.text for name, record in each.records(whole.methods[0]).items()} for each in (whole, Run.load(out))]
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(whole.samples)


def test_a_run_with_few_open_files_says_so(run, tiny, tmp_path):
    words = ["run", "pope", "--model", tiny, "--dataset", "pocket", "--scenes", 2, "--method", "vanilla", "--workers", 2]
    with limited(resource.RLIMIT_NOFILE, len(os.listdir("/dev/fd")) + 10):
        status, _, err = run(*words, "--out", tmp_path / "run")
    assert status == 2
    told = [line for line in err.splitlines() if line.startswith("mgap: ")]
    assert len(told) == 1
    assert "2 workers need 56 open files, and this process may open " in told[0]
    assert "raise the limit (ulimit -n), or use fewer workers, or 0" in told[0]
    assert "Traceback" not in err
