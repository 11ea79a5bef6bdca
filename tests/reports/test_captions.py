"""Reports on captions: length beside every figure, and comparisons at equal length."""

import pytest

from mgap.reports.report import report_files
from mgap.reports.score_tables import matched_tables, score_tables
from mgap.reports.scores import score
from mgap.run.records import Record, Run
from mgap.types import Sample
from tests.pages.test_table_formats import check_latex
from tests.reports.html import check_page
from tests.reports.runs import answers, questions, write_run

BENCHMARK = {"name": "captions", "task": "captions", "lexicon": {}}
SAMPLES = [Sample(str(n), f"{n}.png", "Describe it.", "captions", ["dog"]) for n in range(8)]
LONG, SHORT = "There is a dog on the grass and also a cat.", "There is a dog on the grass."  # 11 words and 7


def told(text):
    return [Record(sample.id, text, tokens=len(text.split()), milliseconds=10) for sample in SAMPLES]


@pytest.fixture
def run(tmp_path):
    answered = {"Vanilla": told(LONG), "Ours": told(SHORT), "Longer": told(f"{LONG} It is a sunny day.")}
    return Run.load(write_run(tmp_path / "run", SAMPLES, answered, benchmark=BENCHMARK))


def test_length_and_recall_stand_in_every_table(run):
    (table,) = score_tables([score(run)])
    assert {"CHAIRs \u2193", "CHAIRi \u2193", "Recall", "Length"} <= set(table.columns)
    plain, ours, _ = (
        dict(zip(table.columns[1:], [cell.text for cell in row.cells], strict=True)) for row in table.groups[0].rows
    )
    assert (plain["CHAIRs \u2193"], ours["CHAIRs \u2193"]) == ("100.0", "0.0")
    assert (plain["Recall"], ours["Recall"]) == ("100.0", "100.0")


def test_what_a_method_gains_by_saying_less_is_gone_at_equal_length(run):
    scores = score(run, match_length=True)
    assert scores.results["Ours"].groups["captions"].against.differences["CHAIRs"].value == -1.0
    matched = scores.results["Ours"].matched
    assert matched.words == 7
    assert matched.groups["captions"].rates["CHAIRs"].value == 0.0
    assert matched.against["captions"].differences["CHAIRs"].value == 0.0
    (table,) = matched_tables([scores])
    assert [row.heading for row in table.groups[0].rows] == ["Ours", "Vanilla, cut after 7 words", "difference"]
    assert table.groups[1].rows[1].heading == "Vanilla, whole", "it is no longer than the method"
    assert scores.results["Vanilla"].matched is None
    assert matched_tables([score(run)]) == []


def test_a_report_on_captions_has_all_parts(run):
    files = report_files([score(run, match_length=True)])
    page = check_page(files["report.html"])
    assert "corrected" in page.text()
    assert "## At equal length" in files["report.md"]
    check_latex(files["report.tex"])


def test_questions_are_not_cut(tmp_path):
    samples = questions()
    folder = write_run(tmp_path / "run", samples, {"Vanilla": answers(samples), "Ours": answers(samples)})
    assert score(Run.load(folder), match_length=True).results["Ours"].matched is None
