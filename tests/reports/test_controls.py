"""Controls beside every method's row: what a constant would have done, what is left, and what old runs still show."""

import json
from dataclasses import replace

import pytest

from mgap.reports.control_tables import NO_BETTER, left_tables, turned_tables
from mgap.reports.controls import PICKED, Changed
from mgap.reports.report import report_files, sections
from mgap.reports.score_tables import coverage_table, score_tables
from mgap.reports.scores import score
from mgap.run.records import Record, Run, RunMethod
from tests.reports.html import check_page
from tests.reports.runs import questions, write_run

SAMPLES = questions(pictures=20, groups=("random", "adversarial"))
GREEDY = RunMethod("greedy", "vanilla", decoding={"sample": False}, control=True)
MIN_P = RunMethod("min_p 0.1", "vanilla", decoding={"min_p": 0.1}, control=True)
CLOSE = RunMethod("no-if-close", "yes-if-close", control=True)


def odds_of(sample):
    """Plain decoding leans to yes; it knows four pictures in five."""
    picture = int(sample.image.removesuffix(".png"))
    known = 1.0 if picture % 5 else -1.5
    return 0.9 + picture / 100 + known * (1 if sample.truth == "yes" else -1)


def said(odds, *, records=True):
    """Answers that say yes to positive log-odds; `records` keeps those of plain decoding."""
    return [
        Record(s.id, "Yes." if odds(s) > 0 else "No.", tokens=2, stop="end", log_odds=odds_of(s) if records else None)
        for s in SAMPLES
    ]


def shifted(by):
    return said(lambda sample: odds_of(sample) + by, records=False)


def knowing():
    return said(lambda sample: 1 if sample.truth == "yes" else -1, records=False)


def scored(folder, answered, *methods, **plan):
    return score(Run.load(write_run(folder, SAMPLES, answered, *methods, **plan)))


@pytest.fixture
def scores(tmp_path):
    answered = {"Vanilla": said(odds_of), "VCD": shifted(-0.5), "Ours": knowing(), "no-if-close": shifted(-0.3)}
    return scored(tmp_path / "run", answered, CLOSE)


def test_changes_count_both_directions_by_what_they_did():
    plain = {s.id: ("no", "no", "yes", "yes", None)[n % 5] for n, s in enumerate(SAMPLES)}
    other = {s.id: ("yes", "no", "no", "yes", "yes")[n % 5] for n, s in enumerate(SAMPLES)}
    found = Changed.of(SAMPLES, plain, other)
    assert (found.to_yes_right, found.to_yes_wrong, found.to_no_right, found.to_no_wrong) == (8, 8, 8, 8)
    assert found.one_sidedness == 0.5
    assert Changed.of(SAMPLES, plain, plain) == Changed(0, 0, 0, 0, 0.0)


def test_a_method_that_is_a_shift_changes_what_the_shift_changes_and_has_nothing_left(scores):
    for group in ("random", "adversarial"):
        beside = scores.results["VCD"].controls[group]
        assert beside.changed == beside.changed_by_shift
        assert beside.changed.one_sidedness == 1.0
        assert beside.changed.to_no_right + beside.changed.to_no_wrong > 0
        assert not beside.equal_recall.is_better
        assert beside.equal_yes_ratio.difference.high == 0
        assert beside.left.gain.low > 0, "it gains over plain decoding"
        assert beside.left.left.low <= 0, "and nothing over the best control"


def test_a_method_that_knows_more_has_something_left(scores):
    beside = scores.results["Ours"].controls["random"]
    assert beside.equal_recall.is_better
    assert beside.equal_yes_ratio.is_better
    assert beside.left.left.low > 0
    assert beside.left.line == scores.line["random"]


def test_the_line_to_beat_is_the_best_of_plain_decoding_and_the_controls(scores):
    f1 = {label: result.groups["random"].rates["f1"].value for label, result in scores.results.items()}
    assert scores.line["random"] == max(("Vanilla", "no-if-close", PICKED), key=f1.get)
    assert f1[scores.line["random"]] < f1["Ours"]
    assert scores.results["no-if-close"].controls["random"].left is None


def test_the_picked_bias_is_a_control_with_a_row_that_nobody_decoded(scores):
    picked = scores.results[PICKED]
    assert (picked.arm.control, picked.arm.method, picked.effort) == (True, "bias", None)
    assert len(picked.arm.settings["shift"]) == 2
    assert "words" not in picked.groups["random"].rates
    assert picked.groups["random"].against.differences["f1"].value > 0
    assert PICKED not in [row.heading for row in coverage_table([scores]).groups[0].rows]
    assert PICKED not in scores.texts
    assert PICKED not in scores.right


def test_controls_are_a_group_of_their_own_under_the_methods(scores):
    (table,) = score_tables([scores])
    assert [(group.heading, [row.heading for row in group.rows]) for group in table.groups[:2]] == [
        ("Random", ["Vanilla", "VCD", "Ours"]),
        ("Random: controls", ["no-if-close", PICKED]),
    ]
    (left,) = left_tables([scores])
    rows = {row.heading: row.cells for row in left.groups[0].rows}
    assert set(rows) == {"VCD", "Ours"}
    assert rows["VCD"][-2].text == NO_BETTER
    assert rows["Ours"][-2].text.startswith("100.0 against ")
    assert rows["VCD"][3].small == scores.line["random"]
    assert len(turned_tables([scores])[0].columns) == 11


def test_the_page_and_the_json_have_all_of_it(scores):
    files = report_files([scores])
    page = check_page(files["report.html"])
    assert "Beside controls" in page.text()
    assert "Dashed, the line to beat: random" in files["report.html"]
    assert NO_BETTER in files["report.md"]
    data = json.loads(json.dumps(scores.to_json()))
    assert data["line_to_beat"] == scores.line
    beside = data["methods"]["VCD"]["controls"]["random"]
    assert set(beside) == {"changed", "changed_by_shift", "equal_recall", "equal_yes_ratio", "left"}
    assert set(beside["left"]) == {"line", "gain", "left"}
    assert beside["equal_recall"]["difference"]["high"] <= 0
    assert data["methods"][PICKED]["arm"]["control"] is True


@pytest.mark.parametrize("lacking", [1, len(SAMPLES)])
def test_a_run_without_log_odds_has_its_changes_and_nothing_else_of_controls(tmp_path, lacking):
    plain = [replace(record, log_odds=None) if n < lacking else record for n, record in enumerate(said(odds_of))]
    scores = scored(tmp_path / "run", {"Vanilla": plain, "Ours": knowing()})
    beside = scores.results["Ours"].controls["random"]
    assert (beside.changed_by_shift, beside.equal_recall, beside.left) == (None, None, None)
    assert beside.changed.to_yes_right > 0
    assert set(scores.results) == {"Vanilla", "Ours"}
    assert scores.line == {}
    assert "controls" not in {section.name for section in sections([scores])}
    assert len(turned_tables([scores])[0].columns) == 6
    check_page(report_files([scores])["report.html"])


def test_controls_are_held_against_plain_decoding_whatever_the_baseline_is(scores):
    other = score(scores.run, against="Ours")
    assert other.results["VCD"].controls == scores.results["VCD"].controls
    assert other.results["Ours"].controls == scores.results["Ours"].controls


def test_without_plain_decoding_there_is_nothing_to_hold_against(tmp_path):
    scores = scored(tmp_path / "run", {"VCD": shifted(0.0), "Ours": knowing()})
    assert scores.results["Ours"].controls == {}
    assert left_tables([scores]) == turned_tables([scores]) == []


def test_sampled_answers_say_what_is_missing_to_tell_a_gain_from_less_sampling(tmp_path):
    drawn = {"decoding": {"sample": True, "temperature": 1.0}}
    answered = {"Vanilla": said(odds_of), "VCD": knowing()}
    vcd = RunMethod("VCD", "vcd", {"beta": 0.1})
    (warning,) = scored(tmp_path / "a", answered, vcd, **drawn).warnings
    assert "no row has greedy decoding: a gain cannot be told from less sampling" in warning
    answered = {**answered, "greedy": knowing()}
    (warning,) = scored(tmp_path / "b", answered, vcd, GREEDY, **drawn).warnings
    assert "no row has min_p 0.1, a method's cut-off alone" in warning
    answered = {**answered, "min_p 0.1": knowing()}
    assert scored(tmp_path / "c", answered, vcd, GREEDY, MIN_P, **drawn).warnings == ()


def test_plain_answers_that_are_not_their_first_word_are_counted(tmp_path):
    answered = {"Vanilla": [replace(record, text="No.") for record in said(odds_of)]}
    (warning,) = scored(tmp_path / "run", answered).warnings
    yes = sum(odds_of(sample) > 0 for sample in SAMPLES)
    assert warning.startswith(f"{yes} of {len(SAMPLES)} plain answers are not the word that their first token favours")
