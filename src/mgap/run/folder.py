"""A run's folder as it is written: made or joined, locked, and appended to. What is in it once stays in it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mgap.errors import RunError, SettingError
from mgap.io.atomic_files import is_unfinished
from mgap.io.output_folder import check_folder, write_files
from mgap.run.records import ANSWERS, FORMAT, ORDER, RUN, SAMPLES, Arm, Record, Run, read_lines
from mgap.types import Sample

LOCK = ".lock"
OURS = ("priors", "bank", "processes.jsonl")  # beside run.json, samples.jsonl and answers
SAME = (  # what changes answers, beside the samples and the methods
    "benchmark",
    "engine",
    "engine_options",
    "model",
    "decoding",
    "batch_size",
    "departure",
)
PLACING = (  # engine options that say on what and how much at once, not what
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "distributed_executor_backend",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "cpu_offload_gb",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "disable_log_stats",
)


@dataclass(frozen=True)
class Shard:
    """Which share of a run's batches a process answers: every `of`-th, from `number` on."""

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "0/4"."""
        number, slash, of = text.partition("/")
        digits = number.isdecimal() and of.isdecimal() and max(len(number), len(of)) <= 9
        if not (slash and digits and int(number) < int(of)):
            raise SettingError(f"shard {text!r}: write NUMBER/OF, counting from 0, such as 0/4")
        return cls(int(number), int(of))


def open_run(
    folder: Path, plan: Mapping[str, Any], samples: Sequence[Sample], arms: Sequence[Arm], order: Sequence[str] = ()
) -> Run:
    """Make the folder, or join the run that is in it; a run of other settings is refused.

    Methods that the folder does not have are added to it. Its order stays, whichever one is given.
    """
    check_folder(folder, [RUN, SAMPLES, ORDER])
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        if not (folder / RUN).exists():
            lines = "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)
            whole = {"format": FORMAT, **plan, "arms": [asdict(arm) for arm in arms]}
            ordered = {ORDER: json.dumps(list(order), indent=0, ensure_ascii=False) + "\n"} if order else {}
            write_files(folder, {SAMPLES: lines, **ordered, RUN: json.dumps(whole, indent=1, ensure_ascii=False) + "\n"})
            return Run.load(folder)
        run = Run.load(folder)
        refuse_other(run, plan, samples, arms)
        known = {arm.label for arm in run.arms}
        if added := [arm for arm in arms if arm.label not in known]:
            whole = {**run.plan, "arms": [asdict(arm) for arm in (*run.arms, *added)]}
            if "learnt" in plan:
                whole["learnt"] = {**plan["learnt"], **run.plan.get("learnt", {})}
            write_files(folder, {RUN: json.dumps(whole, indent=1, ensure_ascii=False) + "\n"})
            run = Run.load(folder)
        return run


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time: those that start together make what they share once, and wait for each other."""
    with _held(folder / f"{LOCK}.plan", wait=True):
        yield


def refuse_strangers(folder: Path) -> None:
    """Raise if a folder that is no run yet holds anything but what runs leave before they begin."""
    if not folder.is_dir() or (folder / RUN).exists():
        return
    begun = (folder / f"{LOCK}.plan").exists()  # by a process that was killed before run.json, the last, was there
    ours = {*OURS, SAMPLES, ORDER} if begun else set(OURS)
    names = (path.name for path in folder.iterdir() if not path.name.startswith(LOCK))
    if found := sorted(name for name in names if name not in ours and not (begun and is_unfinished(name))):
        raise RunError(f"{folder}: holds {found[0]} and no run; name a new or empty folder")


def refuse_other(run: Run, plan: Mapping[str, Any], samples: Sequence[Sample], arms: Sequence[Arm] = ()) -> None:
    """Raise if the folder's answers came from other settings; keys that the plan does not have yet are not compared."""
    theirs, ours = _unplaced(run.plan), _unplaced(plan)
    for key in SAME:
        if key in ours and (where := _first_difference(key, theirs.get(key), ours[key])):
            raise RunError(f"{run.folder}: its answers were made with {where}; name another folder, or use the same settings")
    if tuple(samples) != run.samples:
        raise RunError(f"{run.folder}: it asks {len(run.samples)} other samples than these {len(samples)}; name another folder")
    known = {arm.folder: arm for arm in run.arms}
    for arm in arms:
        before = known.get(arm.folder, arm)
        if where := _first_difference(arm.label, _plain(before), _plain(arm)):
            raise RunError(f"{run.folder}: its answers of {arm.label} were made with {where}; give this one another label")


def _unplaced(plan: Mapping[str, Any]) -> Any:
    """As it is read back from JSON, with the files by what is in them: they may lie elsewhere now, and so may the engine."""
    found = json.loads(json.dumps(plan))
    found["benchmark"]["sources"] = sorted(found["benchmark"].get("sources", {}).values())
    found.setdefault("engine", "transformers")  # runs of earlier versions do not say
    options = found.get("engine_options", {})
    found["engine_options"] = {name: value for name, value in options.items() if name not in PLACING}
    return found


def _plain(arm: Arm) -> Any:
    return json.loads(json.dumps(asdict(replace(arm, x=None))))


def _first_difference(name: str, theirs: Any, ours: Any) -> str:
    """In words; empty where there is none."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in (*theirs, *(key for key in ours if key not in theirs)):
            if where := _first_difference(f"{name}.{key}", theirs.get(key), ours.get(key)):
                return where
        return ""
    return "" if theirs == ours else f"{name} = {_short(theirs)}, not {_short(ours)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def claim(folder: Path, shard: Shard) -> Iterator[None]:
    """Hold this share of the run; a share that another process holds is refused, and so is another way of sharing.

    The kernel lets go of a lock when its process ends, however it ends.
    """
    with (folder / LOCK).open("a+") as whole:
        try:
            fcntl.flock(whole, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody is at work here: we say in how many shares it is done
            whole.truncate(0)
            whole.write(str(shard.of))
            whole.flush()
        except BlockingIOError:
            pass
        fcntl.flock(whole, fcntl.LOCK_SH)
        whole.seek(0)
        if (others := whole.read()) != str(shard.of):
            raise RunError(f"{folder}: is being answered in {others} shares, not in {shard.of}; wait for it, or use as many")
        with _held(folder / f"{LOCK}.{shard.number}-of-{shard.of}"):
            yield


@contextmanager
def _held(path: Path, *, wait: bool = False) -> Iterator[None]:
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            raise RunError(f"{path.parent}: process {file.read()} is answering this share already; wait, or stop it") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def drop_cut_line(path: Path) -> None:
    """A line that a kill cut off is no record: its sample is answered again."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


class Journal:
    """Where one process writes the records of one method: whole lines, on disk before the next batch begins."""

    def __init__(self, folder: Path, arm: Arm, shard: Shard) -> None:
        self.path = folder / ANSWERS / arm.folder / f"{shard.number}-of-{shard.of}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab", buffering=0)
        drop_cut_line(self.path)

    def write(self, records: Sequence[Record]) -> None:
        data = "".join(record.line() for record in records).encode()
        while data:
            data = data[self._file.write(data) :]
        os.fsync(self._file.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def note_process(folder: Path, facts: Mapping[str, Any]) -> list[str]:
    """Keep under which versions, on what device and by which command a process works here; tells what differs from the last."""
    path = folder / "processes.jsonl"
    lines = list(read_lines(path)) if path.is_file() else []
    before = lines[-1] if lines else {}
    with path.open("a", encoding="utf-8") as file:
        drop_cut_line(path)
        file.write(json.dumps(facts, ensure_ascii=False) + "\n")
    watched = {**facts.get("versions", {}), "device": facts.get("device")}
    known = before.get("versions")
    earlier = {**known, "device": before.get("device")} if isinstance(known, dict) else watched
    return [f"{name} was {earlier.get(name)} and is {value}" for name, value in watched.items() if earlier.get(name) != value]
