"""The verdict on a run in plain sentences: the best method of each group, ties, noise, and what a control does as well.

No sentence says more than a 95% interval does: a method is called the best only where the paired interval of its lead over
every other row lies above 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from mgap.benchmarks.tally import Difference
from mgap.reports.method_words import method_in_words
from mgap.reports.score_tables import control_rows, group_heading, run_names, title_of_figure
from mgap.reports.scores import Kind, Scores
from mgap.reports.standings import BESIDE, Standing, same_answers
from mgap.run.method_plans import VANILLA

FEW = 20  # pictures; a bootstrap over fewer gives intervals that are too narrow to call a method the best
WIDE = 0.05  # of the figure's scale; a tie whose interval is wider tells that samples are few, not that methods are equal
SHOWN = 5  # rows named in one sentence; others are counted
SHIFTS = ("bias", "yes-if-close")  # methods that move plain decoding's answers, whatever the picture


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on one run."""

    run: str  # its name in a report of several runs; else ""
    sentences: tuple[tuple[str, str], ...]  # what each is about, such as a group, or ""; and the text
    rows: tuple[tuple[str, str], ...]  # labels, with the method and all of its settings


def verdicts(runs: Sequence[Scores]) -> list[RunVerdict]:
    """Of every run with answers, in order; distances have no verdict."""
    names = run_names(runs) if len(runs) > 1 else [""] * len(runs)
    return [_verdict(name, scores) for name, scores in zip(names, runs, strict=True) if not scores.run.plan.get("departure")]


def _verdict(name: str, scores: Scores) -> RunVerdict:
    rows = tuple((label, method_in_words(scores.run, result.arm)) for label, result in scores.results.items() if result.groups)
    if len(rows) - len(control_rows(scores)) < 2:
        return RunVerdict(name, (("", "There is one method, and no other to compare it with."),), rows)
    groups = [_Group(scores, group) for group in scores.standings]
    sentences = [*_alike(scores), *(group.told() for group in groups), *_noise(groups)]
    return RunVerdict(name, (*sentences, ("", _basis(scores))) if groups else tuple(sentences), rows)


def _alike(scores: Scores) -> Iterator[tuple[str, str]]:
    """Rows with the same answers everywhere."""
    right = scores.right[scores.baseline]
    found = sorted(same_answers(scores.texts, right).items(), key=lambda pair: pair[1])
    for earlier, pairs in groupby(found, key=lambda pair: pair[1]):
        rows = _listed([label for label, _ in pairs])
        yield "", f"{rows} answered as {earlier} in all {len(right):,}: the rows are identical."


def _noise(groups: Sequence[_Group]) -> Iterator[tuple[str, str]]:
    """Which ties say no more than that there are few samples."""
    wide = [group for group in groups if group.tie_is_wide]
    if wide:
        points = max(group.widest_tie for group in wide)
        few = _listed(f"{group.standing.drawn} {group.kind.over}" for group in wide)
        where = f" of {_listed([group.heading.lower() for group in wide])}" if any(group.heading for group in wide) else ""
        yield (
            "",
            (
                f"The ties{where} are noise: with intervals of up to {points:.1f} points, {few} are too few to tell these "
                "methods apart. That does not make them equal."
            ),
        )


def _basis(scores: Scores) -> str:
    """What the sentences rest on."""
    kinds = [scores.figures[standing.figure] for standing in scores.standings.values()]
    titles = [title_of_figure(standing.figure) for standing in scores.standings.values()]
    lower = " (lower is better)" if all(kind.better == "lower" for kind in kinds) else ""
    return (
        f"Methods are ranked by {_listed(titles)}{lower}. In brackets: by how many points the first is ahead, with the 95% "
        f"interval, paired over {_listed([kind.over for kind in kinds])} and not corrected for the number of rows. A tie: the "
        "interval holds 0."
    )


class _Group:
    """The sentences on one group."""

    def __init__(self, scores: Scores, group: str) -> None:
        self.scores, self.group = scores, group
        self.standing: Standing = scores.standings[group]
        self.best, self.kind = self.standing.best, scores.figures[self.standing.figure]
        self.title = title_of_figure(self.standing.figure)
        controls = control_rows(scores)
        self.controls = {label: lead for label, lead in self.standing.ahead.items() if label in controls}
        self.methods = {label: lead for label, lead in self.standing.ahead.items() if label not in controls}
        self.heading = group_heading([scores], "", group)
        self.is_plain = scores.results[self.best].arm.method == VANILLA
        self.scale = 100 if self.kind.percent else 1  # from the figure to points
        self.widest_tie = self.scale * max((d.high - d.low for d in self.methods.values() if d.low <= 0), default=0.0)

    @property
    def tie_is_wide(self) -> bool:
        return self.standing.drawn >= FEW and self.widest_tie > WIDE * (self.kind.full or 100)

    def told(self) -> tuple[str, str]:
        if all(self._is_alike(label) for label in self.methods):
            return self.heading, f"Every method gave the same answers: {self.title} {self._at(self.best)}."
        if self.standing.drawn < FEW:
            return self.heading, self._few()
        return self.heading, " ".join([self._ranked(), *self._controlled(), *self._said_less()])

    def _few(self) -> str:
        leaders = [self.best, *(label for label, lead in self.methods.items() if lead.value == 0)]
        end = "lowest" if self.kind.better == "lower" else "highest"
        samples = f"{self.standing.samples:,} samples of {self.standing.drawn} {self.kind.over}"
        return (
            f"{samples} are too few to say which method is best. So far {_listed(leaders)} "
            f"{'has' if len(leaders) == 1 else 'have'} the {end} {self.title}, {self._at(self.best)}."
        )

    def _ranked(self) -> str:
        behind = {label: lead for label, lead in self.methods.items() if lead.low > 0}
        ties = {label: lead for label, lead in self.methods.items() if label not in behind}
        tied = f"{self._rows(ties)} {'ties' if len(ties) == 1 else 'tie'} with it" if ties else ""
        lost = f"{self._rows(behind)} {'is' if len(behind) == 1 else 'are'} behind" if behind else ""
        if not ties:
            return f"{self.best} is best, with {self.title} {self._at(self.best)}; {lost}."
        if not behind:
            return f"No method is best. {self.best} has {self.title} {self._at(self.best)}, and {tied}."
        return f"{self.best} has {self.title} {self._at(self.best)}, and {tied}; {lost}."

    def _rows(self, leads: Mapping[str, Difference]) -> str:
        """Rows with their figures and how far the best is ahead of them, the nearest first."""
        nearest = sorted(leads, key=lambda label: leads[label].value)
        texts = [self._row(label, leads[label]) for label in nearest[:SHOWN]]
        return _listed([*texts, f"{len(nearest) - SHOWN} more"] if len(nearest) > SHOWN else texts)

    def _row(self, label: str, lead: Difference) -> str:
        if self._is_alike(label):
            return f"{label} (the same answers)"
        return f"{label} {self._at(label)} ({_interval(lead, self.kind)})"

    def _controlled(self) -> Iterator[str]:
        """What controls and a constant shift say about the best method, on yes/no questions."""
        if self.controls:
            nearest = min(self.controls, key=lambda label: self.controls[label].value)
            lead = self.controls[nearest]
            control = f"{nearest} {self._at(nearest)} ({_interval(lead, self.kind)})"
            if lead.high < 0:
                yield f"A control does better: {control}."
            elif lead.low <= 0 and not self.is_plain:
                yield f"A control does as well, as far as these {self.kind.over} tell: {control}."
            elif not self.is_plain:
                yield f"It is ahead of every control; the nearest is {control}."
        beside = self.scores.results[self.best].controls.get(self.group)
        if self.scores.results[self.best].arm.method in SHIFTS:
            yield f"{self.best} is a shift of plain decoding's answers, and takes nothing from the picture."
        elif beside is not None and beside.equal_recall is not None and not self.is_plain:
            equal = beside.equal_recall
            both = f"{100 * equal.precision:.1f} against {100 * equal.shifted:.1f} ({_interval(equal.difference, _SHARE)})"
            more = "it is more precise" if equal.is_better else "it is not more precise"
            yield f"At equal recall {more} than plain decoding under a constant shift: {both}."

    def _said_less(self) -> Iterator[str]:
        """Whether the best method's captions name less of what is there than the baseline's."""
        result, baseline = self.scores.results[self.best], self.scores.baseline
        against, beside = result.groups[self.group].against, BESIDE.get(self.standing.figure, "")
        if against is None or beside not in against.differences:
            return
        title, change = title_of_figure(beside), against.differences[beside]
        found = f"{baseline} ({_interval(change, self.scores.figures[beside])})"
        if change.is_noise:
            yield f"Its {title.lower()} is not told apart from that of {found}."
        elif change.value > 0:
            yield f"It has a higher {title.lower()} than {found}."
        else:
            yield f"It has a lower {title.lower()} than {found}: naming less of what is there lowers {self.title} by itself."
        if result.matched_recall is not None and self.group in result.matched_recall.against:
            left = result.matched_recall.against[self.group].differences[self.standing.figure]
            is_left = "no difference is left, beyond noise" if left.is_noise else "a difference is left"
            yield f"Against {baseline} cut to the same {title.lower()}, {is_left}: {_interval(left, self.kind)}."
        elif change.value < 0 and not change.is_noise:
            yield "--match-recall tells what is left at equal recall."

    def _is_alike(self, label: str) -> bool:
        """Whether this row gave the very answers of the best."""
        same = self.standing.same
        return same.get(label, label) == same.get(self.best, self.best)

    def _at(self, label: str) -> str:
        """A row's figure; of captions with the recall that it comes at."""
        rates, beside = self.scores.results[label].groups[self.group].rates, BESIDE.get(self.standing.figure, "")
        text = f"{self.scale * rates[self.standing.figure].value:.1f}"
        return f"{text} at {title_of_figure(beside).lower()} {100 * rates[beside].value:.1f}" if beside in rates else text


_SHARE = Kind(percent=True, better="higher")


def _interval(difference: Difference, kind: Kind) -> str:
    """+10.2, +3.8 to +16.4, in points."""
    scale = 100 if kind.percent else 1
    numbers = (scale * number for number in (difference.value, difference.low, difference.high))
    value, low, high = ("0.0" if abs(number) < 0.05 else f"{number:+.1f}" for number in numbers)
    return f"{value}, {low} to {high}"


def _listed(names: Iterable[str]) -> str:
    """Names in one clause, each once: a, b and c."""
    once = list(dict.fromkeys(names))
    return " and ".join([", ".join(once[:-1]), once[-1]] if len(once) > 1 else once)
