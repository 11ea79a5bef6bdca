"""The tables of the representation analysis: every figure in its place, dashes where there is none, controls named."""

from mgap.benchmarks.statistics import Rate
from mgap.diagnosis.representation import Line, Representation
from mgap.diagnosis.representation_tables import representation_tables
from mgap.pages.table_formats import latex, markdown

SHIFT = (
    "prior",
    "prior_share",
    "prior_after",
    "prior_after_share",
    "inside",
    "inside_share",
    "outside",
    "outside_share",
    "held",
    "moved_share",
)
STEP = ("distance", "holds", "best", "closer_best", "closer")


def rates(names, start):
    return {name: Rate(start + n / 10, start, start + 1, 8) for n, name in enumerate(names)}


def line(method, strength, names, start, **more):
    return Line(method, strength, rates(names, start), **more)


FOUND = Representation(
    model="pocket/llava",
    width=256,
    rank=5,
    bank=60,
    k=10,
    counts={"right": 6, "wrong": 2, "unclear": 1, "apart": 30, "agree": 12},
    shifts=(
        Line("mgap", 0.0, {**rates(SHIFT, 0), "held": Rate(0.0, 0.0, 1.0, 0)}),
        line("mgap", 1.0, SHIFT, 1),
        line("vcd", 1.0, SHIFT, 2),
    ),
    oracle=(
        line("mgap", 1.0, (*STEP, "beta", "contains"), 0.0, reference="aligned", group="wrong"),
        line("mgap", 1.0, (*STEP, "beta", "contains"), 0.1, reference="other answer", group="wrong"),
        line("vcd", 1.0, STEP, -3, reference="aligned", group="wrong"),
        line("mgap", 1.0, (*STEP, "beta", "contains"), 0.2, reference="teacher", group="apart"),
    ),
    notes=("Not followed along captions, because they do not act at the head: vcd.",),
)


def test_shifts_stand_by_method_and_strength_and_nothing_to_tell_is_a_dash():
    table = representation_tables(FOUND)[0]
    assert [(group.heading, [row.heading for row in group.rows]) for group in table.groups] == [
        ("mgap", ["0", "1"]),
        ("vcd", ["1"]),
    ]
    first, second = table.groups[0].rows
    assert first.cells[-2].text == "\u2014"
    assert [cell.text for cell in second.cells] == ["1", "110", "1.2", "130", "1.4", "150", "1.6", "170", "180", "190"]
    assert second.cells[1].small == "100 to 200"  # percent
    assert sum(size for _, size in table.spans) == len(table.columns) - 1
    assert "2% of its square inside: 5 of 256" in table.notes[0]


def test_the_theorem_is_shown_for_methods_that_take_its_step_with_the_control_beside():
    table = representation_tables(FOUND)[1]
    assert [group.heading for group in table.groups] == [
        "mgap, aligned: questions that plain decoding answers wrongly (2)",
        "mgap, other answer: questions that plain decoding answers wrongly (2)",
        "mgap, teacher: steps of captions after plain and true text have parted (30)",
    ]
    (row,) = table.groups[0].rows
    assert [cell.text for cell in row.cells] == ["0", "10", "0.2", "0.5", "60", "40", "30"]
    notes = " ".join(table.notes)
    for words in ("10 nearest of the bank's 60", "Left out: 1 of", "At 12 steps", "a control", "at the head: vcd"):
        assert words in notes


def test_every_method_is_held_against_every_reference():
    table = representation_tables(FOUND)[2]
    assert table.columns == ("Method", "1")
    rows = {group.heading.partition(":")[0]: {row.heading: row.cells[0].text for row in group.rows} for group in table.groups}
    assert rows == {"aligned": {"mgap": "40", "vcd": "-260"}, "other answer": {"mgap": "50"}, "teacher": {"mgap": "60"}}


def test_without_a_method_that_takes_the_step_there_is_no_table_of_it():
    only = Representation(**{**vars(FOUND), "oracle": (FOUND.oracle[2],), "counts": {"right": 6, "wrong": 2, "unclear": 0}})
    tables = representation_tables(only)
    assert len(tables) == 2
    assert not any("Left out" in note or "Teacher" in note for note in tables[1].notes)


def test_the_tables_print_in_every_form():
    for number, table in enumerate(representation_tables(FOUND)):
        assert markdown(table).count("\n| ") > len(table.groups)
        assert latex(table, f"representation-{number}").count("&") > len(table.columns)
