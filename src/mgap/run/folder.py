"""Writing a run's folder: make or join it, lock it, append to it. Nothing is ever removed, no link in it written through."""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mgap.backbones.identity import OLDER
from mgap.errors import RunError, SettingError
from mgap.io.atomic_files import is_unfinished
from mgap.io.output_folder import check_folder, write_files
from mgap.io.regular_files import inside, own, read_regular
from mgap.io.strict_json import strict_json
from mgap.run.records import ANSWERS, FORMAT, ORDER, RUN, SAMPLES, Record, Run, RunMethod, read_lines
from mgap.types import Sample

LOCK = ".lock"
PREPARED = ("priors", "bank", "processes.jsonl")  # what a run writes before run.json
SAME = (  # keys that change answers, besides the samples and the methods
    "benchmark",
    "difficulty",
    "held_out",
    "template",
    "engine",
    "engine_options",
    "model",
    "decoding",
    "batch_size",
    "departure",
)
PLACING = (  # engine options about hardware and batching, and where servers are, which may change when a run is resumed
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
    "url",
    "parallel",
    "retries",
    "timeout",
    "api_key",
)


@dataclass(frozen=True)
class Shard:
    """The batches that one process answers: every `of`-th, starting at `number`."""

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
    folder: Path, plan: Mapping[str, Any], samples: Sequence[Sample], methods: Sequence[RunMethod], order: Sequence[str] = ()
) -> Run:
    """Make the folder, or join the run in it. A run with other settings is refused.

    New methods are added to it. An existing run keeps its order.
    """
    check_folder(folder, [RUN, SAMPLES, ORDER])
    with locked(folder):
        if not (folder / RUN).exists():
            lines = "".join(
                strict_json(asdict(sample), required=str(folder / SAMPLES), ensure_ascii=False) + "\n" for sample in samples
            )
            written = {"format": FORMAT, **plan, "arms": [asdict(method) for method in methods]}
            ordered = {ORDER: json.dumps(list(order), indent=0, ensure_ascii=False) + "\n"} if order else {}
            write_files(folder, {SAMPLES: lines, **ordered, RUN: _plan_text(folder, written)})
            return Run.load(folder)
        run = Run.load(folder)
        refuse_other(run, plan, samples, methods)
        labels = {method.label for method in run.methods}
        if added := [method for method in methods if method.label not in labels]:
            written = {**run.plan, "arms": [asdict(method) for method in (*run.methods, *added)]}
            for key in ("learnt", "settings"):
                if key in plan:
                    written[key] = {**plan[key], **run.plan.get(key, {})}
            write_files(folder, {RUN: _plan_text(folder, written)})
            run = Run.load(folder)
        return run


def _plan_text(folder: Path, plan: Mapping[str, Any]) -> str:
    return strict_json(plan, required=str(folder / RUN), indent=1, ensure_ascii=False) + "\n"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make and lock the folder, so that processes that start together prepare what they share only once."""
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder / f"{LOCK}.plan", wait=True):
        yield


def refuse_strangers(folder: Path) -> None:
    """Raise if a folder without run.json holds anything that a run does not prepare."""
    if not folder.is_dir() or (folder / RUN).exists():
        return
    was_killed = (folder / f"{LOCK}.plan").exists()  # before it wrote run.json, the last file
    expected = {*PREPARED, SAMPLES, ORDER} if was_killed else set(PREPARED)
    names = (path.name for path in folder.iterdir() if not path.name.startswith(LOCK))
    if others := sorted(name for name in names if name not in expected and not (was_killed and is_unfinished(name))):
        raise RunError(f"{folder}: holds {others[0]} and no run; name a new or empty folder")


def refuse_other(run: Run, plan: Mapping[str, Any], samples: Sequence[Sample], methods: Sequence[RunMethod] = ()) -> None:
    """Raise if the folder's answers were made with other settings. Keys that the plan does not have yet are not compared."""
    before, now = _comparable(run.plan), _comparable(plan)
    if "tensors" in now.get("model", {}) and "tensors" not in before.get("model", {}):
        warnings.warn(f"{run.folder} {OLDER}: whether the other weights have changed since cannot be checked", stacklevel=2)
        del now["model"]["tensors"], now["model"]["is_partial"]
    for key in SAME:
        if key in now and (difference := _first_difference(key, before.get(key), now[key])):
            raise RunError(
                f"{run.folder}: its answers were made with {difference}; name another folder, or use the same settings"
            )
    if tuple(samples) != run.samples:
        raise RunError(f"{run.folder}: it asks {len(run.samples)} other samples than these {len(samples)}; name another folder")
    existing = {method.folder: method for method in run.methods}
    for method in methods:
        earlier = existing.get(method.folder, method)
        if difference := _first_difference(method.label, _as_json(earlier), _as_json(method)):
            raise RunError(
                f"{run.folder}: its answers of {method.label} were made with {difference}; give this one another label"
            )


def _comparable(plan: Mapping[str, Any]) -> Any:
    """The plan as JSON, without what may differ: the paths of files, and where the engine runs."""
    result = json.loads(json.dumps(plan))
    result["benchmark"]["sources"] = sorted(result["benchmark"].get("sources", {}).values())
    for key, usual in (("difficulty", {}), ("held_out", False), ("template", None), ("engine", "transformers")):
        result.setdefault(key, usual)  # runs of earlier versions have no such key
    result.get("decoding", {}).setdefault("min_p", 0.0)  # likewise
    options = result.get("engine_options", {})
    result["engine_options"] = {name: value for name, value in options.items() if name not in PLACING}
    return result


def _as_json(method: RunMethod) -> Any:
    return json.loads(json.dumps(asdict(replace(method, x=None))))


def _first_difference(name: str, before: Any, now: Any) -> str:
    """The first difference in words; empty if there is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in (*before, *(key for key in now if key not in before)):
            if difference := _first_difference(f"{name}.{key}", before.get(key), now.get(key)):
                return difference
        return ""
    return "" if before == now else f"{name} = {_short(before)}, not {_short(now)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def claim(folder: Path, shard: Shard) -> Iterator[None]:
    """Lock this shard of the run. Refused: a shard that another process holds, and another number of shards.

    The kernel releases a lock when its process ends, however it ends.
    """
    with open(folder / LOCK, "a+", opener=own) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no other process: ours sets the number of shards
            lock.truncate(0)
            lock.write(str(shard.of))
            lock.flush()
        except BlockingIOError:
            pass
        fcntl.flock(lock, fcntl.LOCK_SH)
        lock.seek(0)
        if (others := lock.read()) != str(shard.of):
            raise RunError(f"{folder}: is being answered in {others} shares, not in {shard.of}; wait for it, or use as many")
        with _lock(folder / f"{LOCK}.{shard.number}-of-{shard.of}"):
            yield


@contextmanager
def _lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    with open(path, "a+", opener=own) as file:
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
    """Remove an incomplete last line, left by a kill. Its sample is answered again."""
    data = read_regular(path)
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


class Journal:
    """Appends the records of one method, written by one process. Each batch is on disk before the next begins."""

    def __init__(self, folder: Path, method: RunMethod, shard: Shard) -> None:
        self.path = inside(folder, ANSWERS, method.folder, f"{shard.number}-of-{shard.of}.jsonl")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path.parent}: no folder for answers ({error.strerror}); name another run folder") from None
        self._file = open(self.path, "ab", buffering=0, opener=own)  # noqa: SIM115  closed on leaving
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
    """Append a process's versions, device and command to processes.jsonl. Returns what differs from the last process."""
    path = folder / "processes.jsonl"
    with locked(folder), open(path, "a", encoding="utf-8", opener=own) as file:
        lines = list(read_lines(path))
        drop_cut_line(path)
        file.write(strict_json(facts, required=str(path), ensure_ascii=False) + "\n")
    before = lines[-1] if lines else {}
    watched = {**facts.get("versions", {}), "device": facts.get("device")}
    versions = before.get("versions")
    earlier = {**versions, "device": before.get("device")} if isinstance(versions, dict) else watched
    return [f"{name} was {earlier.get(name)} and is {value}" for name, value in watched.items() if earlier.get(name) != value]
