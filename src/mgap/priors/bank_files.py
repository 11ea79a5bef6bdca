"""Store many states in files of at most 64 MiB; `bank.json` lists them with their checksums and is written last.

Each part is written when it is full. Until the last one, `bank-begun.json` records which rows are on disk, so that a
collection can resume after a crash. Files are memory-mapped, so states are read when they are used. One process writes at a
time (`writing`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as dump_tensors
from torch import Tensor

from mgap.backbones.identity import Identity
from mgap.errors import BackboneMismatch, CorruptFile, MgapError, NonFiniteStates, PromptError, SettingError, one_line
from mgap.io import tensor_files
from mgap.io.atomic_files import file_sha256, written_alone
from mgap.io.regular_files import require_regular
from mgap.io.typed_json import typed
from mgap.priors.saved_checks import UNREADABLE, check_columns, is_finite, model_of

FORMAT = 2  # 1 was one file of float32 states, without rows, steps and tokens
INDEX, PARTIAL_INDEX = "bank.json", "bank-begun.json"
PART_BYTES = 64 * 2**20  # writing a part takes about four times that in memory
CHECKED_BYTES = 256 * 2**20  # checksums of banks up to this size are verified on every load
QUESTIONS_KEY = "asked_sha256"  # in the origin
_TENSORS = ("states", "rows", "steps", "tokens")


class Chunk(NamedTuple):
    """Some states of plain decoding, and where in which answers they occurred."""

    states: Tensor  # [n, d] on the CPU, in the model's dtype
    rows: Tensor  # [n] int32: the sample, from 0
    steps: Tensor  # [n] int32: the position in its answer, 0 for the first token
    tokens: Tensor  # [n] int32: the token chosen there; -1 if unknown
    questions_sha256: str = ""  # of all questions up to the last of these rows

    def select(self, where: Any) -> Chunk:
        return Chunk(self.states[where], self.rows[where], self.steps[where], self.tokens[where], self.questions_sha256)


def join(chunks: list[Chunk]) -> Chunk:
    states, rows, steps, tokens, questions = zip(*chunks, strict=True)
    return Chunk(torch.cat(states), torch.cat(rows), torch.cat(steps), torch.cat(tokens), questions[-1])


def check_chunk(chunk: Chunk) -> None:
    """Refuse anything but a matrix of finite numbers with a row, a step and a token for each state."""
    states = chunk.states
    if states.ndim != 2 or 0 in states.shape or not states.is_floating_point():
        raise SettingError(
            f"a bank is a matrix of states [n, d], not {list(states.shape)} of {_name(states.dtype)}: give some rows of numbers"
        )
    for name, column in zip(_TENSORS[1:], chunk[1:4], strict=True):
        if column.shape != states.shape[:1] or column.dtype != torch.int32:
            raise SettingError(
                f"{name} is {list(column.shape)} of {_name(column.dtype)}: give one int32 for each of {len(states)} states"
            )
    if not torch.stack(states.aminmax()).isfinite().all():  # isfinite on all states would need memory for a mask
        raise NonFiniteStates("the model gave NaN or infinite states: load it with dtype float32")


@dataclass(frozen=True)
class _File:
    file: str
    states: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Index:
    """The content of `bank.json`, for validation."""

    count: int
    width: int
    dtype: str
    rows: int
    parts: tuple[_File, ...]
    model: Identity | None
    origin: dict[str, Any]


class BankWriter:
    """Joins chunks into parts, in memory. A chunk is split only if it is larger than a part."""

    def __init__(self, identity: Identity | None, origin: Mapping[str, Any], per_part: int | None = None) -> None:
        if per_part is not None and per_part < 1:
            raise SettingError(f"per_part={per_part} must be at least 1 state")
        self.identity, self._origin, self._per_part = identity, dict(origin), per_part
        self.rows, self.questions_sha256 = 0, ""  # the number of rows in the parts, and the checksum of their questions
        self._layout: tuple[int, str] | None = None  # width and dtype
        self._pending, self._parts = list[Chunk](), list[Chunk]()

    @property
    def origin(self) -> dict[str, Any]:
        return {**self._origin, QUESTIONS_KEY: self.questions_sha256} if self.questions_sha256 else dict(self._origin)

    def add(self, chunk: Chunk) -> None:
        check_chunk(chunk)
        layout = chunk.states.shape[1], _name(chunk.states.dtype)
        if self._layout not in (None, layout):
            raise SettingError(f"states of (width, dtype) {layout} among states of {self._layout}: one bank is of one kind")
        self._layout = layout
        if sum(len(pending.states) for pending in self._pending) + len(chunk.states) > self._limit(chunk.states):
            self.flush()
        self._pending.append(chunk)

    def _limit(self, states: Tensor) -> int:
        return self._per_part or max(1, PART_BYTES // (states.shape[1] * states.element_size()))

    def flush(self) -> None:
        """Turn the pending chunks into a part, even a small one."""
        if not self._pending:
            return
        joined, limit = join(self._pending), self._limit(self._pending[0].states)
        self._pending.clear()
        for start in range(0, len(joined.states), limit):
            self._add_part(joined.select(slice(start, start + limit)))
        self.rows, self.questions_sha256 = max(self.rows, int(joined.rows.max()) + 1), joined.questions_sha256

    def _add_part(self, part: Chunk) -> None:
        self._parts.append(part)

    def finish(self) -> list[Chunk]:
        """All parts."""
        self.flush()
        if not self._parts:
            raise PromptError("a bank needs rows: give pictures and a prompt for each")
        return self._parts


class BankFolderWriter(BankWriter):
    """Writes the parts to disk. With `resume`, continues what an earlier collection of the same kind left in the folder.

    Without a lock on the folder (`is_alone=False`) no file of an earlier bank is removed.
    """

    def __init__(
        self,
        folder: Path,
        identity: Identity | None,
        origin: Mapping[str, Any],
        per_part: int | None = None,
        *,
        resume: bool,
        is_alone: bool = True,
    ) -> None:
        super().__init__(identity, origin, per_part)
        self._folder, self._resume, self._is_alone = folder, resume, is_alone
        self._files = list[dict[str, Any]]()
        if resume and (left := [folder / name for name in (PARTIAL_INDEX, INDEX) if (folder / name).is_file()]):
            self._continue(read_index(left[0]))

    def _continue(self, index: dict[str, Any]) -> None:
        theirs, ours = index["model"], self.identity
        if theirs is not None and ours is not None:
            Identity.from_json(theirs).require(ours, f"the bank in {self._folder}")
        elif (theirs is None) != (ours is None):
            content = "bare states" if theirs is None else f"states of {theirs['name']}"
            raise BackboneMismatch(f"{self._folder}: its bank is of {content}; name another folder, or remove it")
        before, now = dict(index["origin"]), json.loads(json.dumps(self._origin))
        self.rows, self.questions_sha256 = index["rows"], str(before.pop(QUESTIONS_KEY, ""))
        for key in sorted((before.keys() | now.keys()) - {"mgap"}):
            if before.get(key) != now.get(key):
                raise SettingError(
                    f"{self._folder}: its bank was collected with {key} = {before.get(key)!r}, not {now.get(key)!r}; "
                    "name another folder, or remove it"
                )
        self._layout, self._files = (index["width"], index["dtype"]), list(index["parts"])
        map_parts(self._folder, index, check=False)  # refuses missing files

    def _add_part(self, part: Chunk) -> None:
        data = dump_tensors({name: tensor.contiguous() for name, tensor in zip(_TENSORS, part[:4], strict=True)})
        digest = hashlib.sha256(data).hexdigest()
        name = f"bank-{digest[:12]}.safetensors"
        with _naming(self._folder):
            tensor_files.replace_file(self._folder / name, data)
        self._files.append({"file": name, "states": len(part.states), "bytes": len(data), "sha256": digest})

    def flush(self) -> None:
        has_new = bool(self._pending)
        super().flush()
        if has_new and self._resume:
            self._write_index(PARTIAL_INDEX)

    def _write_index(self, name: str) -> dict[str, Any]:
        width, dtype = self._layout or (0, "")
        index = {
            "format": FORMAT,
            "count": sum(file["states"] for file in self._files),
            "width": width,
            "dtype": dtype,
            "rows": self.rows,
            "parts": self._files,
            "model": None if self.identity is None else self.identity.to_json(),
            "origin": self.origin,
        }
        with _naming(self._folder):
            tensor_files.replace_file(self._folder / name, (json.dumps(index, indent=1) + "\n").encode())
        return index

    def finish(self) -> list[Chunk]:
        """All parts, memory-mapped. Removes files that an earlier bank left in the folder."""
        self.flush()
        if not self._files:
            raise PromptError("a bank needs rows: give pictures and a prompt for each")
        index, names = self._write_index(INDEX), {file["file"] for file in self._files}
        with _naming(self._folder):
            (self._folder / PARTIAL_INDEX).unlink(missing_ok=True)
            parts = (path for path in self._folder.iterdir() if tensor_files.is_tensor_file("bank", path.name))
            old = (*parts, *self._folder.glob(".bank*.part"))  # a killed process leaves .part files
            for path in old if self._is_alone else ():
                if path.name not in names:
                    path.unlink()
        return map_parts(self._folder, index, check=False)


@contextmanager
def writing(
    folder: Path, identity: Identity | None, origin: Mapping[str, Any], per_part: int | None = None, *, resume: bool
) -> Iterator[BankFolderWriter]:
    """A writer, while no other process writes to the folder. Collecting (`resume`) may take hours: a second one is refused."""
    with ExitStack() as stack:
        with _naming(folder):
            is_alone = stack.enter_context(written_alone(folder, **({"patience": 0.0} if resume else {})))
        yield BankFolderWriter(folder, identity, origin, per_part, resume=resume, is_alone=is_alone)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MgapError(f"{folder}: the bank cannot be written there ({error.strerror or error})") from error


def read_index(path: Path) -> dict[str, Any]:
    """Read and validate `bank.json`, or the index of an unfinished bank."""
    if not os.path.lexists(path) and os.path.isfile(path.parent / PARTIAL_INDEX):  # Path.is_file raises on too long a name
        raise CorruptFile(f"{path.parent}: its bank is not whole yet: collect it there again, of the same rows, and it goes on")
    index = tensor_files.read_index(path, "bank", FORMAT)
    if index["format"] != FORMAT:
        raise CorruptFile(
            f"{path}: a bank of format {index['format']}, which is not read any more: remove it, and collect it again"
        )
    try:
        checked = typed(_Index, index, path.name)
        model_of(index, checked.width)
    except UNREADABLE as error:
        raise CorruptFile(f"{path}: not a saved bank ({error}); remove it, and collect it again") from error
    if not checked.parts or checked.width < 1 or checked.rows < 1:
        raise CorruptFile(f"{path}: a bank without states; remove it, and collect it again")
    if checked.count != sum(file.states for file in checked.parts):
        raise CorruptFile(f"{path}: its parts do not hold its {checked.count} states; remove it, and collect it again")
    return index


def map_parts(folder: Path, index: Mapping[str, Any], *, check: bool | None = None) -> list[Chunk]:
    """Memory-map the parts and check their sizes and columns; `check`: checksums and states too, None: if the bank is small."""
    if check is None:
        check = sum(file["bytes"] for file in index["parts"]) <= CHECKED_BYTES
    parts = [_map_part(folder, file, (index["width"], index["dtype"]), check=check) for file in index["parts"]]
    try:
        check_columns([part._asdict() for part in parts], index["rows"])
        if check and not all(is_finite(part.states) for part in parts):
            raise ValueError("states hold NaN, infinite numbers, or numbers of another kind than floating point")
    except ValueError as error:
        raise CorruptFile(f"{folder}: not a saved bank ({error}); remove it, and collect it again") from error
    return parts


def _map_part(folder: Path, file: Mapping[str, Any], layout: tuple[int, str], *, check: bool) -> Chunk:
    path = folder / file["file"]
    if not tensor_files.is_tensor_file("bank", path.name) or path.parent != folder:
        raise CorruptFile(f"{folder}: {file['file']!r} is not the name of a part; remove the bank, and collect it again")
    try:
        require_regular(path)
        if (size := path.stat().st_size) != file["bytes"]:
            raise CorruptFile(
                f"{path}: has {size} bytes, not the {file['bytes']} that were written; remove the bank, and collect it again"
            )
        if check and file_sha256(path) != file["sha256"]:
            raise CorruptFile(
                f"{path}: damaged, its checksum is not the one in the index; remove the bank, and collect it again"
            )
        with safe_open(path, framework="pt") as tensors:
            part = Chunk(*(tensors.get_tensor(name) for name in _TENSORS))
    except (OSError, SafetensorError) as error:
        raise CorruptFile(f"{path}: cannot be read ({error}); remove the bank, and collect it again") from error
    except RuntimeError as error:  # torch opens the file once more by its name, and another process may have removed it
        gone = FileNotFoundError(str(error))
        raise CorruptFile(f"{path}: cannot be read ({one_line(gone)}); remove the bank, and collect it again") from gone
    shapes = [tuple(tensor.shape) for tensor in part[:4]]
    expected = [(file["states"], layout[0]), *[(file["states"],)] * 3]
    if shapes != expected or _name(part.states.dtype) != layout[1]:
        difference = f"{shapes[0]} of {_name(part.states.dtype)}, not {expected[0]} of {layout[1]}"
        raise CorruptFile(f"{path}: its states are {difference}; remove the bank, and collect it again")
    return part


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
