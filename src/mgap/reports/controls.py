"""What is left of a method beside controls: plain decoding under a constant, and the rows that a run marks as controls.

The picked constant needs no decoding of its own, since plain decoding recorded its log-odds: every second picture picks the
shift for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mgap.benchmarks.pope.equal_recall import AtEqual, ShiftCurve, cross_picked
from mgap.benchmarks.pope.scorer import FIGURES, PopeScorer, predicted_yes
from mgap.benchmarks.tally import Difference, Tally, by_group, compare, rank
from mgap.benchmarks.yesno_parsers import find_parser
from mgap.run.control_rows import cut_offs
from mgap.run.method_plans import VANILLA
from mgap.run.records import Record, Run, RunMethod
from mgap.types import Sample

PICKED = "picked bias"
Verdicts = Mapping[str, str | None]  # by sample


@dataclass(frozen=True)
class Changed:
    """How many answers of plain decoding were turned, by direction and by whether that was right."""

    to_yes_right: int  # FN to TP
    to_yes_wrong: int  # TN to FP
    to_no_right: int  # FP to TN
    to_no_wrong: int  # TP to FN
    one_sidedness: float  # the share of the larger direction; 0 if nothing was turned

    @classmethod
    def of(cls, samples: Sequence[Sample], plain: Verdicts, other: Verdicts) -> Changed:
        turned = [(other[s.id], other[s.id] == s.truth) for s in samples if {plain[s.id], other[s.id]} == {"yes", "no"}]
        yes, no = ([right for verdict, right in turned if verdict == word] for word in ("yes", "no"))
        larger = max(len(yes), len(no)) / len(turned) if turned else 0.0
        return cls(sum(yes), len(yes) - sum(yes), sum(no), len(no) - sum(no), larger)


@dataclass(frozen=True)
class Left:
    """What is left of a method's gain in F1 beyond the line to beat."""

    line: str  # the control with the highest F1, or plain decoding where that has it
    gain: Difference  # over plain decoding
    left: Difference  # over the line


@dataclass(frozen=True)
class BesideControls:
    """One method on one group, held against plain decoding, its shifts and the controls."""

    changed: Changed
    changed_by_shift: Changed | None = None  # the same of the shift whose number of yes is nearest
    equal_recall: AtEqual | None = None  # None: plain decoding's log-odds were not recorded
    equal_yes_ratio: AtEqual | None = None
    left: Left | None = None  # None: of a control, or in a run without any


@dataclass(frozen=True)
class Controlled:
    """Everything about controls that the scores of one run have."""

    rows: tuple[RunMethod, ...] = ()  # that no model answered: the picked constant
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)  # of these rows, by group
    beside: dict[str, dict[str, BesideControls]] = field(default_factory=dict)  # by method and group, of all but plain decoding
    line: dict[str, str] = field(default_factory=dict)  # by group, the label whose F1 is to be beaten
    warnings: tuple[str, ...] = ()


def hold_against_controls(
    run: Run,
    scorer: PopeScorer,
    samples: Sequence[Sample],
    records: Mapping[str, Mapping[str, Record]],
    tallies: Mapping[str, Mapping[str, Tally]],
) -> Controlled:
    """Of the methods in `tallies`; `records` are by method and sample."""
    answered = [method for method in run.methods if method.label in tallies]
    plain = next((m for m in answered if m.method == VANILLA and not (m.control or m.suffix or m.decoding)), None)
    if plain is None:
        return Controlled()
    texts = {m.label: {s.id: records[m.label][s.id].text for s in samples} for m in answered}
    log_odds = _log_odds(records[plain.label], samples)
    rows, tallied = list[RunMethod](), dict[str, dict[str, Tally]]()
    if log_odds and PICKED not in texts:
        answers, shifts = cross_picked(samples, log_odds)
        settings = {"shift": [round(shift, 3) for shift in shifts], "picked": "for each half of the pictures on the other"}
        rows, texts[PICKED] = [RunMethod(PICKED, "bias", settings, control=True)], answers
        tallied = {PICKED: {group: _without_words(tally) for group, tally in scorer.tally(samples, answers).items()}}
    controls = [method.label for method in (*answered, *rows) if method.control]
    every = {**tallies, **tallied}
    parse = find_parser(scorer.parser)
    verdicts = {label: {s.id: parse(of[s.id], s.truth) for s in samples} for label, of in texts.items()}
    beside: dict[str, dict[str, BesideControls]] = {label: {} for label in every if label != plain.label}
    line = {}
    for group, members in by_group(samples).items():
        own = {label: of[group] for label, of in every.items()}
        if controls:
            line[group] = _highest_f1({label: own[label] for label in (plain.label, *controls)})
        methods = [label for label in own if label not in controls]
        for label, one in _beside(members, own, verdicts, plain.label, log_odds).items():
            is_held = label in methods and group in line
            beside[label][group] = replace(one, left=_left(own, label, plain.label, line[group])) if is_held else one
    return Controlled(tuple(rows), tallied, beside, line, tuple(_warnings(run, samples, verdicts[plain.label], log_odds)))


def _log_odds(records: Mapping[str, Record], samples: Sequence[Sample]) -> dict[str, float]:
    """By sample; empty unless all of them have it, which runs of earlier versions have not."""
    found = {sample.id: odds for sample in samples if (odds := records[sample.id].log_odds) is not None}
    return found if len(found) == len(samples) else {}


def _without_words(tally: Tally) -> Tally:
    """Of answers that nobody wrote: they have no length."""
    return replace(tally, figures={name: figure for name, figure in tally.figures.items() if name != "words"})


def _beside(
    samples: Sequence[Sample],
    tallies: Mapping[str, Tally],
    verdicts: Mapping[str, Verdicts],
    plain: str,
    log_odds: Mapping[str, float],
) -> dict[str, BesideControls]:
    """By method, on the samples of one group."""
    others = {label: tally for label, tally in tallies.items() if label != plain}
    turned = {label: Changed.of(samples, verdicts[plain], verdicts[label]) for label in others}
    if not log_odds or not others:
        return {label: BesideControls(changed) for label, changed in turned.items()}
    curve, found = ShiftCurve.of(samples, log_odds), dict[str, BesideControls]()
    for label, equal in curve.beside(others).items():
        yes = int(predicted_yes(tallies[label].counts.sum(0)))
        by_shift = Changed.of(samples, verdicts[plain], curve.nearest(yes))
        found[label] = BesideControls(turned[label], by_shift, equal["recall"], equal["yes_ratio"])
    return found


def _left(tallies: Mapping[str, Tally], label: str, plain: str, line: str) -> Left:
    gain, left = (compare(tallies[label], tallies[base]).differences["f1"] for base in (plain, line))
    return Left(line, gain, left)


def _highest_f1(tallies: Mapping[str, Tally]) -> str:
    return rank({label: float(FIGURES["f1"].value(tally.counts.sum(0))) for label, tally in tallies.items()})[0]


def _warnings(run: Run, samples: Sequence[Sample], plain: Verdicts, log_odds: Mapping[str, float]) -> Iterator[str]:
    """Sentences about controls that are missing, or that say less than they seem to."""
    if run.plan.get("decoding", {}).get("sample"):
        if missing := missing_sampling_row(run):
            yield f"answers were drawn, and no row has {missing}: a gain cannot be told from less sampling; --controls adds it"
    elif log_odds:
        others = sum(log_odds[s.id] * {"yes": 1, "no": -1}.get(plain[s.id] or "", 0) < 0 for s in samples)
        if others > len(samples) / 100:
            yield (
                f"{others} of {len(samples)} plain answers are not the word that their first token favours, and what a shift "
                "would have answered is told from the first token"
            )


def missing_sampling_row(run: Run) -> str:
    """Of the rows that a sampled table needs, the first that is missing, in words; "" if none is."""
    plain = [method.decoding for method in run.methods if method.method == VANILLA]
    if len(plain) == len(run.methods):
        return ""  # there is no gain to tell
    if not any(decoding.get("sample") is False for decoding in plain):
        return "greedy decoding"
    cuts = cut_offs([(method.method, method.settings) for method in run.methods], run.plan["decoding"].get("temperature", 1.0))
    missing = [min_p for min_p in cuts if min_p not in [decoding.get("min_p") for decoding in plain]]
    return f"min_p {missing[0]:g}, a method's cut-off alone" if missing else ""
