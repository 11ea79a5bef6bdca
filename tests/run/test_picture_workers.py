"""Pictures that other processes prepare: the same answers, the same failures, and nothing left behind."""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mgap.backbones.clock import FIRST, INPUTS, NEXT, READING, STARTING, WAITING, WRITING, Clock
from mgap.backbones.prepared_pictures import Preparer
from mgap.errors import RunError, SettingError
from mgap.run import picture_workers
from mgap.run.config import Config
from mgap.run.engine import execute
from mgap.run.folder import Shard
from mgap.run.job import Job
from mgap.run.picture_workers import PictureOpening, Pictures, Ready
from mgap.run.stage_times import save_profile, stages_table
from tests import processes
from tests.run.held import hold

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
QUESTIONS = ("Is there a dog?", "Is there a cat in this long and winding picture?", "What?")


class Folder:
    """From a name to a file; a worker that is asked for the deadly one is killed."""

    def __init__(self, path, deadly=""):
        self.path, self.deadly, self.opened, self.home = Path(path), deadly, [], os.getpid()

    def __call__(self, name):
        self.opened.append(name)
        if name == self.deadly and os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.path / name


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six pictures, of which the fourth is damaged, and three questions about each."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(6):
        pixels = rng.integers(0, 256, (48 + 8 * number, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:200])
    rows = [f"{number}.png,{question},yes" for number in range(6) for question in QUESTIONS]
    (folder / "asked.csv").write_text("\n".join(["image,question,label", *rows]) + "\n")
    return folder


@pytest.fixture
def answer(model, family, checkpoints, photos):
    def do(out, listener=None, **keys):
        given = {
            "benchmark": "own", "model": str(checkpoints[family]), "images": str(photos), "batch_size": 4,
            "questions": str(photos / "asked.csv"), "methods": ["vanilla", "vcd"], "decoding": {"max_new_tokens": 4},
        }  # fmt: skip
        job = Job.prepare(Config.of({**given, **keys}), out, Shard())
        run, worker = job.begin(model)
        clock = model.backbone.clock
        return run, execute(run, worker, shard=job.shard, labels=job.labels, listener=listener, clock=clock)

    return do


@pytest.fixture
def clock(model):
    model.backbone.clock = Clock(CPU)
    yield model.backbone.clock
    model.backbone.clock = Clock()


def records(run):
    """All that a record says, but for the clock."""
    kept = ("id", "text", "prompt", "image", "tokens", "stop", "rows", "failed")
    return {
        method.label: [[getattr(found[sample.id], name) for name in kept] for sample in run.samples]
        for method in run.methods
        for found in [run.records(method)]
    }


def test_answers_are_the_same_with_any_number_of_workers(answer, clock, tmp_path):
    alone, _ = answer(tmp_path / "alone", workers=0)
    helped, summary = answer(tmp_path / "helped", workers=2)
    assert records(helped) == records(alone)
    assert {method.label: method.prefill for method in helped.methods} == {"vanilla": "shared", "vcd": "own"}
    assert summary.answered == {"vanilla": 15, "vcd": 15}
    (reason,) = {record.failed for record in summary.failed["vanilla"]}
    assert "ImageError" in reason
    assert "3.png: the picture is damaged" in reason
    assert not processes.workers_left(), "workers end with the run"
    for label, stages in (("vanilla", {READING}), ("vcd", set())):
        spent = summary.spent[label]
        assert {STARTING, WAITING, INPUTS, FIRST, NEXT, WRITING} | stages <= set(spent.stages)
        assert 0 < sum(spent.stages.values()) <= spent.seconds
        assert spent.samples == 18


def test_workers_go_on_from_method_to_method_and_end_with_the_run_however_it_ends(answer, tmp_path):
    seen = {"vanilla": set(), "vcd": set()}

    def look(state):
        seen[state.method.label] |= {child.pid for child in multiprocessing.active_children()}

    answer(tmp_path / "whole", listener=look, workers=2)
    assert len(seen["vanilla"]) == 2
    assert seen["vcd"] == seen["vanilla"]
    assert not processes.workers_left()
    for error in (KeyboardInterrupt, RuntimeError):

        def stop(state, error=error):
            look(state)
            if state.method.label == "vcd":
                raise error

        with pytest.raises(error):
            answer(tmp_path / error.__name__, listener=stop, workers=2)
        assert not processes.workers_left()
    assert len(seen["vcd"]) == 6


def test_a_run_that_is_taken_up_again_has_workers_again(answer, tmp_path):
    def stop(state):
        if state.method.label == "vcd":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(tmp_path / "run", listener=stop, workers=1)
    whole, _ = answer(tmp_path / "whole", workers=0)
    run, _ = answer(tmp_path / "run", workers=1)
    assert records(run) == records(whole)


def test_pictures_can_be_expected_again_after_their_workers_have_ended(photos):
    pictures = Pictures(PictureOpening(Folder(photos), None), 1, CPU)
    for _ in range(2):
        with pictures:
            pictures.prefetch(["0.png", "1.png", "2.png"])
            assert isinstance(pictures.take(["0.png"])["0.png"], Ready)
        assert not processes.workers_left()
        assert isinstance(pictures.take(["1.png"])["1.png"], Ready), "without workers it is opened here"


EARLY = """
import os, signal, sys
from multiprocessing import forkserver
import torch
from mgap.benchmarks.picture_folder import PictureFolder
from mgap.run.picture_workers import PictureOpening, Pictures, start_server

def main():
    cpu = torch.device("cpu")
    start_server(0, cpu, 1000)
    start_server("auto", cpu, 1000)
    assert forkserver._forkserver._forkserver_pid is None, "nothing is started for no workers"
    start_server(1, cpu, 1)
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGINT)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with Pictures(PictureOpening(PictureFolder(sys.argv[1]), None), 1, cpu) as pictures:
        pictures.prefetch(["0.png"])
        print(pictures.take(["0.png"])["0.png"].digest)
    assert forkserver._forkserver._forkserver_pid == server

if __name__ == "__main__":
    main()
"""


def test_what_workers_import_begins_before_they_are_needed_and_ctrl_c_is_for_the_run_alone(photos, tmp_path):
    script = tmp_path / "early.py"
    script.write_text(EARLY)
    done = processes.run([sys.executable, script, photos], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip() == PictureOpening(Folder(photos), None)["0.png"].digest


def test_a_picture_is_opened_once_also_where_its_questions_fall_into_two_batches(photos):
    picture = Folder(photos)
    with Pictures(PictureOpening(picture, None), 0, CPU) as pictures:
        pictures.prefetch(["0.png", "1.png", "2.png"])
        first = pictures.take(["0.png", "0.png", "1.png"])
        half = pictures.take(["0.png"])  # a batch that did not fit is asked again in halves
        other = pictures.take(["1.png"])
        following = pictures.take(["1.png", "2.png"])
        assert picture.opened == ["0.png", "1.png", "2.png"]
        assert half["0.png"] is first["0.png"]
        assert other["1.png"] is following["1.png"]
        assert set(pictures.held) == {"1.png", "2.png"}
        pictures.take(["0.png"])
        assert set(pictures.held) == {"0.png"}


def test_workers_serve_what_is_asked_for_and_more_than_once(model, photos):
    opening = PictureOpening(Folder(photos), Preparer.of(model.backbone))
    names = ["0.png", "1.png", "3.png", "2.png"]
    with Pictures(opening, 1, CPU) as pictures:
        before = torch.random.get_rng_state()
        for _ in range(2):
            pictures.prefetch(names)
            taken = pictures.take(names[:1]) | pictures.take(names[2:])  # one is left out
            assert "damaged" in taken["3.png"]
            for name in ("0.png", "2.png"):
                mine = opening[name]
                assert taken[name].digest == mine.digest
                assert taken[name].picture.block == mine.picture.block
                for key, tensor in mine.picture.tensors.items():
                    assert torch.equal(taken[name].picture.tensors[key], tensor)
            assert isinstance(pictures.take(["5.png"])["5.png"], Ready), "what nobody foresaw is opened here"
        assert torch.equal(torch.random.get_rng_state(), before), "the caller's lots are not drawn from"
        assert len(multiprocessing.active_children()) == 1
    assert not processes.workers_left()


def test_a_worker_that_is_killed_is_told_in_a_sentence_and_a_defect_is_not_swallowed(photos):
    with Pictures(PictureOpening(Folder(photos, deadly="1.png"), None), 1, CPU) as pictures:
        pictures.prefetch(["0.png", "1.png"])
        with pytest.raises(RunError, match=r"has ended by itself or was killed.*workers 0"):
            pictures.take(["0.png", "1.png"])
    with Pictures(PictureOpening(dict.fromkeys, None), 1, CPU) as pictures:
        pictures.prefetch([3])
        with pytest.raises(TypeError):
            pictures.take([3])


def test_a_worker_ends_with_a_run_that_is_killed():
    context = multiprocessing.get_context("forkserver")
    heard, teller = context.Pipe(duplex=False)
    run = context.Process(target=hold, args=(teller,))
    run.start()
    teller.close()  # so that those two alone have it
    try:
        worker = heard.recv()
    finally:
        run.kill()
        run.join()
    try:
        with pytest.raises(EOFError):
            heard.recv()  # until the worker has ended
    except BaseException:
        os.kill(worker, signal.SIGKILL)
        raise


def test_a_worker_says_nothing_of_a_run_that_was_stopped_while_it_took_a_picture(capsys):
    for error in (ConnectionResetError(), BrokenPipeError(), EOFError()):
        picture_workers._print_unless_disconnected(type(error), error, None)
    assert capsys.readouterr().err == ""
    picture_workers._print_unless_disconnected(ValueError, ValueError("a defect"), None)
    assert "ValueError: a defect" in capsys.readouterr().err


def test_pictures_that_cannot_be_sent_are_refused():
    with (
        Pictures(PictureOpening(lambda name: name, None), 1, CPU) as pictures,
        pytest.raises(SettingError, match="use workers 0"),
    ):
        pictures.prefetch(["0.png"])


@pytest.mark.parametrize(
    ("kind", "pictures", "cores", "processes", "count"),
    [("cpu", 500, 16, 1, 0), ("cuda", 20, 16, 1, 0), ("cuda", 500, 16, 1, 8), ("cuda", 500, 4, 1, 3), ("cuda", 500, 1, 1, 0),
     ("cuda", 500, 16, 4, 3)],
)  # fmt: skip
def test_auto_starts_workers_where_a_gpu_would_wait(monkeypatch, kind, pictures, cores, processes, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert picture_workers._auto(torch.device(kind), pictures) == count


@pytest.mark.parametrize("workers", [-1, 1.5, True, "many"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(workers):
    with pytest.raises(SettingError, match="workers="):
        Config.of({"benchmark": "pope", "model": "pocket/llava", "methods": ["vanilla"], "workers": workers})


@pytest.mark.parametrize("keys", [{"workers": 2}, {"profile": True}])
def test_departures_refuse_what_they_do_not_have(keys):
    with pytest.raises(SettingError, match="leave out workers and profile"):
        Config.of({"benchmark": "departure", "model": "pocket/llava", "methods": ["vanilla"], **keys})


def test_a_profile_is_shown_and_kept_beside_the_answers(run, tiny, tmp_path):
    out = tmp_path / "run"
    words = ["run", "pope", "--model", tiny, "--dataset", "pocket", "--scenes", "1", "--method", "vanilla"]
    words += ["--decoding", "max_new_tokens=3", "--out", out]
    status, _, _ = run(*words)
    assert status == 0
    assert not (out / "profile.json").exists()
    status, _, told = run(*words, "--method", "bias", "--set", "bias.shift=-1", "--profile", "--workers", "0")
    assert status == 0, told
    assert "| next tokens |" in told
    kept = json.loads((out / "profile.json").read_text())
    assert set(kept) == {"bias"}, "vanilla was answered before"
    assert kept["bias"]["samples"] == 18
    assert set(kept["bias"]["stages"]) >= {WAITING, INPUTS, READING, FIRST, NEXT, WRITING}


def test_profiles_of_shares_and_of_methods_that_come_later_stand_beside_each_other(tmp_path):
    from mgap.run.engine import Spent

    spent = Spent(6, 2.0, {WAITING: 0.5, NEXT: 1.0})
    assert save_profile(tmp_path, Shard(1, 2), {"a": spent}).name == "profile-1-of-2.json"
    save_profile(tmp_path, Shard(), {"a": spent})
    path = save_profile(tmp_path, Shard(), {"b": spent})
    assert json.loads(path.read_text()).keys() == {"a", "b"}
    table = stages_table({"a": spent, "b": Spent(6, 4.0, {NEXT: 4.0})})
    assert "| waiting for pictures | 0.50 (25%) | 0.00 (0%) |" in table
    assert "| the rest | 0.50 (25%) | 0.00 (0%) |" in table


def test_a_stage_inside_another_is_charged_once():
    clock = Clock(CPU)
    with clock.stage("outer"), clock.stage("inner"):
        clock.switch("later")
    found = clock.take()
    assert set(found) == {"outer", "inner", "later"}
    assert clock.take() == {}
    with Clock().stage("outer"):
        pass
