"""Reports of runs, as `mgap score` and `mgap report` write them."""

import json

import pytest

from mgap.errors import SettingError
from mgap.reports.examples import SHOWN, changes
from mgap.reports.published_comparison import beside_tables
from mgap.reports.report import FILES, report_files, sections
from mgap.reports.score_tables import clock, effort_table, paired_tables, score_tables
from mgap.reports.scores import score
from mgap.run.records import Record, Run, RunMethod
from tests.pages.test_table_formats import check_latex, parse_markdown
from tests.reports.html import Page, check_page
from tests.reports.runs import PUBLISHED, answers, questions, write_run

SAMPLES = questions()
NASTY = '<script>alert("1")</script> & \'<b>'
EXPERIMENT = {"title": "POPE (Table 1)", "axis": "", "published": PUBLISHED}


@pytest.fixture
def run(run, tmp_path):
    """A run of two methods, and `mgap WORDS` in this process: exit status, standard output and standard error."""
    wrong = [f"random/{n}" for n in range(1, 12, 2)]
    answered = {"Vanilla": answers(SAMPLES, wrong), "Ours": answers(SAMPLES, ["adversarial/1"], seconds=1.0)}
    folder = write_run(tmp_path / "runs" / "pope", SAMPLES, answered, experiment=EXPERIMENT)

    def call(*words):
        return run(*words)

    call.folder = folder
    return call


def test_score_prints_tables_and_writes_json(run):
    status, out, err = run("score", run.folder, "--wide")
    assert status == 0
    assert "| Random | Vanilla | 50.0 (" in out
    assert "wrote" in err
    data = json.loads((run.folder / "scores.json").read_text())
    assert data["methods"]["Vanilla"]["groups"]["random"]["rates"]["accuracy"]["value"] == 0.5
    assert run("score", run.folder, "--parser", "vcd", "--against", "Ours")[0] == 0
    data = json.loads((run.folder / "scores.json").read_text())
    assert (data["baseline"], data["scorer"]["parser"]) == ("Ours", "vcd")


def test_report_writes_four_files_beside_the_run(run):
    status, out, _ = run("report", run.folder)
    assert status == 0
    assert out.split() == [str(run.folder / name) for name in FILES]
    page = check_page((run.folder / "report.html").read_text())
    assert page.rows[2][:2] == ["Vanilla", "50.0 50.0 to 50.0"]
    check_latex((run.folder / "report.tex").read_text())
    data = json.loads((run.folder / "report.json").read_text())
    assert len(data["runs"]) == 1
    assert set(data["tables"]) == {"results", "published", "paired", "time", "answers"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "Mine"], "compare against one of Vanilla, Ours"),
        (["--beside", "GPT"], "Table 1 has no backbone 'GPT': choose from LLaVA-1.5-7B"),
        (["--language", "nltk"], "language"),
        (["--set", "parser"], "not of the form key=value"),
        (["--parser", "none"], "parser"),
    ],
)
def test_report_refuses_in_one_sentence(run, words, message):
    status, _, err = run("report", run.folder, *words)
    assert status == 2
    assert message in err
    assert not (run.folder / "report.md").exists()


def test_report_needs_a_run(run, tmp_path):
    assert run("report", tmp_path / "nowhere")[0] == 2
    assert run("report", run.folder, run.folder)[0] == 2


def test_runs_stand_side_by_side(run, tmp_path):
    model = {"name": "pocket/qwen3-vl", "family": "qwen3_vl"}
    other = write_run(tmp_path / "runs" / "qwen", SAMPLES, {"Vanilla": answers(SAMPLES)}, model=model, experiment=EXPERIMENT)
    assert run("report", run.folder, other)[0] == 0
    text = (tmp_path / "runs" / "report.md").read_text()
    assert "| Random, pocket/llava | Vanilla |" in text
    assert "| Random, pocket/qwen3-vl | Vanilla |" in text
    check_page((tmp_path / "runs" / "report.html").read_text())
    far = write_run(tmp_path / "far" / "qwen", SAMPLES, {"Vanilla": answers(SAMPLES)})
    status, _, err = run("report", run.folder, far)
    assert (status, "--out" in err) == (2, True)
    assert run("report", run.folder, far, "--out", tmp_path / "out")[0] == 0
    assert "pocket/llava (pope)" in (tmp_path / "out" / "report.md").read_text(), "the same model twice"


def scores_of(folder, answered, *methods, **plan):
    return score(Run.load(write_run(folder, SAMPLES, answered, *methods, **plan)))


def test_markdown_has_the_scores(tmp_path):
    scores = scores_of(tmp_path / "run", {"Vanilla": answers(SAMPLES, ["random/1"]), "Ours": answers(SAMPLES)})
    text = report_files([scores])["report.md"]
    results = text[text.index("## Results") : text.index("## What")]
    head, first, *_ = parse_markdown(results)
    part = scores.results["Vanilla"].groups["random"]
    for name in ("accuracy", "precision", "recall", "f1"):
        shown = first[head.index({"f1": "F1"}.get(name, name.capitalize()))]
        rate = part.rates[name]
        assert shown == f"{100 * rate.value:.1f} ({100 * rate.low:.1f} to {100 * rate.high:.1f})"
    assert first[head.index("Samples")] == "12"


def test_published_figures_stand_beside_ours(tmp_path):
    found = {"Vanilla": answers(SAMPLES, ["random/1"]), "Ours": answers(SAMPLES)}
    scores = scores_of(tmp_path / "run", found, experiment=EXPERIMENT)
    (table,) = beside_tables([scores])
    assert table.spans == (("Random", 2),)
    rows = {(group.heading, row.heading): [cell.text for cell in row.cells] for group in table.groups for row in group.rows}
    assert rows == {
        ("Vanilla", "pocket/llava, measured"): ["91.67", "92.31"],
        ("Vanilla", "LLaVA-1.5-7B, published \u2020"): ["88.88", "89.76"],
        ("VCD", "LLaVA-1.5-7B, published"): ["87.57", "\u2014"],
        ("Ours", "pocket/llava, measured"): ["100.00", "100.00"],
    }
    assert table.notes == ("\u2020 LLaVA-1.5-7B, Vanilla: cannot be",)
    assert "compare directions" in table.caption


def test_a_model_of_no_printed_family_stands_alone_unless_one_is_named(tmp_path):
    model = {"name": "mine", "family": "internvl"}
    scores = scores_of(tmp_path / "run", {"Vanilla": answers(SAMPLES)}, model=model, experiment=EXPERIMENT)
    assert beside_tables([scores]) == []
    assert len(beside_tables([scores], "LLaVA-1.5-7B")) == 1
    with pytest.raises(SettingError, match="no backbone 'x'"):
        beside_tables([scores], "x")


def test_times_stand_beside_printed_ones_with_their_ratio(tmp_path):
    rows = {"Vanilla": [1437, 0.48], "Ours": {"figures": [3144, 1.05], "note": "two passes"}}
    printed = {
        "table": "Table 6",
        "columns": ["total", "seconds"],
        "backbones": [{"name": "X", "family": "llava", "rows": rows}],
    }
    found = {"Vanilla": answers(SAMPLES, seconds=0.5), "Ours": answers(SAMPLES, seconds=5)}
    scores = scores_of(tmp_path / "run", found, experiment={"title": "Time", "published": printed})
    (table,) = beside_tables([scores])
    ours, theirs = table.groups[1].rows
    assert [cell.text for cell in ours.cells] == ["2:00", "5", "10.00"]
    assert [cell.text for cell in theirs.cells] == ["52:24", "1.05", "2.19"]
    assert effort_table([scores]).groups[0].rows[1].cells[2].text == "10.00"


@pytest.mark.parametrize(("seconds", "shown"), [(1437, "23:57"), (6414, "1:46:54"), (59.94, "59.9 s"), (3600, "1:00:00")])
def test_times_are_shown_as_on_a_clock(seconds, shown):
    assert clock(seconds) == shown


def test_noise_is_marked(tmp_path):
    wrong = [sample.id for sample in SAMPLES if sample.truth == "no"]
    found = {"Vanilla": answers(SAMPLES, wrong), "Ours": answers(SAMPLES), "Near": answers(SAMPLES, wrong[1:])}
    (table,) = paired_tables([scores_of(tmp_path / "run", found)])
    ours, near = table.groups[0].rows
    assert (ours.cells[0].text, ours.cells[0].tone) == ("+50.0", "right")
    assert (near.cells[0].tone, near.cells[0].small.endswith("noise")) == ("unclear", True)
    assert [cell.text for cell in ours.cells[-3:]] == ["6", "0", "0.031"]
    assert ours.cells[2].small == "same", "recall does not change"


def test_a_sweep_is_drawn_as_lines(tmp_path):
    methods = [RunMethod(f"alpha {x}", "mgap", {"alpha": x}, x=x) for x in (0.0, 0.5, 1.0)]
    found = {
        method.label: answers(SAMPLES, [f"random/{2 * n + 1}" for n in range(int(4 - 4 * method.x))]) for method in methods
    }
    scores = scores_of(tmp_path / "run", found, *methods, experiment={"title": "sweep", "axis": "alpha"})
    page = check_page(report_files([scores])["report.html"])
    labels = [a["aria-label"] for _, a in page.tags if a.get("role") == "img"]
    assert labels[0].startswith("F1, percent with 95% intervals. random: alpha 0 75.0")
    assert "adversarial: alpha 0 100.0" in labels[0]
    assert len(labels) == 3


def test_departures_are_a_table_and_lines(tmp_path):
    def far(share, strengths):
        return [
            Record(s.id, extra={"distance": {k: 9.0 if n < share * float(k) * 24 else 0.0 for k in strengths}}, milliseconds=1)
            for n, s in enumerate(SAMPLES)
        ]

    strengths = ("0", "0.5", "1")
    rows = {"Vanilla": [150, None, None], "VCD": [150, 2589, 3000]}
    printed = {
        "table": "Table 7",
        "columns": list(strengths),
        "of": 3000,
        "backbones": [{"name": "X", "family": "llava", "rows": rows}],
    }
    found = {"Vanilla": far(0, ("0",)), "VCD": far(1, strengths)}
    plan = {"departure": {"tau": 1.0, "k": 10}, "experiment": {"title": "Departure", "published": printed}}
    scores = scores_of(tmp_path / "run", found, **plan)
    (table,) = score_tables([scores])
    assert [cell.text for cell in table.groups[0].rows[1].cells] == ["0.0", "50.0", "100.0", "24"]
    assert [cell.text for cell in table.groups[0].rows[0].cells] == ["0.0", "\u2014", "\u2014", "24"]
    (table,) = beside_tables([scores])
    ours, theirs = table.groups[1].rows
    assert [(cell.text, cell.small) for cell in ours.cells][1] == ("50.0", "12 of 24")
    assert [(cell.text, cell.small) for cell in theirs.cells][1] == ("86.3", "2589 of 3000")
    assert [section.name for section in sections([scores])] == ["results", "published", "answers"]
    assert changes(scores) == []
    page = check_page(report_files([scores])["report.html"])
    assert next(a["aria-label"] for _, a in page.tags if a.get("role") == "img").startswith("Departed states")


def test_ties_have_a_column_once_an_answer_has_one(run, tmp_path):
    none = {"Vanilla": answers(SAMPLES, tied=[]), "Ours": answers(SAMPLES, tied=[]), "Older": answers(SAMPLES)}
    old = {"random/1": Record("random/1", "No.", milliseconds=1)}
    some = {**none, "Vanilla": answers(SAMPLES, tied=["random/2", "random/3"], **old)}
    for name, found in (("none", none), ("some", some)):
        status, short, _ = run("score", write_run(tmp_path / name, SAMPLES, found))
        assert ("Tied" in short) == (name == "some")
        status, out, _ = run("score", tmp_path / name, "--wide")
        assert status == 0
        assert ("Tied" in out) == (name == "some")
    head, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
    at = head.index("Tied")
    assert head[at - 1 :] == ["Unparsed", "Tied", "Samples"]
    shown = [row[at] for row in rows[1:7]]
    assert shown == ["2 (of 11)", "0", "\u2014", "0", "0", "\u2014"]
    scores = [score(Run.load(tmp_path / name)) for name in ("none", "some")]
    assert all("Tied" in text for text in report_files(scores[1:]).values())
    assert not any("Tied" in text for text in report_files(scores[:1]).values())
    (table,) = score_tables(scores)
    assert [cell.text for cell in table.groups[0].rows[0].cells[-2:]] == ["0", "12"], "beside one another, both have the column"


def test_examples_are_spread_over_all_that_changed(tmp_path):
    wrong = [f"random/{n}" for n in range(1, 12, 2)]
    found = {"Vanilla": answers(SAMPLES, wrong), "Ours": answers(SAMPLES, ["adversarial/1"]), "Same": answers(SAMPLES, wrong)}
    (change,) = changes(scores_of(tmp_path / "run", found))
    assert (change.label, change.gained, change.lost) == ("Ours", 6, 1)
    assert [example.sample for example in change.examples] == ["random/1", "random/5", "random/9", "adversarial/1"]
    assert [example.tone for example in change.examples] == ["right"] * SHOWN + ["wrong"]
    assert (change.examples[0].before, change.examples[0].after, change.examples[0].truth) == ("Yes.", "No.", "no")


def test_every_text_is_escaped(tmp_path):
    samples = [sample.__class__(sample.id, NASTY, NASTY, sample.group, sample.truth) for sample in SAMPLES]
    nasty = RunMethod(NASTY, "mgap", {"alpha": NASTY}, {"prompts": NASTY})
    special = {"random/1": Record("random/1", f"No {NASTY}", milliseconds=1), "random/3": Record("random/3", failed=NASTY)}
    found = {"Vanilla": answers(samples, ["random/1"]), nasty.label: answers(samples, **special)}
    printed = {**PUBLISHED, "table": NASTY, "note": NASTY}
    folder = write_run(
        tmp_path / "run", samples, found, nasty, command=NASTY, model={"name": NASTY, "family": "llava"},
        experiment={"title": NASTY, "published": printed}, versions={NASTY: NASTY},
    )  # fmt: skip
    files = report_files([score(Run.load(folder))])
    check_page(files["report.html"])
    assert "<script" not in files["report.html"]
    assert "<b>" not in files["report.html"]
    assert NASTY in Page(files["report.html"]).text()
    check_latex(files["report.tex"])
    assert json.loads(files["report.json"])["runs"][0]["title"] == NASTY


def test_a_terminal_gets_short_tables_that_fit_and_wide_all_columns(run):
    status, short, err = run("score", run.folder)
    assert status == 0
    assert max(map(len, short.splitlines())) <= 100
    assert "--wide" in err
    assert "**Random**: " in short, "the verdict"
    assert "| Random | Vanilla | 50.0 | 50.0 | 100.0 | 66.7 (" in short
    assert "Unparsed" not in short
    saved = (run.folder / "scores.json").read_bytes()
    status, wide, err = run("score", run.folder, "--wide")
    assert status == 0
    assert "--wide" not in err
    assert "| group | Method | Accuracy | Precision | Recall | F1 | Says yes | Words | Unparsed | Samples |" in wide
    assert "A shift: to no" not in short
    assert (run.folder / "scores.json").read_bytes() == saved, "what is written does not depend on what is printed"


def test_distances_have_neither_a_verdict_nor_short_tables(run, tmp_path):
    far = [Record(s.id, extra={"distance": {"0": 0.0, "1": n / 4}}, milliseconds=1) for n, s in enumerate(SAMPLES)]
    folder = write_run(tmp_path / "departures", SAMPLES, {"VCD": far}, departure={"tau": 1.0, "k": 10})
    status, out, err = run("score", folder)
    assert status == 0, err
    assert out == run("score", folder, "--wide")[1]
    assert "--wide" not in err
    assert "best" not in out
