"""Small wrong changes to source code: an operator, a constant, a sign, an off-by-one, swapped branches.

A mutant replaces one piece of one line. Error messages, docstrings, annotations and decorators stay: they do no arithmetic.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
NAMES = {  # functions with an opposite
    "min": "max", "max": "min", "argmin": "argmax", "argmax": "argmin", "any": "all", "all": "any", "amax": "amin",
    "amin": "amax", "clamp_min": "clamp_max", "clamp_max": "clamp_min", "floor": "ceil", "ceil": "floor",
}  # fmt: skip
UNTOUCHED = {"strict", "non_blocking", "parents", "exist_ok", "stacklevel", "indent", "check", "encoding", "maxsplit"}


@dataclass(frozen=True)
class Mutant:
    """The characters from `start` to `end` of a file (offsets in bytes) become `new`."""

    file: str  # relative to the source's root, such as methods/mgap.py
    line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]

    def apply(self, source: bytes) -> bytes:
        if source[self.start : self.end] != self.old.encode():
            raise ValueError(f"{self.file}:{self.line} no longer reads {self.old!r}: sample again")
        return source[: self.start] + self.new.encode() + source[self.end :]


def find_mutants(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of a file; each still compiles."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def make(line: int, start: int, end: int, new: str) -> Mutant:
        return Mutant(str(path.relative_to(root)), line, start, end, source[start:end].decode(), new)

    def place(node: ast.AST) -> tuple[int, int]:
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        return first, last

    mutants = []
    for node in _arithmetic(ast.parse(source)):
        if isinstance(node, ast.BinOp):
            pairs = [(node.left, node.op, node.right)]
        elif isinstance(node, ast.BoolOp):
            pairs = [(a, node.op, b) for a, b in zip(node.values, node.values[1:], strict=False)]
        elif isinstance(node, ast.Compare):
            pairs = list(zip([node.left, *node.comparators], node.ops, node.comparators, strict=False))
        else:
            pairs = []
        for left, operator, right in pairs:
            sign = OPERATORS.get(type(operator))
            between = (place(left)[1], place(right)[0])
            at = source.find(sign[0].encode(), *between) if sign else -1
            if at >= 0:
                mutants.append(make(node.lineno + source[between[0] : at].count(b"\n"), at, at + len(sign[0]), sign[1]))
        first, last = place(node) if hasattr(node, "lineno") else (0, 0)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            mutants.append(make(node.lineno, first, place(node.operand)[0], ""))
        elif isinstance(node, ast.Constant) and source[first:last]:
            new = _other(node.value)
            if new is not None:
                mutants.append(make(node.lineno, first, last, new))
        elif isinstance(node, ast.If | ast.IfExp | ast.While):  # swapped branches
            first, last = place(node.test)
            mutants.append(make(node.test.lineno, first, last, f"(not ({source[first:last].decode()}))"))
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            mutants.append(make(node.end_lineno or node.lineno, last - len(node.attr), last, NAMES[node.attr]))
        elif isinstance(node, ast.Name) and node.id in NAMES:
            mutants.append(make(node.lineno, first, last, NAMES[node.id]))
    return [mutant for mutant in mutants if _compiles(mutant.apply(source))]


def sample(root: Path, packages: list[str], count: int, seed: int, leave_out: list[str]) -> list[Mutant]:
    """A random sample of `count` mutants of every package, or all of them if there are fewer."""
    drawn = list[Mutant]()
    for package in packages:
        files = sorted(path for path in (root / package).rglob("*.py") if str(path.relative_to(root)) not in leave_out)
        every = [mutant for path in files for mutant in find_mutants(path, root)]
        drawn += sorted(random.Random(seed).sample(every, min(count, len(every))), key=lambda m: (m.file, m.start))
    return drawn


def _other(value: object) -> str | None:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    if isinstance(value, float):
        return repr(value * 2 if value else 1.0)
    return None


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _arithmetic(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those of annotations, decorators, messages and formatted text."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(node, ast.Call) and name == "keywords":
                value = [keyword for keyword in value if keyword.arg not in UNTOUCHED]
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                continue
            waiting += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)]
