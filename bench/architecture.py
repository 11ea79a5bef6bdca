"""The packages of mgap and what each imports, read from the source and drawn: the picture of docs/architecture.md.

    python bench/architecture.py [--out docs/figures/architecture.svg]

A row imports the columns that are marked in it. All marks lie left of the diagonal: imports point one way.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "mgap"
PICTURE = Path("docs/figures/architecture.svg")

# Every package from left to right, and what it holds: an import may only point to the left.
PACKAGES = {
    "io": "files: JSON, tensors, downloads, pictures",
    "backbones": "model families behind one interface",
    "priors": "what is learnt from a model before decoding",
    "methods": "a file a method; kinds/ to inherit from",
    "decoding": "attach, generate, stream, trace; fast/",
    "benchmarks": "a folder each: files, questions, scorer",
    "pages": "tables, plots and HTML from plain data",
    "diagnosis": "departure, shift, the subspace in words",
    "run": "config, folder, engine, workers",
    "reports": "from records to tables and pages",
    "pocket": "the drawn world, its models, the demo",
    "tuning": "alpha, lambda and K for a model",
    "serving": "MGAP inside vLLM, and runs that vLLM answers",
    "integrations": "our methods in lmms-eval",
    "verify": "our numbers against reference vectors",
    "inspector": "a page in the browser",
    "cli": "a file a verb",
}
ANYWHERE = ("types", "errors", "settings", "registry")  # modules that every package may import


class Import(NamedTuple):
    """One import of a package of ours, or of one of the modules that stand beside them."""

    path: Path
    line: int
    target: str  # the name after `mgap.`
    is_late: bool  # inside a function, or for the type checker only


def imports(path: Path) -> Iterator[Import]:
    """Every import of mgap in a file, wherever it stands."""

    def visit(node: ast.AST, is_late: bool) -> Iterator[Import]:
        is_checked = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        is_late = is_late or is_checked or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in _names(node):
            parts = name.split(".")
            if parts[0] == "mgap" and len(parts) > 1:
                yield Import(path, node.lineno, parts[1], is_late)  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            yield from visit(child, is_late)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), False)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "mgap" else [node.module]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def read(source: Path = SOURCE) -> dict[str, dict[str, str]]:
    """Package -> the others that it imports, in order: "start" if on being imported itself, "late" if only when used."""
    found: dict[str, dict[str, str]] = {}
    for package in PACKAGES:
        used = [each for path in sorted((source / package).rglob("*.py")) for each in imports(path)]
        at_start, late = ({each.target for each in used if each.is_late is kind} for kind in (False, True))
        others = [name for name in PACKAGES if name != package and name in at_start | late]
        found[package] = {name: "start" if name in at_start else "late" for name in others}
    return found


ROW, LEFT, TOP, GAP = 27, 436, 118, 9  # heights and places in the picture
INK, GREY, LINE, BAND, MARK = "#1f2430", "#5d6575", "#d9dde6", "#f4f6fb", "#3f51b5"


def draw(found: dict[str, dict[str, str]]) -> str:
    """The picture as SVG, the same for the same facts."""
    names = list(found)
    size = len(names) * ROW
    width, height = LEFT + size + 24, TOP + size + 66
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        "<title>The packages of mgap and what each of them imports</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(GAP, TOP - 14, "package", GREY, size=12),
        _text(124, TOP - 14, "holds", GREY, size=12),
        _text(LEFT - 12, TOP - 14, "imports →", GREY, size=12, anchor="end"),
    ]
    for place, name in enumerate(names):
        x, y = LEFT + place * ROW, TOP + place * ROW
        middle, base = y + ROW / 2, y + ROW / 2 + 4.5
        if place % 2 == 0:
            parts.append(f'<rect x="0" y="{y}" width="{x + ROW}" height="{ROW}" fill="{BAND}"/>')
        parts += [_text(GAP, base, name, INK, weight="bold"), _text(124, base, PACKAGES[name], GREY)]
        turned = f'transform="translate({x + ROW / 2 + 4} {TOP - 10}) rotate(-55)"'
        parts.append(f'<text {turned} fill="{INK}" font-weight="bold">{name}</text>')
        parts.append(f'<path d="M{x + ROW / 2} {TOP - 4}V{middle - 8}" stroke="{LINE}"/>')
        parts.append(f'<rect x="{x + 5}" y="{y + 5}" width="{ROW - 10}" height="{ROW - 10}" rx="3" fill="{INK}"/>')
    for row, name in enumerate(names):
        for other, when in found[name].items():
            parts.append(_mark(LEFT + (names.index(other) + 0.5) * ROW, TOP + (row + 0.5) * ROW, when))
    below = TOP + size + 24
    parts += [
        _mark(GAP + 6, below - 4, "start"), _text(GAP + 20, below, "when it is imported itself", GREY),
        _mark(GAP + 202, below - 4, "late"), _text(GAP + 216, below, "when it is used, or for types only", GREY),
        _text(GAP, below + 22, f"{', '.join(ANYWHERE)} may be imported from anywhere, and import no package.", GREY),
        "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, words: str, fill: str, *, size: int = 13, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{fill}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">{words}</text>'
    )


def _mark(x: float, y: float, when: str) -> str:
    fill = MARK if when == "start" else "#ffffff"
    return f'<circle cx="{x}" cy="{y}" r="5.5" fill="{fill}" stroke="{MARK}" stroke-width="1.6"/>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURE)
    out: Path = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(draw(read()), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
