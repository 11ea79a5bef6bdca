"""From a run's folder to its scores: every method on the same samples, each against a baseline, without a model.

A sample that failed or is missing under one method is left out of all methods' scores, and counted. A method without a single
answer is left out itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import mgap
from mgap.benchmarks.chair.scorer import cut_words, matching_cut, mean_words
from mgap.benchmarks.pope.scorer import FIGURES, named_counts, unequal_recall
from mgap.benchmarks.statistics import Rate, share
from mgap.benchmarks.tally import Figure, PairedComparison, Scorer, Tally, by_picture, compare
from mgap.diagnosis.departure_by_step import tallies_by_step
from mgap.diagnosis.departure_tally import departure_tally
from mgap.errors import RunError, SettingError
from mgap.registry import SCORERS
from mgap.run.records import Arm, Record, Run
from mgap.types import Sample

FORMAT = 1
SCORES = "scores.json"
STATES = "states"  # the one group of a run that measures departures of first tokens
_SECONDS = Figure(value=lambda c: share(c[..., 0], c[..., 1]), of=lambda c: float(c[1]), percent=False, better="lower")


@dataclass(frozen=True)
class Kind:
    """How a figure is read."""

    percent: bool
    better: str  # higher, lower, or "" where neither is


@dataclass(frozen=True)
class Coverage:
    """What became of the samples under one method."""

    answered: int
    missing: int
    failed: int
    error: str  # the first failure's
    cut_off: int  # answers that reached the longest length


@dataclass(frozen=True)
class Effort:
    """What the scored answers of one method took."""

    total: float  # seconds
    seconds: Rate  # a sample
    tokens: float  # an answer


@dataclass(frozen=True)
class Part:
    """One method on the samples of one group."""

    samples: int
    unparsed: int  # answers that say neither yes nor no
    rates: dict[str, Rate]
    counts: dict[str, int] = field(default_factory=dict)  # of yes and no: TP, FP, TN, FN
    against: PairedComparison | None = None  # this method less the baseline


@dataclass(frozen=True)
class Matched:
    """The baseline's texts, cut so that they are as long as one method's on average."""

    words: int | None  # that were kept; None: they are no longer than the method's, and stay whole
    groups: dict[str, Part]  # of the cut texts
    against: dict[str, PairedComparison]  # the method less the cut baseline


@dataclass(frozen=True)
class MethodScores:
    """One method of a run."""

    arm: Arm
    coverage: Coverage
    effort: Effort | None = None
    groups: dict[str, Part] = field(default_factory=dict)
    matched: Matched | None = None


@dataclass(frozen=True)
class Scores:
    """What a run's answers come to."""

    run: Run
    scorer: dict[str, Any]  # its task and settings
    baseline: str  # the label of the method that the others are compared with
    scored: int  # samples that every method answered
    figures: dict[str, Kind]
    results: dict[str, MethodScores]
    right: dict[str, dict[str, bool]]  # by method and sample
    texts: dict[str, dict[str, str]]  # the same, as answered
    warnings: tuple[str, ...] = ()  # what looks wrong

    @property
    def model(self) -> str:
        return str(self.run.plan.get("model", {}).get("name", "unknown model"))

    @property
    def title(self) -> str:
        return str(self.run.plan.get("experiment", {}).get("title") or self.run.plan["benchmark"]["name"])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: everything a table shows, and the settings that it depends on."""
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
            "figures": {name: asdict(kind) for name, kind in self.figures.items()},
            "methods": {label: asdict(result) for label, result in self.results.items()},
        }


def score(run: Run, *, against: str | None = None, match_length: bool = False, **settings: Any) -> Scores:
    """Score a run with the settings that it was planned with, or with these instead.

    `against` names the baseline; default: the plain method, else the first. `match_length` scores the baseline's captions
    again, cut to the mean length of each method's.
    """
    records = {arm.label: run.records(arm) for arm in run.arms}
    coverage = {label: _coverage(run.samples, found) for label, found in records.items()}
    arms = [arm for arm in run.arms if coverage[arm.label].answered]
    asked = [sample for sample in run.samples if all(_is_answered(records[arm.label], sample) for arm in arms)]
    if not arms or not asked:
        raise RunError(f"{run.folder}: {_nothing(coverage)}; go on with the command that began it and --out {run.folder}")
    baseline = _baseline(arms, against)
    if run.plan.get("departure"):
        if settings or match_length:
            raise SettingError(f"{run.folder} holds distances, not answers: {', '.join(settings) or 'match_length'} has no use")
        scorer, said = None, dict(run.plan["departure"])
        measured = {arm.label: [records[arm.label][sample.id] for sample in asked] for arm in arms}
        if said.get("along") == "answers":
            tallies = {label: tallies_by_step(asked, found, said["tau"]) for label, found in measured.items()}
        else:
            tallies = {label: {STATES: departure_tally(asked, found, said["tau"])} for label, found in measured.items()}
    else:
        scorer = build_scorer(run, **settings)
        said = {"task": run.plan["benchmark"]["task"], **scorer.settings()}
        tallies = {arm.label: scorer.tally(asked, _texts(records[arm.label], asked)) for arm in arms}
    figures = {name: f for groups in tallies.values() for tally in groups.values() for name, f in tally.figures.items()}
    results = {}
    for arm in run.arms:
        groups = tallies.get(arm.label, {})
        other = tallies[baseline] if scorer is not None and arm.label != baseline else {}
        matched = None
        if match_length and other and groups:
            matched = _match(scorer, asked, _texts(records[baseline], asked), _texts(records[arm.label], asked), groups)
        results[arm.label] = MethodScores(
            arm=arm,
            coverage=coverage[arm.label],
            effort=_effort(asked, records[arm.label]) if groups else None,
            groups={name: _part(tally, other.get(name)) for name, tally in groups.items()},
            matched=matched,
        )
    return Scores(
        run=run,
        scorer=said,
        baseline=baseline,
        scored=len(asked),
        figures={name: Kind(figure.percent, figure.better) for name, figure in figures.items()},
        results=results,
        right={label: {k: v for t in groups.values() for k, v in t.right.items()} for label, groups in tallies.items()},
        texts={arm.label: _texts(records[arm.label], asked) for arm in arms},
        warnings=tuple(_warnings(run, len(asked), coverage, tallies)),
    )


def build_scorer(run: Run, **settings: Any) -> Scorer:
    """The scorer of the run's task, with what its benchmark gave it to know."""
    benchmark = run.plan["benchmark"]
    given = {**run.plan.get("scoring", {}), **settings}
    scorer: Scorer = SCORERS.get(benchmark["task"]).of(benchmark.get("lexicon") or {}, **given)
    return scorer


def _part(tally: Tally, other: Tally | None) -> Part:
    is_yes_or_no = tally.figures.get("f1") is FIGURES["f1"]
    counts = named_counts(tally.counts.sum(0)) if is_yes_or_no else {}
    return Part(len(tally.right), tally.unparsed, tally.rates(), counts, None if other is None else compare(tally, other))


def _baseline(arms: Sequence[Arm], against: str | None) -> str:
    labels = [arm.label for arm in arms]
    if against is not None and against not in labels:
        raise SettingError(f"no method with answers is called {against!r}: compare against one of {', '.join(labels)}")
    plain = [arm.label for arm in arms if arm.method == "vanilla"]
    return against or (plain or labels)[0]


def _is_answered(records: Mapping[str, Record], sample: Sample) -> bool:
    return sample.id in records and not records[sample.id].failed


def _texts(records: Mapping[str, Record], asked: Sequence[Sample]) -> dict[str, str]:
    return {sample.id: records[sample.id].text for sample in asked}


def _coverage(samples: Sequence[Sample], records: Mapping[str, Record]) -> Coverage:
    found = [records[sample.id] for sample in samples if sample.id in records]
    errors = [record.failed for record in found if record.failed]
    return Coverage(
        answered=len(found) - len(errors),
        missing=len(samples) - len(found),
        failed=len(errors),
        error=errors[0] if errors else "",
        cut_off=sum(record.stop == "length" for record in found),
    )


def _nothing(coverage: Mapping[str, Coverage]) -> str:
    counts = ", ".join(f"{label} {found.answered}" for label, found in coverage.items())
    first = next((f" (first failure: {found.error})" for found in coverage.values() if found.error), "")
    return f"no sample was answered under every method; answers so far: {counts or 'none'}{first}"


def _warnings(
    run: Run, scored: int, coverage: Mapping[str, Coverage], tallies: Mapping[str, Mapping[str, Tally]]
) -> Iterator[str]:
    if left := [label for label, found in coverage.items() if not found.answered]:
        yield f"without a single answer, and left out: {', '.join(left)}"
    if scored < len(run.samples):
        yield f"{scored} of {len(run.samples)} samples are scored: the others are missing or failed under some method"
    if (
        run.plan["benchmark"]["task"] == "yesno"
        and not run.plan.get("departure")
        and not run.plan.get("decoding", {}).get("sample")
    ):
        for label, groups in tallies.items():
            if sentence := unequal_recall(groups):
                yield f"{label}: {sentence}"


def _effort(asked: Sequence[Sample], records: Mapping[str, Record]) -> Effort:
    found = [records[sample.id] for sample in asked]
    pictures, counts = by_picture(asked, [(record.milliseconds / 1000, 1.0) for record in found])
    rates = Tally(pictures, counts, {"seconds": _SECONDS}, {}).rates()
    return Effort(float(counts[:, 0].sum()), rates["seconds"], sum(record.tokens for record in found) / len(found))


def _match(
    scorer: Scorer | None,
    asked: Sequence[Sample],
    plain: Mapping[str, str],
    ours: Mapping[str, str],
    tallies: Mapping[str, Tally],
) -> Matched | None:
    """On the groups that hold captions; None where there are none."""
    texts = [sample for sample in asked if "accuracy" not in tallies[sample.group].figures]  # questions are not cut
    if scorer is None or not texts:
        return None
    whole, wanted = [plain[s.id] for s in texts], mean_words([ours[s.id] for s in texts])
    words = matching_cut(whole, wanted) if mean_words(whole) > wanted else None
    cut = {s.id: plain[s.id] if words is None else cut_words(plain[s.id], words) for s in texts}
    found = scorer.tally(texts, cut)
    against = {name: compare(tallies[name], tally) for name, tally in found.items()}
    return Matched(words, {name: _part(tally, None) for name, tally in found.items()}, against)
