"""Reports on captions: length beside every figure, comparisons at equal length and recall, and unfinished last sentences."""

import json

import pytest

from mgap.benchmarks.answer_texts import Dropped
from mgap.errors import SettingError
from mgap.reports.report import facts_of, report_files
from mgap.reports.score_tables import matched_tables, paired_tables, score_tables
from mgap.reports.scores import score
from mgap.run.records import Record, Run
from mgap.types import Sample
from tests.pages.test_table_formats import check_latex
from tests.reports.html import check_page
from tests.reports.runs import answers, questions, write_run

BENCHMARK = {"name": "captions", "task": "captions", "lexicon": {}}
SAMPLES = [Sample(str(n), f"{n}.png", "Describe it.", "captions", ["dog"]) for n in range(8)]
LONG, SHORT = "There is a dog on the grass and also a cat.", "There is a dog on the grass."  # 11 words and 7


def told(text, stop=""):
    return [Record(sample.id, text, tokens=len(text.split()), stop=stop, milliseconds=10) for sample in SAMPLES]


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


def test_at_equal_recall_a_method_that_recalls_as_much_in_fewer_words_keeps_its_gain(tmp_path):
    answered = {"Vanilla": told("There is a cat and a dog."), "Ours": told(SHORT), "Silent": told("Nothing.")}
    scores = score(Run.load(write_run(tmp_path / "run", SAMPLES, answered, benchmark=BENCHMARK)), match_recall=True)
    matched = scores.results["Ours"].matched_recall
    assert matched is not None
    assert (matched.words, scores.results["Ours"].matched) == (None, None), "plain captions do not recall more"
    assert matched.against["captions"].differences["CHAIRi"].value == -0.5
    silent = scores.results["Silent"].matched_recall
    assert (silent.words, silent.groups["captions"].rates["recall"].value) == (1, 0.0)
    (table,) = matched_tables([scores], "recall")
    assert [group.rows[1].heading for group in table.groups] == ["Vanilla, whole", "Vanilla, cut after 1 words"]
    assert table.caption.startswith("At equal recall: ")
    assert matched_tables([scores]) == []


@pytest.fixture
def limited(tmp_path):
    """Captions that a limit cut off, and captions that the model ended itself."""
    answered = {
        "Vanilla": told("There is a dog. There is a cat and", "length"),
        "Ours": told("There is a dog. There is a cat", "end"),
        "Endless": told("a dog and a cat", "length"),
    }
    return Run.load(write_run(tmp_path / "run", SAMPLES, answered, benchmark=BENCHMARK, scoring={"unfinished": "drop"}))


def test_unfinished_last_sentences_are_dropped_from_answers_that_the_limit_cut_off(limited):
    scores = score(limited)
    flawed = {label: result.groups["captions"].rates["CHAIRs"].value for label, result in scores.results.items()}
    assert flawed == {"Vanilla": 0.0, "Ours": 1.0, "Endless": 1.0}
    assert {label: result.dropped for label, result in scores.results.items()} == {
        "Vanilla": Dropped(shortened=8, without_end=0), "Ours": Dropped(0, 0), "Endless": Dropped(0, 8),
    }  # fmt: skip
    kept = score(limited, unfinished="keep")
    assert {result.groups["captions"].rates["CHAIRs"].value for result in kept.results.values()} == {1.0}
    assert {result.dropped for result in kept.results.values()} == {None}


def test_every_score_of_captions_says_what_became_of_unfinished_sentences(limited):
    for unfinished, said in (("keep", "are kept."), ("drop", "of answers that the model did not end itself are dropped.")):
        scores = score(limited, unfinished=unfinished, match_length=True, match_recall=True)
        data = json.loads(json.dumps(scores.to_json()))
        assert data["scorer"] == {"task": "captions", "language": "builtin", "unfinished": unfinished}
        tables = [
            *score_tables([scores]),
            *paired_tables([scores]),
            *matched_tables([scores]),
            *matched_tables([scores], "recall"),
        ]
        assert len(tables) == 4
        assert all(f"Unfinished last sentences {said}" in table.caption for table in tables)
        assert f"unfinished {unfinished}" in dict(facts_of(scores))["Scored with"]
    counted = data["methods"]["Vanilla"]["dropped"]
    assert counted == {"shortened": 8, "without_end": 0}
    (first, *_) = tables[0].notes
    assert first == ("Vanilla: 8 captions lost an unfinished last sentence; 0 without the end of any sentence were kept whole")


def test_runs_that_differ_in_the_convention_are_named_with_theirs(limited):
    other = Run.load(write_run(limited.folder.parent / "other", SAMPLES, {"Vanilla": told(LONG)}, benchmark=BENCHMARK))
    (table,) = score_tables([score(limited), score(other)])
    assert "pocket/llava (run): Unfinished last sentences of answers that the model did not end itself are" in table.caption
    assert "pocket/llava (other): Unfinished last sentences are kept." in table.caption


def test_a_cut_baseline_loses_what_the_cut_leaves_unfinished(limited):
    scores = score(limited, match_length=True, against="Ours")
    matched = scores.results["Vanilla"].matched  # four words under drop, and the baseline is cut to them
    assert matched.words == 4
    assert matched.groups["captions"].rates["CHAIRs"].value == 0.0


def test_a_report_on_captions_has_all_parts(run):
    files = report_files([score(run, match_length=True, match_recall=True)])
    page = check_page(files["report.html"])
    assert "corrected" in page.text()
    assert "## At equal length" in files["report.md"]
    assert "## At equal recall" in files["report.md"]
    check_latex(files["report.tex"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"match_length": True}, "match_length cuts captions, and .* has answers to questions only: leave it out"),
        ({"match_recall": True}, "match_recall cuts captions, and .* has answers to questions only: leave it out"),
        ({"unfinished": "drop"}, "unknown setting 'unfinished' of yes/no scores"),
    ],
)
def test_what_acts_on_captions_is_refused_for_questions(tmp_path, settings, message):
    samples = questions()
    folder = write_run(tmp_path / "run", samples, {"Vanilla": answers(samples), "Ours": answers(samples)})
    with pytest.raises(SettingError, match=message):
        score(Run.load(folder), **settings)
