"""The small wrong changes of bench/mutation.py: what is changed, what is left alone, and which tests are asked."""

from dataclasses import replace

import pytest
from mutants import find_mutants, sample
from mutation import Reach

SOURCE = '''"""A docstring with 1 + 1."""

LIMIT: int | None = 3


@decorated(7)
def shrink(h, alpha: float = 0.5, *, strict=True):
    if alpha <= 0 or not h:
        raise ValueError(f"alpha={alpha - 1}")
    return max(zip(h, h, strict=True)) if strict else -h[0] * (1 - alpha)
'''


@pytest.fixture
def root(tmp_path):
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "shrink.py").write_text(SOURCE)
    return tmp_path


@pytest.fixture
def mutants(root):
    return find_mutants(root / "methods" / "shrink.py", root)


def test_operators_constants_signs_and_branches_are_changed_one_at_a_time(mutants):
    changed = {(mutant.line, mutant.old, mutant.new) for mutant in mutants}
    assert changed == {
        (3, "3", "4"),
        (7, "0.5", "1.0"), (7, "True", "False"),
        (8, "<=", "<"), (8, "0", "1"), (8, "or", "and"), (8, "not ", ""),
        (8, "alpha <= 0 or not h", "(not (alpha <= 0 or not h))"),
        (10, "max", "min"), (10, "strict", "(not (strict))"), (10, "-", ""), (10, "0", "1"), (10, "*", "/"), (10, "1", "2"),
        (10, "-", "+"),
    }  # fmt: skip


def test_a_mutant_differs_in_its_own_piece_and_compiles(mutants):
    for mutant in mutants:
        made = mutant.apply(SOURCE.encode()).decode()
        compile(made, "made", "exec")
        assert made != SOURCE
        assert [
            n for n, pair in enumerate(zip(made.splitlines(), SOURCE.splitlines(), strict=True), 1) if len({*pair}) > 1
        ] == [mutant.line]


def test_code_that_has_changed_since_is_refused(mutants):
    with pytest.raises(ValueError, match="sample again"):
        replace(mutants[0], start=mutants[0].start + 1, end=mutants[0].end + 1).apply(SOURCE.encode())


def test_the_same_seed_draws_the_same_mutants(root):
    one, again, other = (sample(root, ["methods"], 5, seed, []) for seed in (0, 0, 1))
    assert one == again != other
    assert len(one) == 5
    assert sample(root, ["methods"], 5, 0, ["methods/shrink.py"]) == []


def test_tests_that_reach_the_statement_are_asked_and_those_named_after_the_file_come_first(mutants):
    seconds = {"tests/a/test_other.py::b": 1.0, "tests/a/test_shrink.py::c": 9.0, "tests/a/test_far.py::d": 0.1}
    reach = Reach(seconds, {"methods/shrink.py": {8: ["tests/a/test_other.py::b"], 10: ["tests/a/test_far.py::d"]}})
    asked = {m.line: reach.tests_of(m, SOURCE.encode()) for m in mutants}
    assert asked[8] == ["tests/a/test_shrink.py::c", "tests/a/test_other.py::b"]
    assert asked[10] == ["tests/a/test_shrink.py::c", "tests/a/test_far.py::d"]
    assert set(asked[3]) == set(seconds), "a line that runs on import may show anywhere"
