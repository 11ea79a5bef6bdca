"""Score a run from its folder, without a model: every method on the same samples, each against a baseline.

A sample that failed or is missing under one method is left out of all methods' scores, and counted. A method without any answer
is left out itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import mgap
from mgap.benchmarks.chair.scorer import cut_words, matching_cut, mean_words
from mgap.benchmarks.pope.scorer import FIGURES, named_counts, unequal_recall
from mgap.benchmarks.repope.new_labels import Relabelling
from mgap.benchmarks.statistics import Rate, share
from mgap.benchmarks.tally import Figure, PairedComparison, Scorer, Tally, by_picture, compare
from mgap.diagnosis.departure_by_step import tallies_by_step
from mgap.diagnosis.departure_tally import departure_tally
from mgap.errors import RunError, SettingError
from mgap.registry import SCORERS
from mgap.run.records import PLAIN, Record, Run, RunMethod
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
    """The baseline's texts, cut to the mean length of one method's."""

    words: int | None  # the most words left in a text; None: not cut, as the texts are no longer than the method's
    groups: dict[str, Part]  # of the cut texts
    against: dict[str, PairedComparison]  # the method minus the cut baseline


@dataclass(frozen=True)
class MethodScores:
    """The scores of one method of a run."""

    arm: RunMethod  # named as its key in scores.json
    coverage: Coverage
    effort: Effort | None = None
    groups: dict[str, Part] = field(default_factory=dict)
    matched: Matched | None = None


@dataclass(frozen=True)
class Scores:
    """The scores of a run."""

    run: Run
    scorer: dict[str, Any]  # its task and settings
    baseline: str  # the label of the method that the others are compared with
    scored: int  # samples that every method answered
    figures: dict[str, Kind]
    results: dict[str, MethodScores]
    right: dict[str, dict[str, bool]]  # by method and sample
    texts: dict[str, dict[str, str]]  # the answers, by method and sample
    warnings: tuple[str, ...] = ()  # sentences about what looks wrong
    relabelled: Relabelled | None = None  # of a run of COCO's POPE
    remark: str = ""  # of the scorer, what to bear in mind with any of its figures

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


def score(run: Run, *, against: str | None = None, match_length: bool = False, **settings: Any) -> Scores:
    """Score a run with the settings it was planned with, or with these instead.

    `against` names the baseline; default: the plain method, else the first. `match_length` scores the baseline's captions
    again, cut to the mean length of each method's.
    """
    records = {method.label: run.records(method) for method in run.methods}
    coverage = {label: _coverage(run.samples, by_id) for label, by_id in records.items()}
    methods = [method for method in run.methods if coverage[method.label].answered]
    samples = [sample for sample in run.samples if all(_is_answered(records[method.label], sample) for method in methods)]
    if not methods or not samples:
        raise RunError(f"{run.folder}: {_no_answers(coverage)}; go on with the command that began it and --out {run.folder}")
    baseline = _baseline(methods, against)
    if run.plan.get("departure"):
        if settings or match_length:
            raise SettingError(f"{run.folder} holds distances, not answers: {', '.join(settings) or 'match_length'} has no use")
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
        tallies = {method.label: scorer.tally(samples, _texts(records[method.label], samples)) for method in methods}
    figures = {name: f for groups in tallies.values() for tally in groups.values() for name, f in tally.figures.items()}
    right = {label: {k: v for t in groups.values() for k, v in t.right.items()} for label, groups in tallies.items()}
    scored = len(right[baseline])  # a scorer may need all of a picture's questions
    results = {}
    for method in run.methods:
        groups = tallies.get(method.label, {})
        other = tallies[baseline] if scorer is not None and method.label != baseline else {}
        matched = None
        if match_length and other and groups:
            plain, own = (_texts(records[label], samples) for label in (baseline, method.label))
            matched = _match(scorer, samples, plain, own, groups)
        results[method.label] = MethodScores(
            arm=method,
            coverage=coverage[method.label],
            effort=_effort(samples, records[method.label]) if groups else None,
            groups={
                name: _part(tally, other.get(name), _ties(records[method.label], tally) if scorer is not None else None)
                for name, tally in groups.items()
            },
            matched=matched,
        )
    return Scores(
        run=run,
        scorer=scored_with,
        baseline=baseline,
        scored=scored,
        figures={name: Kind(figure.percent, figure.better, figure.full, figure.over) for name, figure in figures.items()},
        results=results,
        right=right,
        texts={method.label: _texts(records[method.label], samples) for method in methods},
        warnings=tuple(_warnings(run, scored, coverage, tallies)),
        remark=getattr(scorer, "remark", ""),
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
    counted = [ties for sample in tally.right if (ties := records[sample].ties) is not None]
    return Ties(sum(ties > 0 for ties in counted), len(counted)) if counted else None


def _baseline(methods: Sequence[RunMethod], against: str | None) -> str:
    labels = [method.label for method in methods]
    if against is not None and against not in labels:
        raise SettingError(f"no method with answers is called {against!r}: compare against one of {', '.join(labels)}")
    plain = [method.label for method in methods if method.method == "vanilla"]
    return against or (plain or labels)[0]


def _is_answered(records: Mapping[str, Record], sample: Sample) -> bool:
    return sample.id in records and not records[sample.id].failed


def _texts(records: Mapping[str, Record], samples: Sequence[Sample]) -> dict[str, str]:
    return {sample.id: records[sample.id].text for sample in samples}


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


def _match(
    scorer: Scorer | None,
    samples: Sequence[Sample],
    plain: Mapping[str, str],
    own: Mapping[str, str],
    tallies: Mapping[str, Tally],
) -> Matched | None:
    """Cut the baseline's captions to a method's mean length, and score them; None if no group holds captions."""
    captions = [sample for sample in samples if "accuracy" not in tallies[sample.group].figures]  # questions are not cut
    if scorer is None or not captions:
        return None
    whole, target = [plain[s.id] for s in captions], mean_words([own[s.id] for s in captions])
    words = matching_cut(whole, target) if mean_words(whole) > target else None
    cut = {s.id: plain[s.id] if words is None else cut_words(plain[s.id], words) for s in captions}
    cut_tallies = scorer.tally(captions, cut)
    against = {name: compare(tallies[name], tally) for name, tally in cut_tallies.items()}
    return Matched(words, {name: _part(tally, None) for name, tally in cut_tallies.items()}, against)
