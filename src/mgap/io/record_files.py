"""Read files of records (JSON lines, a JSON array or a CSV table); each record knows its place, for error messages."""

from __future__ import annotations

import csv
import io
import json
import os
from os import PathLike
from typing import Any, NamedTuple

from mgap.errors import BenchmarkError
from mgap.io.regular_files import NotRegular, read_regular
from mgap.io.strict_json import parse_json

FilePath = str | PathLike[str]


class FileRow(NamedTuple):
    """One record and its place in the file."""

    where: str  # such as "line 3"
    data: dict[str, Any]


def read_rows(path: FilePath) -> list[FileRow]:
    """Read all records. The first character decides, not the suffix: [ a JSON array, { JSON lines, else a CSV table."""
    text = read_text(path)
    first = text.lstrip()[:1]
    if not first:
        raise BenchmarkError(f"{path}: empty; a record a line is needed")
    if first == "[":
        return _read_array(path, text)
    return _read_lines(path, text) if first == "{" else _read_table(path, text)


def field(path: FilePath, row: FileRow, name: str, allowed: str) -> str:
    """A record's non-blank text; `allowed` is the part of the error message that says what a record must have."""
    value = row.data.get(name)
    if not isinstance(value, str) or not value.strip():
        problem = f"{name} is {value!r}" if name in row.data else f"no {name!r} among {', '.join(map(repr, row.data))}"
        raise BenchmarkError(f"{path} {row.where}: {problem}; {allowed}")
    return value


def identifier(path: FilePath, row: FileRow, name: str, allowed: str) -> str:
    """A record's id as text; in the file it may be a number."""
    value = row.data.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return field(path, row, name, allowed)


def read_text(path: FilePath) -> str:
    """Read a UTF-8 file, with or without a byte order mark."""
    if not os.path.exists(path):  # Path.exists raises on a name that is too long
        raise BenchmarkError(f"{path}: no such file; check the path")
    try:
        data = read_regular(path)
    except NotRegular as error:
        raise BenchmarkError(str(error)) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BenchmarkError(f"{path} line {line}: not UTF-8 text ({error.reason}); save it as UTF-8") from None


def read_json(path: FilePath) -> Any:
    """Parse a JSON file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{path}: no JSON ({error}); cut off? Fetch or write it again") from None


def _read_array(path: FilePath, text: str) -> list[FileRow]:
    try:
        items = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(
            f"{path}: begins as a JSON array and is none ({error}); cut off? Fetch or write it again"
        ) from None
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise BenchmarkError(f"{path} item {number}: {item!r:.40} is no JSON object; write one record an item")
    return [FileRow(f"item {number}", item) for number, item in enumerate(items, start=1)]


def _read_lines(path: FilePath, text: str) -> list[FileRow]:
    rows = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = parse_json(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):  # no newline follows
                raise BenchmarkError(f"{path} line {number}: the last line is cut off; fetch or write the file again") from None
            raise BenchmarkError(f"{path} line {number}: no JSON ({error}); write one object a line") from None
        if not isinstance(data, dict):
            raise BenchmarkError(f"{path} line {number}: {data!r:.40} is no JSON object; write one object a line")
        rows.append(FileRow(f"line {number}", data))
    return rows


def _read_table(path: FilePath, text: str) -> list[FileRow]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[FileRow] = []
    columns: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                columns = [cell.strip() for cell in cells]
                if len(set(columns)) < len(columns):
                    raise BenchmarkError(f"{path} line {reader.line_num}: a column stands twice among {', '.join(columns)}")
            elif len(cells) != len(columns):
                counts = f"{len(cells)} cells under {len(columns)} columns"
                raise BenchmarkError(f"{path} line {reader.line_num}: {counts}; cut off, or a comma without quotes around it?")
            else:
                rows.append(FileRow(f"line {reader.line_num}", dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise BenchmarkError(
            f"{path} line {reader.line_num}: {error}; cut off? Close every quote, and write a record a line"
        ) from None
    if not rows:
        raise BenchmarkError(f"{path}: neither JSON nor a CSV table with a record below its header; write one record a line")
    return rows
