"""Plots, pages and folders: self-contained, escaped, and refused in time."""

import os
import sys

import pytest
from jinja2 import UndefinedError
from PIL import Image

from mgap.benchmarks.statistics import Rate, wilson
from mgap.errors import SettingError
from mgap.io.output_folder import check_folder, write_files
from mgap.pages.html_page import Cell, PagePicture, PageToken, RowGroup, Table, TableRow, render_page, visible
from mgap.pages.plots import MARKS, SYMBOLS, plot_rates
from mgap.types import Candidate, Step
from tests.reports.html import Page, check_page

NASTY = '<script>alert("1")</script> & \'<b>'
RATES = {split: {"vanilla": wilson(70, 100), "MGAP": wilson(80, 100)} for split in ("random", "popular", "adversarial")}


def demo_content(**changes):
    answer = {"label": NASTY, "text": NASTY, "verdict": "right", "verdict_label": NASTY, "note": NASTY, "tokens": []}
    answer["tokens"] = [PageToken(NASTY, "0.10", 0.2, NASTY, NASTY)]
    case = {
        "title": NASTY, "why": NASTY, "picture": PagePicture.of(Image.new("RGB", (4, 4)), NASTY), "drawn": NASTY,
        "question": NASTY, "truth_label": NASTY, "truth": NASTY,
        "answers": [answer, {**answer, "text": "", "tokens": [], "verdict": None}],
    }  # fmt: skip
    table = Table(NASTY, (NASTY, NASTY), [RowGroup(NASTY, (TableRow(NASTY, (Cell(NASTY, NASTY),)),))])
    change = {"picture": case["picture"], "verdict": "right",
              **dict.fromkeys(("question", "truth", "before", "after", "effect"), NASTY)}  # fmt: skip
    content = {
        "change_about": NASTY, "changes": [change],
        "title": NASTY, "model": NASTY, "labels": [NASTY], "symbols": SYMBOLS, "cases": [case], "pope_about": [NASTY],
        "pope_table": table, "plots": [plot_rates("Precision", RATES)], "caption_about": NASTY, "caption_table": table,
        "command": NASTY, "facts": [(NASTY, NASTY)],
    }  # fmt: skip
    return {**content, **changes}


def test_a_page_holds_everything_and_escapes_every_text():
    source = render_page("demo.html.j2", **demo_content())
    page = check_page(source)
    assert "<script" not in source
    assert "<b>" not in source
    assert NASTY in page.text()
    assert page.all("img")[0]["alt"] == NASTY
    assert "(an empty answer)" in page.text()


def test_a_page_that_lacks_something_is_an_error():
    content = demo_content()
    del content["facts"]
    with pytest.raises(UndefinedError, match="facts"):
        render_page("demo.html.j2", **content)


def test_a_plot_takes_its_colours_from_the_page_and_says_its_figures():
    plot = plot_rates("Precision", RATES)
    assert "random: vanilla 70.0 [60.4, 78.1], MGAP 80.0" in plot.text
    assert all(f"var(--series-{n})" in plot.svg for n in (0, 1))
    assert "currentColor" in plot.svg
    assert "#0102" not in plot.svg, "a stand-in colour is left"
    assert "http" not in plot.svg
    assert "<style" not in plot.svg
    page = Page(plot.svg)
    referred = {a["href"].lstrip("#") for a in page.all("use")}
    assert referred
    assert referred <= {a["id"] for _, a in page.tags if "id" in a}


def test_plots_of_one_page_share_no_id():
    ids = [{a["id"] for _, a in Page(plot_rates(title, RATES).svg).tags if "id" in a} for title in ("Precision", "Says yes")]
    assert not ids[0] & ids[1]


def test_the_same_rates_give_the_same_plot():
    assert plot_rates("F1", RATES) == plot_rates("F1", RATES)


def test_a_series_may_be_missing_and_a_rate_may_have_no_interval():
    plot = plot_rates("Recall", {"a": {"x": Rate(0.0, 0.0, 1.0, 0)}, "b": {"x": Rate(1.0, 1.0, 1.0, 3), "y": wilson(1, 2)}})
    assert "y 50.0" in plot.text


def test_more_series_than_can_be_told_apart_are_refused():
    assert len(MARKS) == len(SYMBOLS)
    with pytest.raises(SettingError, match="7 series"):
        plot_rates("F1", {"a": {str(n): wilson(1, 2) for n in range(7)}})


@pytest.mark.parametrize(
    ("token", "shown"), [(" dog", "dog"), ("", "\u2205"), (" ", "\u2423"), ("\n", "\u23ce"), ("  \n", "\u2423")]
)
def test_every_token_can_be_seen(token, shown):
    assert visible(token) == shown


def test_a_token_shows_what_it_replaced():
    step = Step(2, " blue", {"entropy": 1.0, "beta": 0.3}, (Candidate(1, " yellow", 0.6),), (Candidate(2, " blue", 0.5),))
    token = PageToken.of(step, "beta", largest=0.75)
    assert (token.text, token.number, token.instead) == ("blue", "0.30", "yellow")
    assert token.shade == pytest.approx(0.4)
    assert token.note == "entropy 1.000, beta 0.300; without the method: yellow 60%"
    same = Step(2, " blue", {"beta": 0.0}, (Candidate(2, " blue", 0.6),), (Candidate(2, " blue", 0.6),))
    assert PageToken.of(same, "beta", largest=0.0).instead is None
    assert PageToken.of(same, "beta", largest=0.0).shade == 0.0


def test_files_are_written_one_by_one_and_others_stay(tmp_path):
    out = tmp_path / "deep" / "out"
    check_folder(out, ["a.txt"])
    assert not out.parent.exists(), "checking leaves nothing behind"
    assert write_files(out, {"a.txt": "\u03b1"}) == [out / "a.txt"]
    (out / "mine.txt").write_text("mine")
    check_folder(out, ["a.txt"])
    write_files(out, {"a.txt": "2"})
    assert sorted(path.name for path in out.iterdir()) == ["a.txt", "mine.txt"]
    assert (out / "a.txt").read_text() == "2"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "out" / "a.txt").mkdir(parents=True)
    for folder, message in (("file", "is a file"), ("file/below", "is a file"), ("out", "is a folder where a file must go")):
        with pytest.raises(SettingError, match=message):
            check_folder(tmp_path / folder, ["a.txt"])
    with pytest.raises(SettingError, match="cannot be written"):
        write_files(tmp_path / "file", {"a.txt": ""})


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that nobody may write to")
def test_a_folder_without_leave_to_write_is_refused(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    folder = "/proc/here" if os.geteuid() == 0 else closed / "out"  # nothing is closed to root but the kernel's own
    with pytest.raises(SettingError, match="nothing can be written there"):
        check_folder(folder, ["a.txt"])
