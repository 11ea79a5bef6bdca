"""The page on why numbers differ: what it says of its own eight answers holds."""

import json
from pathlib import Path

import pytest

from mgap.benchmarks.pope.conventions import CONVENTIONS, figures_as
from mgap.benchmarks.pope.scorer import outcomes
from mgap.benchmarks.yesno_parsers import find_parser
from tests.benchmarks.labelled import score_labels

ROOT = Path(__file__).parents[2]


def lines(name):
    return [json.loads(line) for line in (ROOT / "examples/numbers" / name).read_text().splitlines()]


def table():
    """The page's table as rows of cells, the header first."""
    text = (ROOT / "docs/numbers.md").read_text()
    rows = text[text.index("| answer | label") :].split("\n\n")[0].splitlines()
    return [[cell.strip().strip("*") for cell in row.strip("|").split("|")] for row in rows]


COLUMNS = {place: name for place, cell in enumerate(table()[0][2:], start=2) for name in cell.split(", ")[:1]}


@pytest.mark.parametrize(("place", "parser"), COLUMNS.items())
def test_every_parser_reads_the_eight_answers_as_the_page_says(place, parser):
    questions, answers = lines("edge.questions.jsonl"), lines("edge.answers.jsonl")
    labels = [question["label"] for question in questions]
    verdicts = [find_parser(parser)(a["text"], label) for a, label in zip(answers, labels, strict=True)]
    rows = table()[2:]
    assert [row[0] for row in rows[:8]] == [answer["text"] for answer in answers]
    said = [row[place].split("**")[0].split(":")[0] for row in rows[:8]]
    assert said == ["?" if verdict is None else verdict for verdict in verdicts]
    if parser in CONVENTIONS:
        figures = figures_as(parser, outcomes(labels, verdicts).sum(0))
        accuracy, f1 = figures["accuracy"], figures["f1"]
    else:
        score = score_labels(labels, verdicts, range(8))
        accuracy, f1 = score.accuracy.value, score.f1.value
    assert [float(row[place].strip("*")) for row in rows[8:]] == [round(100 * accuracy, 1), round(100 * f1, 1)]
