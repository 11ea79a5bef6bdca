"""Mutation testing: change the code in small wrong ways and count the changes that `make test` catches.

    python bench/mutation.py sample mutants.json --count 150       # of every package, drawn by a seed
    python bench/mutation.py cover coverage.json                   # which tests reach which line; needs coverage
    python bench/mutation.py run mutants.json coverage.json caught.jsonl
    python bench/mutation.py table caught.jsonl                    # share caught by package, and the survivors

For each mutant, only the tests of FOLDERS that reach its line run, in a copy of the tree, until one fails or its budget is
spent; all of `make test` might catch a few more. A mutant survives if no test asserts its line or the change makes no
difference. One that no test reaches counts as a survivor.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from copies import ROOT, SOURCE, Copies, enter, run_apart
from mutants import Mutant, sample

PACKAGES = ["priors", "methods", "decoding", "benchmarks", "diagnosis"]
FOLDERS = [
    "priors",
    "methods",
    "decoding",
    "benchmarks",
    "diagnosis",
    "tuning",
    "backbones",
    "verify",
    "run",
    "reports",
    "cli",
    "pocket",
    "fuzz",
]
QUICK = "not long and not product"  # the selection of make test
HEAVY = (  # imported once, before processes are forked
    "torch", "transformers", "transformers.generation.utils", "transformers.models.llava.modeling_llava", "pytest",
    "transformers.models.qwen3_vl.modeling_qwen3_vl", "transformers.models.qwen3_vl.processing_qwen3_vl", "matplotlib.pyplot",
    "transformers.models.llava.processing_llava", "PIL.Image", "yaml", "typer", "scipy.stats", "sklearn.neighbors",
)  # fmt: skip
GRACE_S = 30.0
NO_TESTS = 5  # pytest's status
QUIET = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]  # plugins are imported before the fork


@dataclass(frozen=True)
class Reach:
    """Which tests reach which line, and how long each test takes."""

    seconds: dict[str, float]  # by test, of those that pass
    lines: dict[str, dict[int, list[str]]]  # file -> line -> tests

    @classmethod
    def load(cls, path: Path) -> Reach:
        content = json.loads(path.read_text())
        names = list(content["seconds"])
        lines = {f: {int(n): [names[k] for k in which] for n, which in each.items()} for f, each in content["lines"].items()}
        return cls(content["seconds"], lines)

    def save(self, path: Path) -> None:
        numbers = {name: number for number, name in enumerate(self.seconds)}
        lines = {
            file: {line: sorted(numbers[t] for t in tests if t in numbers) for line, tests in each.items()}
            for file, each in self.lines.items()
        }
        path.write_text(json.dumps({"seconds": self.seconds, "lines": lines}))

    def tests_of(self, mutant: Mutant, source: bytes) -> list[str]:
        """Tests that run the mutant's statement or are named after its file; for a line run on import, all of the file."""
        tests_by_line = self.lines.get(mutant.file, {})
        reaching = {test for line in _statement(source, mutant.line) for test in tests_by_line.get(line, ())}
        if not reaching and _is_outside_functions(source, mutant.line):
            reaching = {test for tests in tests_by_line.values() for test in tests}
        own = f"test_{Path(mutant.file).stem}.py"
        reaching |= {test for test in self.seconds if _file(test).endswith(f"/{own}")}
        total = Counter[str]()
        for test in reaching:
            total[_file(test)] += self.seconds[test]
        return sorted(reaching, key=lambda test: (not _file(test).endswith(own), total[_file(test)], _file(test)))

    def within(self, tests: list[str], budget_s: float) -> list[str]:
        """The first tests whose times add up to the budget."""
        sums = accumulate(self.seconds[test] for test in tests)
        return [test for test, so_far in zip(tests, sums, strict=True) if so_far - self.seconds[test] < budget_s]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _function(test: str) -> str:
    return test.partition("[")[0]


def _statement(source: bytes, line: int) -> range:
    """The lines of the innermost statement; if it has a body, only those before the body."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if line <= last and (best == range(line, line + 1) or node.lineno >= best.start):
                best = range(node.lineno, max(last, node.lineno) + 1)
    return best


def _is_outside_functions(source: bytes, line: int) -> bool:
    spans = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef))
    return not any(n.body[0].lineno <= line <= (n.end_lineno or n.lineno) for n in spans)


class CoveragePlugin:
    """A pytest plugin that tells coverage which test is running."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds, self.failed = coverage, dict[str, float](), set[str]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)
        self.seconds[nodeid] = -_processor_s()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] += _processor_s()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


def _processor_s() -> float:
    """CPU seconds of this process and its children: independent of the machine's load."""
    return sum(os.times()[:4])


def cover(args: argparse.Namespace) -> None:
    import coverage
    import pytest

    copies = Copies(args.jobs, args.tests)
    folders = [f"tests/{name}" for name in args.folders]

    def start(number: int, folder: str, path: Path) -> tuple[Callable[[], None], float]:
        tree = copies.tree(number)

        def work() -> None:
            enter(tree)
            package = tree / "src" / "mgap"
            watching = coverage.Coverage(data_file=None, source=[str(package / name) for name in PACKAGES], config_file=False)
            watching.start()
            plugin = CoveragePlugin(watching)
            pytest.main([folder, "-m", args.select, *QUIET], plugins=[plugin])
            watching.stop()
            data, lines = watching.get_data(), dict[str, dict[int, list[str]]]()
            for measured in data.measured_files():
                by_line = data.contexts_by_lineno(measured)
                lines[str(Path(measured).relative_to(package))] = {n: [t for t in which if t] for n, which in by_line.items()}
            passed = {test: s for test, s in plugin.seconds.items() if test not in plugin.failed}
            path.write_text(json.dumps([passed, lines, sorted(plugin.failed)]))

        return work, 3000.0

    seconds, merged = dict[str, float](), defaultdict[str, dict[int, list[str]]](dict)
    for folder, answer in run_apart(args.jobs, folders, start):
        if answer is None:
            print(f"{folder}: ended", flush=True)
            continue
        seconds |= answer[0]
        for name, lines in answer[1].items():
            for line, tests in lines.items():
                merged[name].setdefault(int(line), []).extend(tests)
        print(f"{folder}: {len(answer[0])} passed, {len(answer[2])} failed or skipped", flush=True)
    Reach(seconds, merged).save(args.coverage)
    copies.remove()
    print(f"{len(seconds)} tests, {sum(seconds.values()):.0f} s")


class OrderPlugin:
    """A pytest plugin that runs chosen tests in order, each with a time limit, and keeps the first that fails."""

    def __init__(self, tests: list[str], seconds: dict[str, float], *, by_function: bool) -> None:
        self.tests, self.seconds, self.by = tests, seconds, ""
        self.name = _function if by_function else str

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = set(map(self.name, self.tests))
        items[:] = [item for item in items if self.name(item.nodeid) in chosen]
        files = {_file(test): number for number, test in enumerate(self.tests)}
        items.sort(key=lambda item: files[_file(item.nodeid)])  # stable: keeps a file's order, and so its fixtures together

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process: an endless test counts as a catch
        limit = GRACE_S + 10 * self.seconds.get(nodeid, GRACE_S)
        signal.setitimer(signal.ITIMER_PROF, limit)  # processor time: the same on a busy machine

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.by:
            self.by = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.by:
            self.by = report.nodeid


def run(args: argparse.Namespace) -> None:
    import pytest

    every = [Mutant(**each) for each in json.loads(args.mutants.read_text())]
    reach, copies = Reach.load(args.coverage), Copies(args.jobs, args.tests)
    done_before = set[tuple[str, int, str]]()
    if args.out.exists():  # resume
        done_before = {(d["file"], d["start"], d["new"]) for d in map(json.loads, args.out.read_text().splitlines())}
    todo = list[tuple[Mutant, list[str]]]()
    for mutant in every:
        if (mutant.file, mutant.start, mutant.new) not in done_before:
            tests = reach.tests_of(mutant, (SOURCE / mutant.file).read_bytes())
            todo.append((mutant, reach.within(tests, args.budget)))
    cost = {id(t): sum(reach.seconds[test] for test in t[1]) for t in todo}
    random.Random(0).shuffle(todo)  # an interrupted run has done a fair sample

    def start(number: int, task: tuple[Mutant, list[str]], path: Path) -> tuple[Callable[[], None], float]:
        mutant, tests = task
        copies.change(number, mutant)

        def work() -> None:
            enter(copies.tree(number))
            plugin = OrderPlugin(tests, reach.seconds, by_function=args.by_function)
            files, code = list(dict.fromkeys(map(_file, tests))), 0
            for some in (files[:2], files[2:]):  # the likeliest to fail first: collecting all takes time
                code = int(pytest.main([*some, "-x", "-m", args.select, *QUIET], plugins=[plugin])) if some else code
                if plugin.by or code not in (0, NO_TESTS):
                    break
            path.write_text(json.dumps([0 if code == NO_TESTS else code, plugin.by]))

        return (work if tests else lambda: path.write_text('[0, ""]')), GRACE_S * 20 + 20 * cost[id(task)]

    started, caught = time.monotonic(), 0
    with args.out.open("a") as out:
        for done, ((mutant, tests), answer) in enumerate(run_apart(args.jobs, todo, start), start=1):
            by = "no answer" if answer is None else answer[1] or (f"status {answer[0]}" if answer[0] else "")
            caught += bool(by)
            out.write(json.dumps({**asdict(mutant), "tests": len(tests), "by": by}) + "\n")
            out.flush()
            if done % 20 == 0:
                print(f"{done} of {len(todo)}, {caught} caught, {time.monotonic() - started:.0f} s", flush=True)
    copies.remove()


def table(args: argparse.Namespace) -> None:
    for path in args.caught:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        print(f"{path}\n| package | mutants | caught | share |\n|---|---|---|---|")
        for package in PACKAGES:
            of = [row for row in rows if row["file"].startswith(f"{package}/")]
            if of:
                caught = sum(bool(row["by"]) for row in of)
                print(f"| {package} | {len(of)} | {caught} | {100 * caught / len(of):.1f}% |")
        for row in rows if args.survivors else ():
            if not row["by"]:
                print(f"{row['file']}:{row['line']}: {row['old']!r} -> {row['new']!r}, {row['tests']} tests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    drawing = verbs.add_parser("sample")
    drawing.add_argument("mutants", type=Path)
    drawing.add_argument("--count", type=int, default=150, help="of every package")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--leave-out", nargs="*", default=["methods/mgap_kernels.py"], help="files that only run on a GPU")
    drawing.set_defaults(call=lambda a: a.mutants.write_text(json.dumps(
        [asdict(m) for m in sample(SOURCE, PACKAGES, a.count, a.seed, a.leave_out)])))  # fmt: skip
    covering, running = verbs.add_parser("cover"), verbs.add_parser("run")
    covering.add_argument("coverage", type=Path)
    covering.add_argument("--folders", nargs="+", default=FOLDERS, help="folders of tests to run")
    running.add_argument("mutants", type=Path)
    running.add_argument("coverage", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("--budget", type=float, default=90.0, help="seconds of tests per mutant, at most")
    running.add_argument("--by-function", action="store_true", help="run a reaching test with all its parameters")
    for verb, call in ((covering, cover), (running, run)):
        verb.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        verb.add_argument("--select", default=QUICK, help="pytest's -m")
        verb.add_argument("--tests", type=Path, default=ROOT / "tests", help="another version of the tests, for comparison")
        verb.set_defaults(call=call)
    showing = verbs.add_parser("table")
    showing.add_argument("caught", type=Path, nargs="+")
    showing.add_argument("--survivors", action="store_true")
    showing.set_defaults(call=table)
    args = parser.parse_args()
    if args.call in (cover, run):
        os.environ["OMP_NUM_THREADS"] = "1"  # as in make test
        args.tests = args.tests.resolve()
        for name in HEAVY:  # once, before processes are forked; mgap itself is imported by each of them
            importlib.import_module(name)
    args.call(args)


if __name__ == "__main__":
    main()
