"""The frontier as a print figure: every setting tried, by invented things, departed states and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.lines import Line2D

from mgap.benchmarks.pope.questions import SPLITS
from mgap.pages.print_figures import FAINT, GREY, TEXT, Print, Value, legend, looks, new_figure, style
from research.frontier.choosing import DEPARTED, RECALL, Choices
from research.frontier.contenders import PLAIN

COLUMNS = ("model", "family", "setting", "departed_percent", "chair_i_percent", "recall_percent", "adversarial_f1_percent")
LEFT, RIGHT, UP = (1.2, 110.0), (74.0, 101.0), (5.0, 18.0)  # axes limits in percent; the CSV has the rest
SHOWN = (PLAIN, "mgap", "blind", "vcd", "prompt-prior", "predicted-prior", "tether", "opera")


def draw_frontier(models: Mapping[str, Choices], name: str = "frontier") -> Print:
    """One row per model. Left: invented things by departed states; right: by F1 on adversarial questions.

    Hollow markers: recall more than 3 points below plain decoding. Methods that decode from no state are on the right only.
    """
    look, rows = looks(SHOWN), list[tuple[Value, ...]]()
    with style():
        figure = new_figure(TEXT, 2.5 * len(models))
        panels = figure.subplots(len(models), 2, squeeze=False, sharey="row")
        for (model, choices), (left, right) in zip(models.items(), panels, strict=True):
            least = choices.tried[PLAIN].captions[0].recall - RECALL
            left.axvline(100 * DEPARTED, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
            for family in SHOWN:
                tried = choices.tried.get(family)
                f1 = {} if tried is None else {trial.label: trial.f1[SPLITS[-1]] for trial in tried.questions}
                for trial in [] if tried is None else tried.captions:
                    own, is_whole = look[family], trial.recall >= least
                    mark: dict[str, Any] = {
                        "color": own.colour,
                        "marker": own.mark,
                        "markerfacecolor": own.colour if is_whole else "none",
                    }
                    mark |= {"markersize": 6 if family == PLAIN else 3.5, "linestyle": "none", "markeredgewidth": 0.6}
                    if trial.departed is not None:
                        left.plot([100 * trial.departed], [100 * trial.chair_i], **mark)
                    right.plot([100 * f1[trial.label]], [100 * trial.chair_i], **mark)
                    percents = (trial.departed, trial.chair_i, trial.recall, f1[trial.label])
                    rows.append((model, family, trial.label, *(None if one is None else 100 * one for one in percents)))
            left.set_ylabel(f"{model}\nCHAIRi (%)")
            left.set(xscale="log", xlim=LEFT, ylim=UP)
            left.xaxis.set_major_formatter("{x:g}")
            right.set_xlim(*RIGHT)
            for axes in (left, right):
                axes.grid(color=FAINT, linewidth=0.5)
                axes.set_axisbelow(True)
        panels[-1][0].set_xlabel("departed states in captions (%)")
        panels[-1][1].set_xlabel("adversarial F1 (%)")
        legend(figure, [Line2D([], [], color=look[n].colour, marker=look[n].mark, linestyle="none", label=n) for n in SHOWN])
    caption = (
        "Every setting that was tried, on development scenes: things invented in captions against departed states and against "
        "answers to adversarial questions. Low and left, low and right are better. The dotted line is 5%; hollow marks recall "
        "more than 3 points less than plain decoding. "
        f"Beyond the panels lie {sum(map(_is_beyond, rows))} of {len(rows)} settings."
    )
    return Print(name, caption, figure, COLUMNS, tuple(rows))


def _is_beyond(row: tuple[Value, ...]) -> bool:
    """Whether a setting lies outside the limits of its panels."""
    chair_i, f1 = float(row[4] or 0), float(row[6] or 0)
    return not (UP[0] <= chair_i <= UP[1]) or not RIGHT[0] <= f1
