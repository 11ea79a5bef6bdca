"""Tables of a prior subspace's analysis: its spectrum, its words, the effect of removing it, what it depends on."""

from __future__ import annotations

from collections.abc import Sequence

from mgap.diagnosis.principal_angles import SubspaceComparison
from mgap.diagnosis.subspace_analysis import ModelComparison, SubspaceAnalysis
from mgap.diagnosis.subspace_words import MovedOdds, Word
from mgap.pages.html_page import Cell, RowGroup, Table, TableRow, visible

_VARIED = {
    "prompts": ("sets of prompts", "set"),
    "counts": ("numbers of prompts, each the first of one set", "prompts"),
    "null_images": ("null images", "null image"),
}
_SPACE = "\u2423 is a space before a word."
_SHOWN = 10  # directions of the spectrum


def subspace_tables(analysis: SubspaceAnalysis) -> list[Table]:
    """All tables of one model, in reading order."""
    tables = [spectrum_table(analysis), words_table(analysis)]
    if analysis.steps:
        tables.append(steps_table(analysis))
    tables += [comparison_table(analysis, comparison) for comparison in analysis.comparisons]
    if analysis.halves:
        tables.append(halves_table(analysis))
    return tables


def spectrum_table(analysis: SubspaceAnalysis) -> Table:
    """The strongest directions, whether or not they are in the subspace."""
    spectrum = analysis.spectrum
    rows = []
    for number, value in enumerate(spectrum.singular_values[: max(_SHOWN, analysis.rank)]):
        cells = (_number(value), _percent(spectrum.share[number]), _percent(spectrum.cumulative[number]))
        rows.append(TableRow(f"{number + 1}{'' if number < analysis.rank else ' (not used)'}", cells))
    left = len(spectrum.singular_values) - len(rows)
    standing = "no rank" if spectrum.auto_rank is None else f"rank {spectrum.auto_rank}"
    return Table(
        f"{analysis.model}: how {analysis.count} blind states vary. The first {analysis.rank} of {analysis.hidden_size} "
        f"directions are the prior subspace.",
        ("direction", "singular value", "% of the variance", "% so far"),
        [RowGroup("", tuple(rows))],
        notes=(
            f"What stands out from noise, by the rule of Gavish and Donoho (rank auto): {standing}.",
            *((f"{left} weaker directions are not shown.",) if left > 0 else ()),
            *analysis.notes,
        ),
    )


def words_table(analysis: SubspaceAnalysis) -> Table:
    """The words that each direction raises and lowers."""
    rows = []
    for direction in analysis.directions:
        cosine = () if direction.readout is None else (Cell(f"{direction.readout:+.2f}"),)
        words = (_words(side, direction.spread) for side in (direction.up, direction.down))
        cells = (_number(direction.spread), _number(direction.mean), *cosine, *words)
        rows.append(TableRow(str(direction.number), cells))
    answers, notes = analysis.readout, list[str]()
    if answers is not None:
        notes.append(
            f"{100 * answers.share:.0f}% of the line from {_word(answers.down)} to {_word(answers.up)} lies in the subspace "
            f"(squared length); {100 * answers.chance:.0f}% would in a random one."
        )
    column = () if answers is None else (f"cosine with {_word(answers.up)} minus {_word(answers.down)}",)
    return Table(
        f"{analysis.model}: the words of each direction. How logits change, over the mean of all words, for one standard "
        f"deviation of the blind states; divided by that, it is the change for a unit of length. {_SPACE}",
        ("direction", "standard deviation", "mean", *column, "raises", "lowers"),
        [RowGroup("", tuple(rows))],
        notes=(*notes, "A direction points to where the mean blind state lies: what it raises, taking it away lowers."),
    )


def steps_table(analysis: SubspaceAnalysis) -> Table:
    """MGAP's average step."""
    rows, answers = [], analysis.readout
    for step in analysis.steps:
        moved = () if answers is None else _moved(step.answers)
        cells = (Cell(str(step.count)), Cell(f"{step.held:.2f}"), *moved, _words(step.up), _words(step.down))
        rows.append(TableRow(step.states, cells))
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    if answers is not None:
        columns = (f"log-odds of {_word(answers.up)} against {_word(answers.down)}", "slope", "intercept", "% by the line")
        notes = (
            "The change of the log-odds is intercept + slope * odds, as far as a line goes. Shrinking all odds alike decides "
            "nothing; the intercept moves the threshold between the answers, as a constant does.",
        )
    return Table(
        f"{analysis.model}: what taking the whole subspace away (beta = 1) does to logits, averaged over states; {_SPACE}",
        ("states", "number", "share |V'h| / |h|", *columns, "raises", "lowers"),
        [RowGroup("", tuple(rows))],
        notes=notes,
    )


def comparison_table(analysis: SubspaceAnalysis, comparison: SubspaceComparison) -> Table:
    """Pairs of subspaces: what they share, and below it the angle between their first directions."""
    varied, heading = _VARIED.get(comparison.name, (comparison.name, comparison.name))
    answers, held, rows = analysis.readout, comparison.readout, []
    for number, label in enumerate(comparison.labels):
        name = label if comparison.name == "counts" else f"{label}, N = {comparison.counts[number]}"
        pairs = zip(comparison.shared[number], comparison.first[number], strict=True)
        cells = [Cell(f"{100 * shared:.0f}", f"{first:.0f}\u00b0") for shared, first in pairs]
        rows.append(TableRow(name, (*cells, *([] if held is None else [Cell(f"{100 * held[number]:.0f}")]))))
    column = () if answers is None else (f"% of {_word(answers.up)} minus {_word(answers.down)} in it",)
    return Table(
        f"{analysis.model}: subspaces of rank {comparison.rank} from different {varied}. How many % one holds of the other "
        f"(mean squared cosine of the principal angles), and the angle between their first directions.",
        (heading, *comparison.labels, *column),
        [RowGroup("", tuple(rows))],
        notes=(f"Two random subspaces of this size share {100 * comparison.chance:.1f}% on average.",),
    )


def halves_table(analysis: SubspaceAnalysis) -> Table:
    """How much of a subspace the other half of the prompts reproduces."""
    rows = [
        TableRow(
            str(half.rank),
            (
                Cell(f"{100 * half.shared:.0f}"),
                _degrees(half.degrees[0]),
                _degrees(half.largest),
                Cell(f"{100 * half.chance:.1f}"),
            ),
        )
        for half in analysis.halves
    ]
    return Table(
        f"{analysis.model}: subspaces from two halves of one set of prompts, every second one against the others: "
        f"{analysis.halves[0].count} each.",
        ("rank", "% shared", "smallest angle", "largest angle", "% shared by chance"),
        [RowGroup("", tuple(rows))],
    )


def models_table(comparison: ModelComparison) -> Table:
    """Two models' directions, compared by their effect on tokens."""
    one, other = comparison.models
    rows = [
        TableRow(f"{one} {n}", tuple(Cell(f"{c:+.2f}") for c in line)) for n, line in enumerate(comparison.cosines, start=1)
    ]
    angles = ", ".join(f"{angle:.0f}\u00b0" for angle in comparison.degrees)
    return Table(
        f"{one} and {other}: cosines between what their directions do to the {comparison.tokens} tokens that both spell alike.",
        ("direction", *(f"{other} {n}" for n in range(1, comparison.ranks[1] + 1))),
        [RowGroup("", tuple(rows))],
        notes=(
            f"Principal angles: {angles}; {100 * comparison.shared:.0f}% shared.",
            f"Random directions of either model through its own head share {100 * comparison.heads:.0f}% (standard deviation "
            f"{100 * comparison.heads_spread:.0f}; smallest angle {comparison.heads_smallest:.0f}\u00b0), random ones of the "
            f"words {100 * comparison.chance:.1f}%.",
            *comparison.notes,
        ),
    )


def _moved(moved: MovedOdds | None) -> tuple[Cell, ...]:
    if moved is None:
        return (Cell("-"),) * 4
    mean = Cell(f"{moved.mean:+.2f}", f"standard deviation {moved.spread:.2f}")
    return mean, Cell(f"{moved.slope:+.2f}"), Cell(f"{moved.intercept:+.2f}"), Cell(f"{100 * moved.fit:.0f}")


def _words(words: Sequence[Word], scale: float = 1.0) -> Cell:
    return Cell(", ".join(f"{_word(word.text)} {word.change * scale:+.2f}" for word in words))


def _word(text: str) -> str:
    """A readable word that shows whether a space precedes it."""
    return ("\u2423" if text[:1].isspace() else "") + visible(text)


def _number(value: float) -> Cell:
    return Cell(f"{value:.3g}")


def _percent(share: float) -> Cell:
    return Cell(f"{100 * share:.1f}")


def _degrees(angle: float) -> Cell:
    return Cell(f"{angle:.0f}\u00b0" if angle >= 10 else f"{angle:.1f}\u00b0")
