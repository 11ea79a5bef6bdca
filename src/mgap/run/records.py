"""Reading a run's folder: the samples, the methods, and every answer so far.

    run.json               the plan: benchmark, model, methods, decoding, versions
    samples.jsonl          questions, with their true answers
    order.json             ids in the order of asking, if pictures differ in size
    answers/METHOD/*.jsonl one line per answer, append-only; one file per process

Scores need these files and no model.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgap.errors import CorruptFile, RunError, one_line
from mgap.io.regular_files import NotRegular, read_regular
from mgap.io.strict_json import load_json, parse_json, strict_json
from mgap.io.typed_json import BROKEN, typed
from mgap.types import Sample

if TYPE_CHECKING:
    from mgap.benchmarks.answer_texts import AnswerTexts

RUN, SAMPLES, ORDER, ANSWERS = "run.json", "samples.jsonl", "order.json", "answers"
ANALYSES = "analysis"  # the folder that `mgap diagnose` adds
FORMAT = 1
PLAIN = "plain"  # in a record's `extra`: why its answer is plain decoding's, where a method was asked for


@dataclass(frozen=True)
class Record:
    """One line: the answer to a sample, or why there is none."""

    id: str  # of the sample
    text: str = ""
    prompt: str = ""  # as the model read it
    image: str = ""  # SHA-256 of the picture's RGB pixels
    tokens: int = 0  # of the answer
    stop: str = ""  # "end" or "length"
    milliseconds: float = 0.0  # the batch's time divided by its rows
    rows: int = 0  # of the batch
    ties: int | None = None  # tokens of the answer that were chosen among equal best scores; None: not counted
    log_odds: float | None = None  # of yes against no at the first token of plain decoding; None: not read
    at: str = ""  # when, UTC
    extra: Mapping[str, Any] = field(default_factory=dict)  # other measurements, such as distances
    failed: str = ""  # the error, if there is no answer

    def line(self) -> str:
        empty = asdict(Record(""))
        filled = {name: value for name, value in asdict(self).items() if value != empty[name]}
        content = {"id": self.id, "text": self.text, **filled}
        return strict_json(content, required=f"the record of {self.id}", ensure_ascii=False) + "\n"

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Record:
        """From a parsed line. Keys of later versions are skipped. Raises TypeError."""
        record: Record = typed(cls, data, "the record")
        for name in ("tokens", "milliseconds", "rows", "ties"):
            if not 0 <= (getattr(record, name) or 0) <= sys.float_info.max:
                raise TypeError(f"the record's {name} must be a finite number of at least 0, not {data[name]!r:.60}")
        if record.log_odds is not None and not abs(record.log_odds) <= sys.float_info.max:
            raise TypeError(f"the record's log_odds must be a finite number, not {data['log_odds']!r:.60}")
        return record


def texts_of(records: Iterable[Record]) -> AnswerTexts:
    """Their texts, as scorers take them; one whose end is not recorded is judged by its text."""
    from mgap.benchmarks.answer_texts import AnswerTexts  # imports numpy, which completion does without

    by_id = {record.id: record for record in records}
    whole = frozenset(name for name, record in by_id.items() if record.stop == "end")
    return AnswerTexts({name: record.text for name, record in by_id.items()}, whole)


@dataclass(frozen=True)
class RunMethod:
    """One method of a run: a row of its tables. run.json lists them under `arms`."""

    label: str  # as tables show it
    method: str  # its name in the registry, or "vanilla"
    settings: Mapping[str, Any] = field(default_factory=dict)
    prior: Mapping[str, Any] | None = None  # how its subspace was fitted, or where it is saved
    prefill: str = "own"  # "shared": questions about one picture share its keys and values
    x: float | None = None  # its position on the experiment's axis
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the files that its settings name, by path
    decoding: Mapping[str, Any] = field(default_factory=dict)  # where it differs from the run's
    suffix: str = ""  # words after every question, behind the benchmark's own
    control: bool = False  # whether it is a control: a row that other methods are held against

    @property
    def folder(self) -> str:
        """The label as a folder name."""
        return re.sub(r"[^A-Za-z0-9.=+-]+", "-", self.label).strip("-.") or "method"


@dataclass(frozen=True)
class _Benchmark:
    name: str
    task: str
    lexicon: Mapping[str, Any] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Plan:
    """The keys of run.json that are read, with their types."""

    benchmark: _Benchmark
    arms: tuple[RunMethod, ...]
    model: Mapping[str, Any] = field(default_factory=dict)
    decoding: Mapping[str, Any] = field(default_factory=dict)
    scoring: Mapping[str, Any] = field(default_factory=dict)
    departure: Mapping[str, Any] | None = None
    experiment: Mapping[str, Any] | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A run's folder."""

    folder: Path
    plan: Mapping[str, Any]  # run.json
    samples: tuple[Sample, ...]
    order: tuple[
        str, ...
    ] = ()  # of asking, by id; empty: by first appearance of the pictures. Scores keep the order of `samples`

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Run:
        path = Path(folder)
        if not (path / RUN).exists():
            raise RunError(f"{path}: no {RUN} in it, so it is no run; name a folder that `mgap run` wrote")
        try:
            plan = typed(dict[str, Any], load_json(path / RUN), RUN)
            if plan.get("format") != FORMAT:
                raise RunError(
                    f"{path}: written in format {plan.get('format')!r:.40}, and this version of mgap reads format {FORMAT}"
                )
            typed(_Plan, plan, RUN)
            samples = typed(tuple[Sample, ...], list(read_lines(path / SAMPLES)), SAMPLES)
            ordered = os.path.lexists(path / ORDER)
            order = typed(tuple[str, ...], load_json(path / ORDER), ORDER) if ordered else ()
        except BROKEN as error:
            raise CorruptFile(f"{path}: its {RUN}, {SAMPLES} or {ORDER} cannot be read ({one_line(error)})") from error
        if len({sample.id for sample in samples}) < len(samples):
            raise CorruptFile(f"{path / SAMPLES}: an id stands there twice")
        if order and sorted(order) != sorted(sample.id for sample in samples):
            raise CorruptFile(f"{path / ORDER}: its {len(order)} ids are not those of the {len(samples)} samples")
        return cls(path, plan, samples, order)

    @property
    def methods(self) -> tuple[RunMethod, ...]:
        methods: tuple[RunMethod, ...] = typed(tuple[RunMethod, ...], self.plan["arms"])
        return methods

    def records(self, method: RunMethod) -> dict[str, Record]:
        """The method's answers so far, by sample. An answer replaces a failure, and a later failure an earlier one."""
        records: dict[str, Record] = {}
        for path in sorted((self.folder / ANSWERS / method.folder).glob("*.jsonl")):
            for data in read_lines(path):
                try:
                    record = Record.of(data)
                except TypeError as error:
                    raise CorruptFile(f"{path}: {error}; remove the line to go on without it") from error
                if record.id not in records or records[record.id].failed:
                    records[record.id] = record
        return records


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file. An incomplete last line is skipped; any other bad line is refused."""
    try:
        data = read_regular(path)
    except NotRegular:
        raise
    except OSError as error:
        raise CorruptFile(f"{path}: cannot be read ({error.strerror}); is it a link to nothing?") from error
    complete, _, _ = data.rpartition(b"\n")
    for number, line in enumerate(complete.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            parsed = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise CorruptFile(f"{path}: line {number} is no JSON ({error}); remove the line to go on without it") from error
        if not isinstance(parsed, dict):
            raise CorruptFile(f"{path}: line {number} is no JSON object; remove the line to go on without it")
        yield parsed


def analysis_file(folder: Path, name: str) -> Path:
    """The file of one analysis of a run: representation, subspace, models or picture."""
    return folder / ANALYSES / f"{name}.json"
