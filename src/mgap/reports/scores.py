"""Score a run from its folder, without a model: every method on the same samples, each against a baseline.

A sample that failed or is missing under one method is left out of all methods' scores, and counted. A method without any answer
is left out itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import mgap
from mgap.benchmarks.answer_texts import DROP, Dropped, unfinished_of
from mgap.benchmarks.base import YES_NO
from mgap.benchmarks.caption_cuts import CaptionCuts
from mgap.benchmarks.pope.scorer import FIGURES, PopeScorer, named_counts, unequal_recall
from mgap.benchmarks.repope.new_labels import Relabelling
from mgap.benchmarks.statistics import Rate, share
from mgap.benchmarks.tally import Figure, PairedComparison, Scorer, Tally, by_group, by_picture, compare
from mgap.diagnosis.departure_by_step import tallies_by_step
from mgap.diagnosis.departure_tally import departure_tally
from mgap.errors import RunError, SettingError
from mgap.registry import SCORERS
from mgap.reports.controls import BesideControls, Controlled, hold_against_controls
from mgap.reports.standings import Standing, find_standings
from mgap.run.method_plans import VANILLA
from mgap.run.records import PLAIN, Record, Run, RunMethod, texts_of
from mgap.types import Sample

FORMAT = 1
SCORES = "scores.json"
STATES = "states"  # the one group of a run that measures departures of first tokens
_SECONDS = Figure(value=lambda c: share(c[..., 0], c[..., 1]), of=lambda c: float(c[1]), percent=False, better="lower")


@dataclass(frozen=True)
class Kind:
    """How to read a figure."""

    percent: bool
    better: str  # higher, lower, or "" for neither
    full: float | None = None  # the most points, if it counts points
    over: str = "pictures"  # what its interval's bootstrap draws


@dataclass(frozen=True)
class Coverage:
    """How many samples one method answered."""

    answered: int
    missing: int
    failed: int
    error: str  # of the first failure
    cut_off: int  # answers that reached the longest length
    plain: int = 0  # answers of plain decoding, to questions without the picture that the method needs


@dataclass(frozen=True)
class Effort:
    """The cost of one method's scored answers."""

    total: float  # seconds
    seconds: Rate  # per sample
    tokens: float  # per answer


@dataclass(frozen=True)
class Ties:
    """How many of one method's scored answers have a token that was chosen among equal best scores."""

    answers: int  # with such a token
    counted: int  # in which such tokens were counted


@dataclass(frozen=True)
class Part:
    """One method on the samples of one group."""

    samples: int
    unparsed: int  # answers that say neither yes nor no
    rates: dict[str, Rate]
    counts: dict[str, int] = field(default_factory=dict)  # for yes/no questions: TP, FP, TN, FN
    against: PairedComparison | None = None  # this method minus the baseline
    ties: Ties | None = None  # None: not counted


@dataclass(frozen=True)
class Matched:
    """The baseline's captions, cut to the mean length of one method's, or to their recall."""

    words: int | None  # the most words left in a caption; None: not cut, as they are no longer, or recall no more
    groups: dict[str, Part]  # of the cut texts
    against: dict[str, PairedComparison]  # the method minus the cut baseline


@dataclass(frozen=True)
class MethodScores:
    """The scores of one method of a run."""

    arm: RunMethod  # named as its key in scores.json
    coverage: Coverage
    effort: Effort | None = None
    groups: dict[str, Part] = field(default_factory=dict)
    matched: Matched | None = None  # at equal length
    matched_recall: Matched | None = None  # at equal recall
    dropped: Dropped | None = None  # None: unfinished last sentences are kept
    controls: dict[str, BesideControls] = field(default_factory=dict)  # by group of yes/no questions


@dataclass(frozen=True)
class Scores:
    """The scores of a run."""

    run: Run
    scorer: dict[str, Any]  # its task and settings
    baseline: str  # the label of the method that the others are compared with
    scored: int  # samples that every method answered
    figures: dict[str, Kind]
    results: dict[str, MethodScores]
    right: dict[str, dict[str, bool]]  # by method that answered, and sample
    texts: dict[str, dict[str, str]]  # the answers, by method and sample
    warnings: tuple[str, ...] = ()  # sentences about what looks wrong
    relabelled: Relabelled | None = None  # of a run of COCO's POPE
    remark: str = ""  # of the scorer, what to bear in mind with any of its figures
    line: dict[str, str] = field(default_factory=dict)  # by group of yes/no questions: the label of the F1 to beat
    standings: dict[str, Standing] = field(
        default_factory=dict
    )  # by group; not in scores.json, whose tables have these figures

    @property
    def model(self) -> str:
        return str(self.run.plan.get("model", {}).get("name", "unknown model"))

    @property
    def title(self) -> str:
        return str(self.run.plan.get("experiment", {}).get("title") or self.run.plan["benchmark"]["name"])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: everything a table shows, and the settings it depends on."""
        plan = self.run.plan
        return {
            "format": FORMAT,
            "mgap": mgap.__version__,
            "title": self.title,
            "benchmark": {key: plan["benchmark"].get(key) for key in ("name", "task", "sources", "notes")},
            **{key: plan.get(key) for key in ("model", "decoding", "versions", "created", "command")},
            "scorer": self.scorer,
            "baseline": self.baseline,
            "samples": {"asked": len(self.run.samples), "scored": self.scored},
            "warnings": list(self.warnings),
            "line_to_beat": self.line,
            "figures": {name: {k: v for k, v in asdict(kind).items() if v is not None} for name, kind in self.figures.items()},
            "methods": {label: asdict(result) for label, result in self.results.items()},
            **({} if self.relabelled is None else {"relabelled": self.relabelled.to_json()}),
        }


@dataclass(frozen=True)
class Relabelled:
    """The scores of the same answers on RePOPE's labels, or why there are none."""

    scores: Scores | None = None
    changes: dict[str, Relabelling] = field(default_factory=dict)  # what became of the questions, by split
    why_not: str = ""

    def __str__(self) -> str:
        return self.why_not or "; ".join(f"{split}: {change}" for split, change in self.changes.items())

    def to_json(self) -> dict[str, Any]:
        if self.scores is None:
            return {"why_not": self.why_not}
        return {"splits": {split: asdict(change) for split, change in self.changes.items()}, **self.scores.to_json()}


def score(
    run: Run, *, against: str | None = None, match_length: bool = False, match_recall: bool = False, **settings: Any
) -> Scores:
    """Score a run with the settings it was planned with, or with these instead.

    `against` names the baseline; default: the plain method, else the first. `match_length` scores the baseline's captions
    again, cut to the mean length of each method's; `match_recall`, cut to their recall.
    """
    records = {method.label: run.records(method) for method in run.methods}
    coverage = {label: _coverage(run.samples, by_id) for label, by_id in records.items()}
    methods = [method for method in run.methods if coverage[method.label].answered]
    samples = [sample for sample in run.samples if all(_is_answered(records[method.label], sample) for method in methods)]
    if not methods or not samples:
        raise RunError(f"{run.folder}: {_no_answers(coverage)}; go on with the command that began it and --out {run.folder}")
    baseline = _baseline(methods, against)
    texts = {method.label: texts_of(records[method.label][sample.id] for sample in samples) for method in methods}
    if run.plan.get("departure"):
        if unused := [*settings, *["match_length"] * match_length, *["match_recall"] * match_recall]:
            raise SettingError(f"{run.folder} holds distances, not answers: {', '.join(unused)} has no use")
        scorer, scored_with = None, dict(run.plan["departure"])
        measured = {method.label: [records[method.label][sample.id] for sample in samples] for method in methods}
        tau = scored_with["tau"]
        if scored_with.get("along") == "answers":
            tallies = {label: tallies_by_step(samples, departures, tau) for label, departures in measured.items()}
        else:
            tallies = {label: {STATES: departure_tally(samples, departures, tau)} for label, departures in measured.items()}
    else:
        scorer = build_scorer(run, **settings)
        scored_with = {"task": run.plan["benchmark"]["task"], **scorer.settings()}
        tallies = {method.label: texts[method.label].tally(scorer, samples) for method in methods}
    described = {name for name, tally in tallies[baseline].items() if "accuracy" not in tally.figures}
    captions = [] if scorer is None else [sample for sample in samples if sample.group in described]
    if not captions and (cuts_wanted := [*["match_length"] * match_length, *["match_recall"] * match_recall]):
        raise SettingError(f"{cuts_wanted[0]} cuts captions, and {run.folder} has answers to questions only: leave it out")
    unfinished = unfinished_of(scorer, samples)
    cuts = CaptionCuts(scorer, captions, texts[baseline].of(captions)) if scorer is not None and captions else None
    controlled = Controlled()
    if run.plan["benchmark"]["task"] == YES_NO and isinstance(scorer, PopeScorer):
        controlled = hold_against_controls(run, scorer, samples, records, tallies)
        tallies |= controlled.tallies
        coverage |= {row.label: Coverage(len(samples), 0, 0, "", 0) for row in controlled.rows}
    figures = {name: f for groups in tallies.values() for tally in groups.values() for name, f in tally.figures.items()}
    right = {label: {k: v for t in groups.values() for k, v in t.right.items()} for label, groups in tallies.items()}
    answered = {label: dict(answers.texts) for label, answers in texts.items()}
    controls = [method.label for method in (*run.methods, *controlled.rows) if method.control]
    scored = len(right[baseline])  # a scorer may need all of a picture's questions
    results = {}
    for method in (*run.methods, *controlled.rows):
        groups = tallies.get(method.label, {})
        other = tallies[baseline] if scorer is not None and method.label != baseline else {}
        own = texts[method.label].of(captions) if method.label in texts else None
        matched: dict[str, Matched] = {}
        if cuts is not None and other and own is not None:
            if match_length:
                matched["matched"] = _match(cuts, cuts.to_length(own), groups)
            if match_recall:
                own_tallies = {name: groups[name] for name in by_group(captions)}
                matched["matched_recall"] = _match(cuts, cuts.to_recall(own_tallies), groups)
        results[method.label] = MethodScores(
            arm=method,
            coverage=coverage[method.label],
            effort=_effort(samples, records[method.label]) if groups and method.label in records else None,
            groups={
                name: _part(tally, other.get(name), _ties(records.get(method.label, {}), tally) if scorer is not None else None)
                for name, tally in groups.items()
            },
            dropped=own.dropped() if own is not None and unfinished == DROP else None,
            controls=controlled.beside.get(method.label, {}),
            **matched,
        )
    return Scores(
        run=run,
        scorer=scored_with,
        baseline=baseline,
        scored=scored,
        figures={name: Kind(figure.percent, figure.better, figure.full, figure.over) for name, figure in figures.items()},
        results=results,
        right={label: right[label] for label in texts},
        texts=answered,
        warnings=(*_warnings(run, scored, coverage, tallies), *controlled.warnings),
        line=controlled.line,
        remark=getattr(scorer, "remark", ""),
        standings={} if scorer is None else find_standings(tallies, answered, controls),
    )


def build_scorer(run: Run, **settings: Any) -> Scorer:
    """The scorer of the run's task, with the benchmark's lexicon."""
    benchmark = run.plan["benchmark"]
    merged = {**run.plan.get("scoring", {}), **settings}
    scorer: Scorer = SCORERS.get(benchmark["task"]).of(benchmark.get("lexicon") or {}, **merged)
    return scorer


def _part(tally: Tally, other: Tally | None, ties: Ties | None = None) -> Part:
    is_yes_or_no = tally.figures.get("accuracy") is FIGURES["accuracy"]
    counts = named_counts(tally.counts.sum(0)) if is_yes_or_no else {}
    against = None if other is None else compare(tally, other)
    return Part(len(tally.right), tally.unparsed, tally.rates(), counts, against, ties)


def _ties(records: Mapping[str, Record], tally: Tally) -> Ties | None:
    counted = [ties for sample in tally.right if sample in records and (ties := records[sample].ties) is not None]
    return Ties(sum(ties > 0 for ties in counted), len(counted)) if counted else None


def _baseline(methods: Sequence[RunMethod], against: str | None) -> str:
    labels = [method.label for method in methods]
    if against is not None and against not in labels:
        raise SettingError(f"no method with answers is called {against!r}: compare against one of {', '.join(labels)}")
    plain = [method.label for method in methods if method.method == VANILLA and not method.control]
    return against or (plain or labels)[0]


def _is_answered(records: Mapping[str, Record], sample: Sample) -> bool:
    return sample.id in records and not records[sample.id].failed


def _coverage(samples: Sequence[Sample], records: Mapping[str, Record]) -> Coverage:
    recorded = [records[sample.id] for sample in samples if sample.id in records]
    errors = [record.failed for record in recorded if record.failed]
    return Coverage(
        answered=len(recorded) - len(errors),
        missing=len(samples) - len(recorded),
        failed=len(errors),
        error=errors[0] if errors else "",
        cut_off=sum(record.stop == "length" for record in recorded),
        plain=sum(PLAIN in record.extra for record in recorded),
    )


def _no_answers(coverage: Mapping[str, Coverage]) -> str:
    counts = ", ".join(f"{label} {method.answered}" for label, method in coverage.items())
    first = next((f" (first failure: {method.error})" for method in coverage.values() if method.error), "")
    return f"no sample was answered under every method; answers so far: {counts or 'none'}{first}"


def _warnings(
    run: Run, scored: int, coverage: Mapping[str, Coverage], tallies: Mapping[str, Mapping[str, Tally]]
) -> Iterator[str]:
    if left_out := [label for label, method in coverage.items() if not method.answered]:
        yield f"without a single answer, and left out: {', '.join(left_out)}"
    for label, method in coverage.items():
        if method.plain:
            yield f"{label}: {method.plain} answers are plain decoding's, to questions without the picture that it needs"
    if scored < len(run.samples):
        yield f"{scored} of {len(run.samples)} samples are scored: the others are missing or failed under some method"
    if (
        run.plan["benchmark"]["task"] == "yesno"
        and not run.plan.get("departure")
        and not run.plan.get("decoding", {}).get("sample")
    ):
        for label, groups in tallies.items():
            if sentence := unequal_recall(run.samples, groups):
                yield f"{label}: {sentence}"


def _effort(samples: Sequence[Sample], records: Mapping[str, Record]) -> Effort:
    scored = [records[sample.id] for sample in samples]
    pictures, counts = by_picture(samples, [(record.milliseconds / 1000, 1.0) for record in scored])
    rates = Tally(pictures, counts, {"seconds": _SECONDS}, {}).rates()
    return Effort(float(counts[:, 0].sum()), rates["seconds"], sum(record.tokens for record in scored) / len(scored))


def _match(cuts: CaptionCuts, words: int | None, tallies: Mapping[str, Tally]) -> Matched:
    """Score the baseline's cut captions beside a method's."""
    cut_tallies = cuts.tally(words)
    against = {name: compare(tallies[name], tally) for name, tally in cut_tallies.items()}
    return Matched(words, {name: _part(tally, None) for name, tally in cut_tallies.items()}, against)
