"""HTML of the ask page: the answers side by side, one token's card, the figures, and what is selected by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mgap.decoding.strength_curve import curve
from mgap.inspector.columns import (
    DONE,
    FAILED,
    OPEN,
    RUNNING,
    STOPPED,
    WAITING,
    Column,
    Comparison,
    MeasuredToken,
    why_no_state,
)
from mgap.inspector.theme import render
from mgap.inspector.token_plots import Spot, plot_curves, plot_spots
from mgap.methods.mgap import MGAP
from mgap.pages.html_page import visible
from mgap.pages.plots import SYMBOLS, Plot
from mgap.run.method_plans import VANILLA
from mgap.types import Candidate, Step

STATES = {WAITING: "waits", RUNNING: "answers \u2026", DONE: "", STOPPED: "stopped", FAILED: "failed", OPEN: "goes on \u2026"}
END = "end"
SWEEP_POINTS = 33
MIN_SWEEP_END = 2.0  # the largest strength of a sweep, unless a method is stronger


@dataclass(frozen=True)
class Colouring:
    """A number that colours tokens, and the value that gets the darkest shade."""

    name: str
    about: str
    scale: str  # both ends of the legend, with a dash between
    of: Callable[[MeasuredToken], float | None]
    maximum: Callable[[Comparison, Column], float]


COLOURINGS = {
    c.name: c
    for c in (
        Colouring(
            "beta", "how much of the prior\u2019s part MGAP takes away", "0 \u2013 \u03b1", lambda m: m.beta,
            lambda _, c: alpha_of(c),
        ),
        Colouring("entropy", "how unsure the plain prediction is, in nats", "0 \u2013 2", lambda m: m.entropy, lambda *_: 2.0),
        Colouring("cosine", "which share of the state lies in the prior", "0 \u2013 1", lambda m: m.cosine, lambda *_: 1.0),
        Colouring(
            "departure", "how far the state is from those of normal decoding: d\u2096 / \u03c4", "0 \u2013 2",
            lambda m: None if m.after is None else m.after.distance, lambda a, _: 2 * tau_of(a),
        ),
    )
}  # fmt: skip


def alpha_of(column: Column) -> float:
    return column.method.settings.alpha if isinstance(column.method, MGAP) else 0.0


def tau_of(comparison: Comparison) -> float:
    return 1.0 if comparison.loaded.landscape is None else comparison.loaded.landscape.manifold.tau


def title_of(column: Column) -> str:
    """The heading of a column."""
    return VANILLA if column.name == VANILLA else type(column.method).__name__


def settings_of(column: Column) -> str:
    """A method's settings in one line."""
    if column.name == VANILLA:
        return "plain decoding"
    if isinstance(column.method, MGAP):
        s, off = column.method.settings, []
        off += [] if s.gate else ["gate off"]
        off += [] if s.protect else ["protection off"]
        parts = (f"\u03b1 {s.alpha:g}", f"\u03bb {s.lam:g}", f"K {column.method.subspace.rank}", *off)
        return ", ".join(parts)
    if column.settings:
        return ", ".join(f"{key} {value}" for key, value in column.settings.items())
    return column.method.summary


def answers_html(comparison: Comparison | None, colouring: str, selected: tuple[int, int] | None = None, hint: str = "") -> str:
    chosen = COLOURINGS[colouring]
    columns = [] if comparison is None else [_column(comparison, n, chosen) for n in range(len(comparison.columns))]
    return render(
        "answers.html.j2",
        columns=columns,
        colouring=chosen,
        question="" if comparison is None else comparison.question,
        selected=selected,
        hint=hint,
        why_no_bank="" if comparison is None or colouring != "departure" else comparison.loaded.why_no_bank,
    )


def _column(comparison: Comparison, place: int, colouring: Colouring) -> dict[str, Any]:
    column = comparison.columns[place]
    maximum = colouring.maximum(comparison, column)
    return {
        "place": place,
        "title": title_of(column),
        "symbol": SYMBOLS[place],
        "settings": settings_of(column),
        "state": column.state,
        "state_label": STATES[column.state],
        "besides": column.method.besides if column.state == RUNNING and not column.tokens else "",
        "tokens": [_token(comparison, column, at, colouring, maximum) for at in range(len(column.tokens))],
        "note": column.note,
        "differs": _differs(comparison, column),
        "lacks": _why_uncoloured(column, colouring),
    }


def _token(comparison: Comparison, column: Column, at: int, colouring: Colouring, maximum: float) -> dict[str, Any]:
    measured = column.tokens[at]
    step, value = measured.token.step, colouring.of(measured)
    plain = plain_choice(step)
    number = "\u2013" if value is None else f"{value / tau_of(comparison) if colouring.name == 'departure' else value:.2f}"
    return {
        "text": END if measured.token.is_end else visible(step.token),
        "is_end": measured.token.is_end,
        "is_glued": at > 0 and bool(measured.token.text) and not measured.token.text[0].isspace(),
        "number": number,
        "shade": 0.0 if value is None or maximum <= 0 else min(1.0, max(0.0, value / maximum)),
        "instead": None if plain.token_id == step.token_id else visible(plain.token),
        "departed": measured.has_departed(tau_of(comparison)),
    }


def plain_choice(step: Step) -> Candidate:
    """Plain decoding's token: the likeliest. Ties, common in 16 bits, go to the lowest id."""
    best = step.before[0].probability
    return min((c for c in step.before if c.probability == best), key=lambda c: c.token_id)


def _differs(comparison: Comparison, column: Column) -> str:
    """The answer in a run's records, if it differs from this one."""
    recorded = comparison.recorded.get(column.name, "")
    return recorded if column.state == DONE and recorded and recorded.strip() != column.text else ""


def _why_uncoloured(column: Column, colouring: Colouring) -> str:
    if not column.tokens or colouring.of(column.tokens[0]) is not None:
        return ""
    if colouring.name == "beta":
        return "Beta is MGAP\u2019s own number; choose another to colour these."
    return why_no_state(column.method)


def default_selection(comparison: Comparison) -> tuple[int, int] | None:
    """The token to show first, in MGAP's column or else the last: a changed one, or the one with the largest beta."""
    filled = [place for place, column in enumerate(comparison.columns) if column.tokens]
    if not filled:
        return None
    ours = [place for place in filled if comparison.columns[place].name == "mgap"]
    place = (ours or filled)[-1]
    tokens = comparison.columns[place].tokens
    changed = [at for at, m in enumerate(tokens) if plain_choice(m.token.step).token_id != m.token.step.token_id]
    return place, changed[0] if changed else max(range(len(tokens)), key=lambda at: tokens[at].beta or 0.0)


def token_html(comparison: Comparison | None, selected: tuple[int, int] | None) -> str:
    """The card of one token."""
    if comparison is None or selected is None:
        return ""
    place, at = selected
    column = comparison.columns[place]
    m = column.tokens[at]
    step = m.token.step
    return render(
        "token.html.j2",
        word=END if m.token.is_end else visible(step.token),
        number=at + 1,
        count=len(column.tokens),
        title=title_of(column),
        symbol=SYMBOLS[place],
        series=place,
        facts=_facts(comparison, column, m),
        lists=[("Without the method", _bars(step.before, step.token_id)), ("With it", _bars(step.after, step.token_id))],
        explanation=_explain(column, m),
    )


def _facts(comparison: Comparison, column: Column, m: MeasuredToken) -> list[tuple[str, str, str]]:
    values = m.token.step.values
    found = [
        ("entropy", f"{m.entropy:.3f}", "nats, of the plain prediction"),
        ("cosine", f"{m.cosine:.3f}", "share of the state in the prior"),
    ]
    if isinstance(column.method, MGAP):
        found += [
            ("gate \u03b3", f"{values['gamma']:.3f}", "tanh(\u03bb \u00b7 entropy)"),
            ("protection \u03b4", f"{values['delta']:.3f}", "1 \u2212 cosine"),
            ("beta", f"{values['beta']:.3f}", "\u03b1 \u00b7 \u03b3 \u00b7 \u03b4: taken away"),
        ]
    else:
        found += [(name, f"{value:.3f}", f"of {column.name}") for name, value in values.items()]
    if m.after is not None:
        where = "beyond it, as without the method" if m.after.is_departed else "within \u03c4"
        where = "departed" if m.has_departed(tau_of(comparison)) else where
        found.append(("d\u2096", f"{m.after.distance:.2f}", f"\u03c4 = {tau_of(comparison):.2f}: {where}"))
    return found


def _bars(candidates: Sequence[Candidate], chosen: int) -> list[dict[str, Any]]:
    return [{"word": visible(c.token), "percent": 100 * c.probability, "is_chosen": c.token_id == chosen} for c in candidates]


def _explain(column: Column, m: MeasuredToken) -> str:
    """What the method did at this token, in one sentence."""
    step = m.token.step
    before, after = plain_choice(step), next((c for c in step.after if c.token_id == step.token_id), step.after[0])
    if column.name == VANILLA:
        return "Nothing is attached: this is the model\u2019s own choice."
    if before.token_id == step.token_id:
        was, is_ = (f"{100 * c.probability:.1f}%" for c in (before, after))
        moved = f"its probability stays {is_}" if was == is_ else f"its probability goes from {was} to {is_}"
        return f"The choice stays \u201c{visible(before.token)}\u201d; {moved}."
    plain, ours = visible(before.token), visible(step.token)
    return f"Plain decoding would say \u201c{plain}\u201d here; {title_of(column)} says \u201c{ours}\u201d."


def spots_plot(comparison: Comparison, selected: tuple[int, int]) -> Plot | None:
    """The token's state, and those of other methods at the same position after the same prefix."""
    land, (place, at) = comparison.loaded.landscape, selected
    if land is None:
        return None
    spots = {}
    for n in comparison.columns_with_prefix(place, at):
        m = comparison.columns[n].tokens[at]
        if m.before is not None and m.after is not None:
            spots[f"{title_of(comparison.columns[n])} {settings_of(comparison.columns[n])}"] = Spot(n, m.before, m.after)
    path = [m.after for t, m in enumerate(comparison.columns[place].tokens) if t != at and m.after is not None]
    return plot_spots(land, spots, path) if spots else None


def candidate_words(comparison: Comparison, selected: tuple[int, int]) -> dict[str, int]:
    """Tokens whose probability can be followed here, by word, the likeliest of every method first."""
    found: dict[str, int] = {}
    for rank in range(5):
        for step in _steps(comparison, selected):
            for side in (step.before, step.after):
                if rank < len(side):
                    found.setdefault(visible(side[rank].token), side[rank].token_id)
    return found


def default_words(comparison: Comparison, selected: tuple[int, int]) -> list[str]:
    """The words to follow at first, at most three: those chosen with any method or without, then other likely ones."""
    words, steps = candidate_words(comparison, selected), _steps(comparison, selected)
    chosen = {step.token_id for step in steps} | {plain_choice(step).token_id for step in steps}
    first = [word for word, token in words.items() if token in chosen]
    return [*first, *(word for word in words if word not in first)][: max(2, min(3, len(first)))]


def _steps(comparison: Comparison, selected: tuple[int, int]) -> list[Step]:
    """The steps of all methods whose answers agree up to here."""
    return [comparison.columns[n].tokens[selected[1]].token.step for n in comparison.columns_with_prefix(*selected)]


def curves_plot(comparison: Comparison, selected: tuple[int, int], words: Sequence[str]) -> Plot | None:
    """The probability of words at this token as each method grows stronger; None if no method here has a strength."""
    place, at = selected
    candidates = candidate_words(comparison, selected)
    token_ids = {word: candidates[word] for word in words if word in candidates}
    shown = [
        n
        for n in comparison.columns_with_prefix(place, at)
        if comparison.columns[n].name != VANILLA and not why_no_state(comparison.columns[n].method)
    ]
    if not token_ids or not shown:
        return None
    maximum = max([MIN_SWEEP_END, *(1.5 * alpha_of(comparison.columns[n]) for n in shown)])
    strengths = [maximum * step / (SWEEP_POINTS - 1) for step in range(SWEEP_POINTS)]
    curves = {n: curve(comparison.columns[n].tokens[at].token.states, list(token_ids.values()), strengths) for n in shown}
    names = {n: title_of(comparison.columns[n]) for n in shown}
    lines = {
        word: {names[n]: (c.strengths, c.probabilities[token]) for n, c in curves.items()} for word, token in token_ids.items()
    }
    return plot_curves(lines, {names[n]: c.own for n, c in curves.items()}, {names[n]: n for n in shown})


def figure_html(plot: Plot | None, comparison: Comparison, shown: Sequence[int], caption: str) -> str:
    """A plot with its legend; without a plot, the caption alone."""
    legend = [(SYMBOLS[n], title_of(comparison.columns[n]), n) for n in shown]
    return render("figure.html.j2", plot=plot, legend=legend, caption=caption)
