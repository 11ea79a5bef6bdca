"""How the rows of a group stand by the benchmark's main figure: the best method, and how far it is ahead of every other row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mgap.benchmarks.tally import Difference, Tally, compare, rank

MAIN = (
    "CHAIRi",
    "chair",
    "qAcc",
    "total",
    "score",
    "f1",
    "accuracy",
)  # a group's main figure is the first of these that it has
BESIDE = {"CHAIRi": "recall", "chair": "cover"}  # what a caption can lose by saying less, which the main figure does not show


@dataclass(frozen=True)
class Standing:
    """The rows of one group that have the main figure."""

    figure: str
    best: str  # the label of the method with the best figure; of several, the first
    ahead: Mapping[str, Difference]  # by how much the best is better than each other row, controls included; paired
    drawn: int  # pictures, or sets of questions, that the bootstrap draws
    samples: int
    same: Mapping[str, str]  # rows that gave the very same answers as an earlier row here, with that row


def main_figure(figures: Collection[str]) -> str | None:
    """The figure by which methods are ranked; None of a group that has none of those known here."""
    return next((name for name in MAIN if name in figures), None)


def find_standings(
    tallies: Mapping[str, Mapping[str, Tally]], texts: Mapping[str, Mapping[str, str]], controls: Collection[str]
) -> dict[str, Standing]:
    """By group, where at least two rows have the main figure, one of them a method; `tallies` by row and group."""
    groups = dict.fromkeys(group for of in tallies.values() for group in of)
    found = {}
    for group in groups:
        own = {label: of[group] for label, of in tallies.items() if group in of}
        name = main_figure(next(iter(own.values())).figures)
        if name is None:
            continue
        own = {label: tally for label, tally in own.items() if name in tally.figures and _counted(tally, name)}
        methods = {label: tally for label, tally in own.items() if label not in controls}
        if methods and len(own) > 1:
            found[group] = _stand(name, own, methods, texts)
    return found


def same_answers(texts: Mapping[str, Mapping[str, str]], samples: Collection[str]) -> dict[str, str]:
    """Rows whose answers to these samples are, letter for letter, those of an earlier row, with that row."""
    first: dict[tuple[str | None, ...], str] = {}
    found = {}
    for label, of in texts.items():
        earlier = first.setdefault(tuple(of.get(name) for name in samples), label)
        if earlier != label:
            found[label] = earlier
    return found


def _stand(
    name: str, tallies: Mapping[str, Tally], methods: Mapping[str, Tally], texts: Mapping[str, Mapping[str, str]]
) -> Standing:
    figure = next(iter(tallies.values())).figures[name]
    sign = -1 if figure.better == "lower" else 1
    best = rank({label: sign * float(figure.value(tally.counts.sum(0))) for label, tally in methods.items()})[0]
    ahead = {}
    for label, tally in tallies.items():
        if label != best:
            better, other = (tallies[best], tally) if sign > 0 else (tally, tallies[best])
            ahead[label] = compare(better, other).differences[name]
    asked = tallies[best].right.keys()
    same = same_answers({label: texts[label] for label in tallies if label in texts}, asked)
    return Standing(name, best, ahead, len(tallies[best].pictures), len(asked), same)


def _counted(tally: Tally, name: str) -> bool:
    """Whether the figure is defined: CHAIRi is not, of captions that name nothing."""
    return tally.figures[name].of(tally.counts.sum(0)) > 0
