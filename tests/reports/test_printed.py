"""Figures for print: what is written, in which look, and which run gives which."""

import csv
import json
import math
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from PIL import Image

from mgap.diagnosis.manifold_figure import BLIND, JOINT, TRUTH, ManifoldPicture, PathPoint, print_manifold
from mgap.diagnosis.subspace_figures import print_angles, print_spectrum, print_subspaces
from mgap.errors import CorruptFile, SettingError
from mgap.io.output_folder import write_files
from mgap.pages.plots import tick_labels_fit
from mgap.pages.point_labels import label_points
from mgap.pages.print_figures import (
    COLOURS,
    COLUMN,
    FAINT,
    FORMATS,
    GREY,
    HATCHES,
    LINES,
    MARKS,
    Print,
    freeze_layout,
    legend,
    looks,
    new_figure,
    save,
    style,
)
from mgap.reports.printed.catalogue import draw_prints
from mgap.reports.report import report_files
from mgap.reports.scores import score
from mgap.run.records import Record, Run, RunMethod
from tests import processes
from tests.reports.runs import PUBLISHED, answers, questions, write_run

STRENGTHS, ALPHA = (0.0, 0.5, 1.0), "\N{GREEK SMALL LETTER ALPHA}"
SAMPLES = questions(pictures=8, groups=("random", "popular"))


def sweep(folder, axis="alpha", **plan):
    """Three methods along an axis and the plain one; the stronger, the fewer answers are wrong."""
    wrong = [sample.id for sample in SAMPLES if sample.truth == "no"]
    methods = [RunMethod(f"{axis} {x:g}", "mgap", x=x) for x in STRENGTHS]
    answered = {method.label: answers(SAMPLES, wrong[n:]) for n, method in enumerate(methods, start=2)}
    experiment = {"axis": axis, "title": f"along {axis}", **plan}
    return write_run(folder, SAMPLES, {"Vanilla": answers(SAMPLES, wrong), **answered}, *methods, experiment=experiment)


def ablation(folder, **plan):
    wrong = [sample.id for sample in SAMPLES[::3]]
    return write_run(folder, SAMPLES, {"Vanilla": answers(SAMPLES, wrong), "Ours": answers(SAMPLES, wrong[1:])}, **plan)


def departure(folder, strengths=STRENGTHS):
    samples = questions(pictures=6, groups=("random",))
    measured = {
        label: [
            Record(s.id, "Yes", extra={"distance": {f"{x:g}": 0.1 * n + push * x for x in strengths}})
            for n, s in enumerate(samples)
        ]
        for label, push in (("VCD", 2.0), ("Ours", 0.1))
    }
    held = {"tau": 1.05, "k": 10, "delta": 0.05, "bank": 60, "metric": "euclidean", "strengths": list(strengths)}
    return write_run(folder, samples, measured, departure=held)


def scored(*folders):
    return [score(Run.load(folder)) for folder in folders]


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def small_picture(**changes):
    rng = np.random.default_rng(0)
    paths = {
        "VCD": tuple(PathPoint(x, 3 * x, -x, 1 + 2 * x) for x in STRENGTHS),
        "MGAP": tuple(PathPoint(x, 0.1 * x, 0.1 * x, 1.0) for x in STRENGTHS),
    }
    given = {
        "bank": tuple(map(tuple, rng.normal(size=(60, 2)).tolist())),
        "marks": {BLIND: (-1.0, 0.0), JOINT: (0.0, 0.0), TRUTH: (0.5, 0.5)},
        "paths": paths, "tau": 1.5, "k": 10, "shares": (0.6, 0.2), "states": 500, "said": "a sample",
    }  # fmt: skip
    return ManifoldPicture(**{**given, **changes})


# the files


def test_a_figure_is_four_files_of_the_width_that_was_asked_for(tmp_path):
    with style():
        figure = new_figure(COLUMN, 2)
        figure.subplots().plot([0, 1], [0, 1])
    paths = save(figure, tmp_path / "deep", "line", ("x", "y"), [(0, 0.1), (None, 1 / 3)], caption="A line.")
    assert [path.name for path in paths] == [f"line.{form}" for form in FORMATS]
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == sorted(path.name for path in paths)  # no leavings
    assert paths[0].read_bytes().startswith(b"%PDF")
    assert b"/Type3" not in paths[0].read_bytes()
    with Image.open(paths[2]) as image:
        assert image.size == (round(300 * COLUMN), 600)
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert paths[3].read_text() == f"x,y\n0,0.1\n,{1 / 3!r}\n"


@given(st.lists(st.tuples(st.floats(allow_nan=False), st.text("ab,\"\n'", max_size=5)), max_size=5))
def test_a_csv_gives_back_every_number_and_word(tmp_path_factory, rows):
    from mgap.pages.print_figures import _csv

    read = list(csv.reader(_csv(("x", "word"), rows).decode().splitlines(keepends=True)))
    assert [(float(x), word) for x, word in read[1:]] == rows


@pytest.mark.long
def test_the_same_data_gives_the_same_bytes_in_another_process(tmp_path):
    code = "import sys; from tests.reports.test_printed import *; print_manifold(small_picture()).save(sys.argv[1])"
    processes.run([sys.executable, "-c", code, str(tmp_path / "there")], check=True)
    for path in print_manifold(small_picture()).save(tmp_path / "here"):
        assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes(), path.name


def test_text_stays_text_in_svg(tmp_path):
    svg = print_manifold(small_picture()).save(tmp_path)[1].read_text()
    written = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"VCD", "MGAP", "blind prior", "joint posterior", "ground truth", "PC 1 (60.0%)", "τ", "0.5"} <= set(written)
    assert "Where each method leads" in svg  # the caption goes with the file


def test_a_row_that_does_not_fit_its_columns_is_refused_before_anything_is_written(tmp_path):
    with style():
        figure = new_figure(1, 1)
    with pytest.raises(SettingError, match="2 values under 1 columns"):
        save(figure, tmp_path / "out", "x", ("a",), [(1, 2)])
    assert not (tmp_path / "out").exists()


def test_a_file_where_the_folder_should_be_is_one_sentence(tmp_path):
    (tmp_path / "taken").write_text("")
    with style():
        figure = new_figure(1, 1)
    with pytest.raises(SettingError, match="name another folder"):
        save(figure, tmp_path / "taken", "x", ("a",), [])


# the look


def test_series_differ_in_colour_mark_line_and_hatch():
    assert len({len(COLOURS), len(MARKS), len(LINES), len(HATCHES)}) == 1
    for kind in (COLOURS, MARKS, LINES, HATCHES):
        assert len(set(map(str, kind))) == len(kind)
    assert [look.colour for look in looks("abcdefgh").values()] == list(COLOURS)
    with pytest.raises(SettingError, match="9 series"):
        looks("abcdefghi")


def test_the_first_series_have_the_marks_of_the_page():
    from mgap.pages import plots

    assert MARKS[: len(plots.MARKS)] == plots.MARKS


@pytest.mark.long
def test_a_figure_has_no_colours_but_the_palette_its_tints_and_greys(tmp_path):
    prints = draw_prints(scored(sweep(tmp_path / "a"), ablation(tmp_path / "b"), departure(tmp_path / "c")))
    allowed = {*COLOURS, *(to_hex([0.72 + 0.28 * int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for c in COLOURS)}
    for one in prints:
        found = {colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}\b", one.save(tmp_path)[1].read_text())}
        coloured = {c for c in found if len({c[1:3], c[3:5], c[5:7]}) > 1}
        assert set() < coloured <= allowed, one.name


def test_a_legend_never_reaches_over_the_edge():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.lines import Line2D

    for count in (1, 3, 8):
        with style():
            figure = new_figure(COLUMN, 2)
            figure.subplots()
            legend(figure, [Line2D([], [], label=f"a method called {n}") for n in range(count)])
            renderer = FigureCanvasAgg(figure).get_renderer()
            figure.draw_without_rendering()
            assert figure.legends[0].get_window_extent(renderer).width <= figure.bbox.width
            assert len(figure.legends[0].get_texts()) == count


def test_labels_cover_neither_each_other_nor_points():
    with style():
        figure = new_figure(3, 3)
        axes = figure.subplots()
        points = [(x / 10, (x % 3) / 10) for x in range(6)]
        axes.set(xlim=(-0.5, 1), ylim=(-0.5, 1))
        freeze_layout(figure)
        boxes = label_points(figure, axes, points, [f"{n}" for n in range(6)], colour=COLOURS[1])
        at = axes.transData.transform(points)
    for n, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:n])
        assert not any(box.contains(x, y) for x, y in at)


def test_points_on_one_spot_share_a_label():
    with style():
        figure = new_figure(2, 2)
        axes = figure.subplots()
        freeze_layout(figure)
        label_points(figure, axes, [(0.5, 0.5), (0.5, 0.5), (0.1, 0.1)], ["0", "0.25", "1"], colour=COLOURS[1])
    assert [text.get_text() for text in axes.texts] == ["0, 0.25", "1"]


# which run gives which figure


def test_runs_along_axes_stand_side_by_side_in_one_figure(tmp_path):
    axes = ("K", "N", "alpha", "lambda", "m")
    prints = draw_prints(scored(*(sweep(tmp_path / axis, axis) for axis in axes)))
    names = [one.name for one in prints]
    assert names == ["sensitivity", "sensitivity-2", "precision-recall-alpha", "precision-recall-lambda"]
    assert {row[2] for row in prints[0].rows} == set(axes[:4])
    assert len(prints[0].figure.axes) == 4 * 3  # accuracy, precision and F1 of four runs


def test_the_csv_of_a_curve_is_what_the_scores_are(tmp_path):
    published = {**PUBLISHED, "columns": ["accuracy", "f1"]}
    published["backbones"] = [{"name": "L", "family": "llava", "rows": {"alpha 0.5": {"popular": [80.5, None]}}}]
    (scores,) = scored(sweep(tmp_path / "run", published=published))
    sensitivity, path = draw_prints([scores])
    rows = table(sensitivity.save(tmp_path)[3])
    assert len(rows) == 3 * 2 * 4  # figures, splits, three methods on the axis and the plain one
    for row in rows:
        rate = scores.results[row["method"]].groups[row["group"]].rates[row["figure"]]
        assert float(row["percent"]) == 100 * rate.value
        if row["x"]:
            assert (float(row["low"]), float(row["high"])) == (100 * rate.low, 100 * rate.high)
    assert {row["method"] for row in rows if not row["x"]} == {"Vanilla"}
    printed = [(row["method"], row["group"], row["figure"], row["published"]) for row in rows if row["published"]]
    assert printed == [("alpha 0.5", "popular", "accuracy", "80.5")]
    assert "Hollow marks: published, L" in sensitivity.caption
    drawn = {tuple(line.get_ydata()) for axes in sensitivity.figure.axes for line in axes.lines}
    accuracy = [100 * scores.results[f"alpha {x:g}"].groups["random"].rates["accuracy"].value for x in STRENGTHS]
    assert tuple(accuracy) in drawn
    for row in table(path.save(tmp_path)[3]):
        rates = scores.results[row["method"]].groups[row["group"]].rates
        assert (float(row["recall"]), float(row["precision"])) == (100 * rates["recall"].value, 100 * rates["precision"].value)


def test_curves_of_equal_f1_have_it(tmp_path):
    path = draw_prints(scored(sweep(tmp_path / "run")))[1]
    curves = [line for line in path.figure.axes[0].lines if line.get_color() == FAINT]
    levels = [float(text.get_text()) for text in path.figure.axes[0].texts if text.get_color() == GREY]
    assert curves
    for line in curves:
        recall, precision = map(np.asarray, line.get_data())
        f1 = 2 * recall * precision / (recall + precision)
        assert np.ptp(f1) < 1e-9
        assert any(math.isclose(f1[0], level) for level in levels)


def test_methods_without_an_axis_are_bars_with_hatches(tmp_path):
    (scores,) = scored(ablation(tmp_path / "run", experiment={"published": PUBLISHED}))
    (bars,) = draw_prints([scores])
    assert bars.name == "bars"
    patches = [patch for axes in bars.figure.axes for patch in axes.patches]
    assert len(patches) == 3 * 2 * 2
    assert {patch.get_hatch() or "" for patch in patches} == set(HATCHES[:2])
    assert sorted(patch.get_height() for patch in patches) == sorted(row[4] for row in bars.rows)
    assert [row[7] for row in bars.rows if row[7] is not None] == [88.88, 89.76]


def test_an_axis_of_bars_that_does_not_start_at_0_says_so(tmp_path):
    few, many = SAMPLES[:2], [sample.id for sample in SAMPLES]
    high = write_run(tmp_path / "a", SAMPLES, {"Vanilla": answers(SAMPLES), "Ours": answers(SAMPLES, [few[0].id])})
    low = write_run(tmp_path / "b", SAMPLES, {"Vanilla": answers(SAMPLES), "Ours": answers(SAMPLES, many)})
    for folder, is_cut in ((high, True), (low, False)):
        (bars,) = draw_prints(scored(folder))
        axes = bars.figure.axes[0]
        assert bool(axes.get_ylim()[0] > 0) is is_cut
        assert ("axis from" in axes.get_title()) is is_cut
        assert ("do not start at 0" in bars.caption) is is_cut


def test_departures_are_lines_along_the_strength(tmp_path):
    (scores,) = scored(departure(tmp_path / "run"))
    (departures,) = draw_prints([scores])
    rows = [dict(zip(departures.columns, row, strict=True)) for row in departures.rows]
    assert [(row["method"], row["x"]) for row in rows] == [(m, x) for m in ("VCD", "Ours") for x in STRENGTHS]
    assert [row["percent"] for row in rows if row["method"] == "VCD"][-1] == 100
    assert "k = 10" in departures.caption
    assert "1.05" in departures.caption


def test_runs_of_a_kind_have_files_of_their_own(tmp_path):
    prints = draw_prints(scored(ablation(tmp_path / "one"), ablation(tmp_path / "two")))
    assert [one.name for one in prints] == ["bars-pocket-llava-one", "bars-pocket-llava-two"]


def test_a_run_without_a_figure_is_refused(tmp_path):
    single = write_run(tmp_path / "single", SAMPLES, {"Ours": answers(SAMPLES)})
    with pytest.raises(SettingError, match="single: one method and no axis"):
        draw_prints(scored(ablation(tmp_path / "fine"), single))
    with pytest.raises(SettingError, match="no method was measured at two strengths"):
        draw_prints(scored(departure(tmp_path / "still", strengths=(0.0,))))
    crowd = write_run(tmp_path / "crowd", SAMPLES, {f"m{n}": answers(SAMPLES) for n in range(9)})
    with pytest.raises(SettingError, match="9 methods, and 8 can be told apart"):
        draw_prints(scored(crowd))


def test_report_writes_figures_and_lists_them(tmp_path, run):
    folder = sweep(tmp_path / "run")
    status, out, _ = run("report", folder, "--figures")
    assert status == 0
    figures = folder / "figures"
    expected = [figures / f"{name}.{form}" for name in ("sensitivity", "precision-recall-alpha") for form in FORMATS]
    assert out.splitlines()[-len(expected) - 1 :] == [*map(str, expected), str(figures / "captions.md")]
    assert all(path.stat().st_size for path in expected)
    assert f"## sensitivity\n\nScores along {ALPHA} (pocket/llava; 32 samples)." in (figures / "captions.md").read_text()


def test_report_refuses_a_run_without_figures_before_it_writes(tmp_path, run):
    folder = write_run(tmp_path / "run", SAMPLES, {"Ours": answers(SAMPLES)})
    status, _, said = run("report", folder, "--figures")
    assert status == 2
    assert "one method and no axis" in said
    assert not (folder / "report.html").exists()


# the manifold, spectra and angles


def test_the_csv_of_the_manifold_is_what_is_drawn(tmp_path):
    picture = small_picture()
    drawn = print_manifold(picture)
    rows = table(drawn.save(tmp_path)[3])
    assert [(float(r["x"]), float(r["y"])) for r in rows if r["kind"] == "bank"] == list(picture.bank)
    assert {r["kind"]: (float(r["x"]), float(r["y"])) for r in rows if not r["method"] and r["kind"] != "bank"} == picture.marks
    stops = [PathPoint(*(float(r[key]) for key in ("alpha", "x", "y", "d_k"))) for r in rows if r["method"] == "VCD"]
    assert tuple(stops) == picture.paths["VCD"]
    cloud = [line for line in drawn.figure.axes[0].lines if len(line.get_xdata()) == len(picture.bank)]
    assert list(zip(*cloud[0].get_data(), strict=True)) == list(picture.bank)


def insets(drawn: Print):
    return [axes.child_axes[0] for axes in drawn.figure.axes if axes.child_axes]


def test_bars_of_the_inset_are_white_up_to_tau_and_darker_the_farther(tmp_path):
    vcd, mgap = insets(print_manifold(small_picture()))
    shades = [sum(bar.get_facecolor()[:3]) for bar in vcd.patches]
    assert [bar.get_height() for bar in vcd.patches] == [1, 2, 3]
    assert shades[0] == 3 > shades[1] > shades[2]
    assert {sum(bar.get_facecolor()[:3]) for bar in mgap.patches} == {3}
    assert vcd.lines[0].get_ydata()[0] == 1.5
    assert vcd.get_ylim() == mgap.get_ylim()


def test_short_paths_are_shown_close_up():
    far = print_manifold(small_picture())
    short = {"MGAP": tuple(PathPoint(x, 0.1 * x, 0.1 * x, 1.0) for x in STRENGTHS)}
    near = print_manifold(small_picture(paths=short, marks={JOINT: (0.0, 0.0)}))
    assert "close up" not in far.caption
    assert "close up" in near.caption
    whole, close = near.figure.axes
    assert np.ptp(close.get_xlim()) < 0.5 * np.ptp(whole.get_xlim())
    assert [text.get_text() for text in close.texts] == ["0", "0.5", "1"]


def test_any_number_of_methods_has_a_panel_each():
    path = tuple(PathPoint(x, 3 * x, -x, 1.0) for x in STRENGTHS)
    for count in (1, 4, 5):
        drawn = print_manifold(small_picture(paths={f"m{n}": path for n in range(count)}))
        assert len([axes for axes in drawn.figure.axes if axes.get_visible()]) == count
        assert len(insets(drawn)) == count


def test_a_picture_without_paths_or_with_an_unknown_mark_is_refused():
    with pytest.raises(SettingError, match="needs states of the bank and a path"):
        small_picture(paths={})
    with pytest.raises(SettingError, match="no mark is called 'nose'"):
        small_picture(marks={"nose": (0.0, 0.0)})


def test_a_spectrum_adds_up(tmp_path):
    drawn = print_spectrum({"m": [0.5, 0.3, 0.2]}, rank=2)
    assert [row[1:3] for row in drawn.rows] == [(1, 50.0), (2, 30.0), (3, 20.0)]
    assert [row[3] for row in drawn.rows] == pytest.approx([50, 80, 100])
    assert all(axes.lines[-1].get_xdata()[0] == 2 for axes in drawn.figure.axes)


def test_angles_are_drawn_once_a_pair_with_their_numbers(tmp_path):
    matrix = [[0, 30, 60], [30, 0, 90], [60, 90, 0]]
    drawn = print_angles([{"name": "null_images", "labels": ["a", "b", "c"], "rank": 5, "largest": matrix}])
    assert [row[2:] for row in drawn.rows] == [
        ("a", "a", 0), ("b", "a", 30), ("b", "b", 0), ("c", "a", 60), ("c", "b", 90), ("c", "c", 0)
    ]  # fmt: skip
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == ["0", "30", "0", "60", "90", "0"]
    with pytest.raises(SettingError, match="3 labels and a matrix"):
        print_angles([{"name": "x", "labels": ["a", "b", "c"], "rank": 5, "largest": [[0]]}])
    with pytest.raises(SettingError, match="choose from largest, shared"):
        print_angles([], of="nearest")


def test_an_analysis_of_a_subspace_gives_both(tmp_path):
    comparison = {"name": "counts", "labels": ["10", "50"], "rank": 5, "largest": [[0, 20], [20, 0]]}
    analysis = {"model": "m", "rank": 5, "spectrum": {"share": [0.9, 0.1], "auto_rank": None}, "comparisons": [comparison]}
    assert [one.name for one in print_subspaces(analysis)] == ["spectrum", "angles"]
    with pytest.raises(CorruptFile, match="analyse the subspace again"):
        print_subspaces({"model": "m"})


def test_numbers_stand_at_places_that_have_room_for_them_only():
    assert tick_labels_fit([0, 0.25, 0.5, 0.75, 1])
    assert tick_labels_fit([1, 3, 5, 10])
    assert tick_labels_fit([2.0])
    assert not tick_labels_fit([0, 0.02, 0.05, 1, 8])


def test_a_report_with_figures_shows_them_on_the_page_and_links_them(tmp_path):
    runs = scored(ablation(tmp_path / "ablation"))
    prints = draw_prints(runs)
    files = report_files(runs, prints=prints)
    assert files["report.html"].count('<img src="data:image/png;base64,') == len(prints) > 0
    for one in prints:
        assert f"![{one.name}](figures/{one.name}.png)" in files["report.md"]


def test_more_methods_than_colours_share_out_their_departures_to_several_figures(tmp_path):
    samples = questions(pictures=3, groups=("random",))
    measured = {
        f"method {n}": [Record(s.id, "Yes", extra={"distance": {"0": 0.1, "1": 0.1 * n}}) for s in samples] for n in range(11)
    }
    held = {"tau": 0.45, "k": 10, "delta": 0.05, "bank": 60, "metric": "euclidean", "strengths": [0, 1]}
    prints = draw_prints(scored(write_run(tmp_path / "run", samples, measured, departure=held)))
    assert [one.name for one in prints] == ["departures", "departures-2"]
    drawn = [row[one.columns.index("method")] for one in prints for row in one.rows]
    assert set(drawn) == set(measured)


@pytest.mark.long
def test_pictures_of_two_diagnosed_runs_are_named_after_their_runs(tmp_path):
    for name in ("one", "other"):
        write_files(departure(tmp_path / name) / "analysis", {"picture.json": json.dumps(small_picture().to_json())})
    names = [one.name for one in draw_prints(scored(tmp_path / "one", tmp_path / "other"))]
    assert len(set(names)) == 4
    assert sorted(name.split("-")[0] for name in names) == ["departures", "departures", "manifold", "manifold"]
    assert all(name.endswith(("-one", "-other")) for name in names)


def test_a_damaged_analysis_is_refused_by_its_name(tmp_path):
    folder = departure(tmp_path / "run")
    write_files(folder / "analysis", {"picture.json": "{"})
    with pytest.raises(CorruptFile, match=r"picture\.json"):
        draw_prints(scored(folder))
    write_files(folder / "analysis", {"picture.json": "{}"})
    with pytest.raises(CorruptFile, match="mgap diagnose again"):
        draw_prints(scored(folder))
