"""What printed figures imply, against counts that are known, and against every POPE row of the paper."""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mgap.benchmarks.pope.printed_figures import Confusion, Printed, imply, read_table
from mgap.cli.main import app
from mgap.errors import BenchmarkError, SettingError

TABLE = Path(__file__).parents[3] / "docs" / "numbers" / "pope.csv"


def printed(tp, fp, positives=1500, negatives=1500, cut=False):
    """The row that these counts give, rounded to two decimals or cut after them."""

    def show(part, whole):
        hundredths = 10_000 * part / whole
        return (int(hundredths) if cut else round(hundredths)) / 100

    n = positives + negatives
    figures = show(tp + negatives - fp, n), show(tp, tp + fp), show(2 * tp, tp + fp + positives)
    return Printed(*figures, questions=n, positives=positives)


@given(tp=st.integers(1, 1500), fp=st.integers(0, 1500), cut=st.booleans())
def test_figures_that_come_from_answers_are_exact_and_lead_back_to_them(tp, fp, cut):
    found = imply(printed(tp, fp, cut=cut))
    assert found.verdict == "exact"
    assert Confusion(tp, fp) in found.counts
    assert found.accuracy_exists


@given(tp=st.integers(600, 1500), fp=st.integers(0, 300))
def test_every_pair_implies_the_recall_and_the_third_figure(tp, fp):
    row = printed(tp, fp, positives=1500, negatives=1410)
    found = imply(row)
    recalls = (found.recall_by_accuracy_and_precision, found.recall_by_precision_and_f1)
    assert all(recall == pytest.approx(100 * tp / 1500, abs=0.1) for recall in recalls)
    assert found.f1_by_accuracy_and_precision == pytest.approx(row.f1, abs=0.05)
    assert found.accuracy_by_precision_and_f1 == pytest.approx(row.accuracy, abs=0.05)
    if row.f1 < 99:  # few errors leave accuracy and F1 little to tell the recall from
        assert found.recall_by_accuracy_and_f1 == pytest.approx(100 * tp / 1500, abs=2)


def test_a_precision_of_one_half_leaves_the_recall_open():
    assert imply(Printed(50.0, 50.0, 60.0)).recall_by_accuracy_and_precision is None


def test_an_accuracy_between_two_counts_does_not_exist():
    assert not imply(Printed(88.88, 89.70, 89.76)).accuracy_exists
    assert imply(Printed(88.87, 89.70, 89.76)).accuracy_exists
    assert imply(Printed(88.86, 89.70, 89.76)).accuracy_exists  # 2666 of 3000 is 88.8667, cut


def test_one_digit_wrong_is_found():
    assert imply(Printed(90.60, 92.89, 90.34)).verdict == "exact"
    found = imply(Printed(90.60, 92.89, 89.34))
    assert (found.verdict, found.counts) == ("inconsistent", ())
    assert found.f1_by_accuracy_and_precision == pytest.approx(90.34, abs=0.01)
    assert found.counts_by_accuracy_and_precision == (Confusion(1319, 101),)


@pytest.mark.parametrize("wrong", [{"accuracy": 101}, {"f1": -1}, {"positives": 3000}, {"positives": 0}])
def test_impossible_figures_are_refused(wrong):
    with pytest.raises(SettingError):
        Printed(**{"accuracy": 80, "precision": 80, "f1": 80, **wrong})


def test_all_rows_of_the_paper_agree_with_the_published_check(shared):
    rows = json.loads((shared / "specs/benchmarks/paper_pope_rows.json").read_text())
    assert len(rows) == 90
    for row in rows:
        found = imply(Printed(row["acc"], row["prec"], row["f1"]))
        status = {"exact": "exact", "near": "rounding-level", "inconsistent": "inconsistent"}[found.verdict]
        status += "" if found.accuracy_exists else " + accuracy off the 1/3000 grid"
        assert status == row["status"], row
        assert [{"TP": c.true_positives, "FP": c.false_positives} for c in found.counts] == row["counts"]
        pairs = found.counts_by_accuracy_and_precision
        assert [{"TP": c.true_positives, "FP": c.false_positives} for c in pairs] == row["counts_from_acc_prec"]
        for ours, theirs in (
            (found.recall_by_accuracy_and_precision, "recall_from_acc_prec"),
            (found.recall_by_precision_and_f1, "recall_from_prec_f1"),
            (found.accuracy_by_precision_and_f1, "acc_implied_by_prec_f1"),
            (found.f1_by_accuracy_and_precision, "f1_implied_by_acc_prec"),
        ):
            assert ours == pytest.approx(row[theirs], abs=0.00501), row


def test_the_table_of_the_docs_holds_the_papers_rows(shared):
    rows = json.loads((shared / "specs/benchmarks/paper_pope_rows.json").read_text())
    ours = [(line["model"], line["split"]) for line in csv.DictReader(TABLE.read_text().splitlines())]
    assert ours == [(row["backbone"], row["split"]) for row in rows]
    figures = [(row.accuracy, row.precision, row.f1) for row in read_table(TABLE)]
    assert figures == [(row["acc"], row["prec"], row["f1"]) for row in rows]


def test_the_command_counts_the_verdicts_of_a_table():
    done = CliRunner().invoke(app, ["score", "implied", str(TABLE)])
    assert done.exit_code == 0, done.output
    assert "90 rows: 42 exact, 10 near, 38 inconsistent; 15 with an accuracy" in done.output
    assert len(json.loads(CliRunner().invoke(app, ["score", "implied", str(TABLE), "--json"]).output)) == 90


def test_the_command_tells_of_one_row():
    figures = ["--accuracy", "88.88", "--precision", "89.70", "--f1", "89.76"]
    done = CliRunner().invoke(app, ["score", "implied", *figures])
    assert done.exit_code == 0
    assert "recall by accuracy and precision  87.85" in done.output
    assert "no number of right answers out of 3000 prints as 88.88" in done.output
    assert done.output.endswith("inconsistent\n")
    as_json = json.loads(CliRunner().invoke(app, ["score", "implied", *figures, "--json"]).output)
    assert as_json["verdict"] == "inconsistent"


def test_the_command_refuses_half_a_row_and_a_row_beside_a_table():
    runner = CliRunner()
    assert isinstance(runner.invoke(app, ["score", "implied", "--accuracy", "80"]).exception, SettingError)
    assert isinstance(runner.invoke(app, ["score", "implied", str(TABLE), "--f1", "80"]).exception, SettingError)


@pytest.mark.parametrize("text", ["", "accuracy,precision\n80,80\n", "accuracy,precision,f1\n80,80,much\n"])
def test_a_table_that_cannot_be_read_is_refused(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(BenchmarkError):
        read_table(path)
