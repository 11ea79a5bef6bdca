"""Runs that asked COCO's POPE, on RePOPE's labels too: the figures of the same answers in files, and comparisons on both."""

import json
import shutil

import pytest

from mgap.benchmarks.pope.questions import read_questions
from mgap.errors import SettingError
from mgap.reports.relabelled import beside_new_labels, on_new_labels
from mgap.reports.report import report_files, sections
from mgap.reports.scores import score
from mgap.run.records import Record, Run, RunMethod
from mgap.types import Sample
from tests.pages.test_table_formats import check_latex
from tests.reports.html import check_page
from tests.reports.runs import PUBLISHED, answers, questions, write_run

SUFFIX = "\nAnswer the question using a single word or phrase."
SPLITS = ("popular", "adversarial")
COCO = {"name": "pope coco", "task": "yesno", "lexicon": {}, "sources": {}, "notes": []}


@pytest.fixture(scope="module")
def folder(shared, tmp_path_factory):
    """LLaVA-1.5-7B's answers, greedy and sampled, as a run of an earlier version keeps them."""
    samples, said = [], {"Greedy": [], "Sampled": []}
    for split in SPLITS:
        asked, _ = read_questions(shared / "data" / "pope" / "coco" / f"coco_pope_{split}.json")
        samples += [Sample(f"{split}/{q.id}", q.image, q.text + SUFFIX, split, q.label) for q in asked]
        for label, name in (("Greedy", "greedy"), ("Sampled", "sample")):
            lines = (shared / "data" / "real" / f"llava-7b-coco-{split}-{name}.jsonl").read_text().splitlines()
            rows = map(json.loads, lines)
            said[label] += [Record(f"{split}/{row['question_id']}", row["text"], tokens=2, milliseconds=1.0) for row in rows]
    methods = (RunMethod("Greedy", "vanilla"), RunMethod("Sampled", "vanilla"))
    place = tmp_path_factory.mktemp("runs") / "pope"
    experiment = {"title": "POPE (Table 1)", "axis": "", "published": PUBLISHED}
    return write_run(place, samples, said, *methods, benchmark=COCO, decoding={"sample": True}, experiment=experiment)


@pytest.fixture
def cached(shared, tmp_path, monkeypatch):
    """RePOPE's files in the cache."""
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "repope").mkdir(parents=True)
    for path in (shared / "data" / "repope").iterdir():
        shutil.copyfile(path, tmp_path / "cache" / "repope" / path.name)


def percent(part, figure):
    return round(100 * part.rates[figure].value, 2)


def test_an_old_run_has_the_figures_of_the_files_on_both_labels(folder, cached):
    scores = beside_new_labels(score(Run.load(folder)))
    other = scores.relabelled.scores
    greedy = {name: (part, other.results["Greedy"].groups[name]) for name, part in scores.results["Greedy"].groups.items()}
    figures = ("accuracy", "precision", "recall", "f1", "yes_ratio")
    assert [percent(greedy["popular"][0], name) for name in figures] == [85.90, 94.03, 76.67, 84.47, 40.77]
    assert [percent(greedy["popular"][1], name) for name in figures] == [90.25, 92.88, 84.16, 88.30, 39.64]
    assert greedy["adversarial"][1].counts == {"TP": 1009, "FP": 129, "TN": 1368, "FN": 178}
    assert [percent(part, "f1_repope") for part, _ in greedy.values()] == [88.30, 86.80]
    assert scores.relabelled.changes["adversarial"].kept == 2684
    against = scores.results["Sampled"].groups["popular"].against
    assert list(against.differences)[3:5] == ["f1", "f1_repope"]
    values = {name: round(100 * against.differences[name].value, 1) for name in ("f1", "f1_repope")}
    assert values == {"f1": -4.8, "f1_repope": -5.7}, "wrong labels hide a part of what sampling costs"
    assert against.differences["f1_repope"] == other.results["Sampled"].groups["popular"].against.differences["f1"]


def test_reports_have_both_side_by_side_and_say_what_became_of_the_questions(folder, cached):
    scores = beside_new_labels(score(Run.load(folder)))
    parts = {section.name: section for section in sections([scores])}
    (results,) = parts["results"].tables
    assert results.columns[:6] == ("Method", "Accuracy", "Precision", "Recall", "F1", "F1 (RePOPE)")
    assert parts["published"].tables[0].columns == ("", "Accuracy", "F1"), "nobody published figures on the new labels"
    changes, figures, differences = parts["relabelled"].tables
    rows = [[row.heading, *(cell.text for cell in row.cells)] for row in changes.groups[0].rows]
    assert rows == [["Popular", "2,727", "273", "139", "39"], ["Adversarial", "2,684", "316", "139", "33"]]
    assert "F1 (RePOPE)" in parts["paired"].tables[0].columns
    assert figures.caption.startswith("On RePOPE's labels. Percent")
    assert differences.caption.startswith("On RePOPE's labels. Differences")
    texts = report_files([scores])
    assert "F1 (RePOPE)" in check_page(texts["report.html"]).text()
    check_latex(texts["report.tex"])
    assert "- RePOPE: popular: 2,727 of 3,000 questions, labelled by RePOPE: 273 dropped" in texts["report.md"]
    (told,) = json.loads(texts["report.json"])["runs"]
    assert told["relabelled"]["splits"]["popular"] == {"kept": 2727, "dropped": 273, "flipped_to_no": 139, "flipped_to_yes": 39}
    assert told["methods"]["Greedy"]["groups"]["popular"]["rates"]["f1_repope"]["of"] == 2727


def test_the_command_writes_beside_the_scores_of_the_run(folder, run, shared):
    (folder / "scores.json").write_text("{}")
    status, out, told = run("score", folder, "--relabel", "repope", "--data", shared / "data", "--parser", "vcd")
    assert status == 0, told
    assert out.count("F1 (RePOPE)") == 2
    assert "| Popular | 2,727 | 273 | 139 | 39 |" in out
    assert (folder / "scores.json").read_text() == "{}"
    data = json.loads((folder / "scores.repope.json").read_text())
    assert data["scorer"]["parser"] == data["relabelled"]["scorer"]["parser"] == "vcd"
    assert data["relabelled"]["methods"]["Greedy"]["groups"]["popular"]["counts"]["TP"] == 1004


def test_without_the_labels_a_report_says_that_they_were_not_looked_at(folder, run, tmp_path, monkeypatch):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "empty"))
    scores = beside_new_labels(score(Run.load(folder)))
    assert scores.relabelled.scores is None
    assert "relabelled" not in {section.name for section in sections([scores])}
    assert "- RePOPE: RePOPE's labels are not on this machine" in report_files([scores])["report.md"]
    status, out, told = run("score", folder)
    assert (status, "RePOPE" in out) == (0, False)
    assert "note: RePOPE's labels are not on this machine, so nothing was scored on them: mgap fetch repope" in told


def test_the_labels_are_found_beside_the_questions_that_the_run_read(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "empty"))
    path = shared / "data" / "pope" / "coco" / "coco_pope_popular.json"
    (first, *_), _ = read_questions(path)
    sample = Sample(f"popular/{first.id}", first.image, first.text, "popular", first.label)
    plan = {"benchmark": {**COCO, "sources": {str(path): "0" * 64}}}
    place = write_run(tmp_path / "run", [sample], {"Vanilla": [Record(sample.id, "Yes")]}, **plan)
    assert beside_new_labels(score(Run.load(place))).relabelled.changes["popular"].kept == 1


def test_questions_of_ones_own_under_popes_names_are_scored_without(cached, tmp_path):
    samples = questions(groups=("random",))
    place = write_run(tmp_path / "run", samples, {"Vanilla": answers(samples)}, benchmark=COCO)
    scores = score(Run.load(place))
    beside = beside_new_labels(scores)
    assert beside.results == scores.results
    assert "12 of 12 questions are not among those that RePOPE labelled" in beside.relabelled.why_not


def test_runs_of_other_benchmarks_stay_as_they_are_and_are_refused_by_name(cached, shared, run, tmp_path):
    samples = questions()
    place = write_run(tmp_path / "run", samples, {"Vanilla": answers(samples)})
    scores = score(Run.load(place))
    assert beside_new_labels(scores) is scores
    status, out, told = run("score", place, "--relabel", "repope")
    assert (status, out) == (2, "")
    assert "its answers are to pocket-pope, and RePOPE labelled POPE on COCO only" in told
    distances = [Record(sample.id, extra={"distance": {"0": 1.0}}) for sample in samples]
    plan = {"benchmark": COCO, "departure": {"tau": 1.5, "k": 10, "delta": 0.05}}
    measured = score(Run.load(write_run(tmp_path / "departures", samples, {"Vanilla": distances}, **plan)))
    assert beside_new_labels(measured) is measured
    with pytest.raises(SettingError, match="RePOPE labelled POPE on COCO only"):
        on_new_labels(measured, None)
