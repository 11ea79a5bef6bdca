"""Measure the representation analysis (paper, section 5 and Theorem 1). One pass per method serves all strengths.

result = measure_representation(model, benchmark, bank, bank_samples, methods, prior)    # methods by label, each with a state

The benchmark and the bank's samples are yes/no questions, about different pictures. `captions` adds the `teacher` reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mgap.backbones.asked_rows import Asked, asking
from mgap.backbones.token_rows import Ids, tokenize_text
from mgap.benchmarks.base import Benchmark, open_pictures
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.benchmarks.yesno_questions import LABELS
from mgap.decoding.effective_states import StepStates, first_states
from mgap.decoding.model import Model
from mgap.diagnosis.departure import STRENGTHS
from mgap.diagnosis.reference_states import aligned_states, closest_text, forced_states, right_states, shared_prefix_length
from mgap.diagnosis.representation import Line, Representation, figures
from mgap.diagnosis.shift import Terms, split_shift
from mgap.diagnosis.theorem1 import Oracle
from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.methods.base import Method, Seam
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.mgap import MGAP
from mgap.priors.bank import Bank
from mgap.priors.subspace import Subspace
from mgap.settings import check_strength
from mgap.types import Sample


@dataclass(frozen=True)
class TrueCaptions:
    """Caption prompts, with one or more true texts for every sample, by its id."""

    benchmark: Benchmark
    texts: Mapping[str, Sequence[str]]
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        missing = [sample.id for sample in self.benchmark.samples if not any(self.texts.get(sample.id, ()))]
        if missing:
            raise SettingError(f"{len(missing)} samples have no true text, {missing[0]!r} first: give texts[id] = [text, ...]")


def measure_representation(
    model: Model,
    benchmark: Benchmark,
    bank: Bank,
    bank_samples: Sequence[Sample],
    methods: Mapping[str, Method],
    prior: Subspace,
    strengths: Sequence[float] = STRENGTHS,
    *,
    captions: TrueCaptions | None = None,
    k: int = 10,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Representation:
    """Shifts of every method at every strength, split by `prior`, and Theorem 1 against the `aligned` and `teacher` references.

    The theorem uses a method's own subspace if it has one. `bank_samples` are the bank's rows. `captions` are measured only for
    methods at the head.
    """
    _check(model, benchmark, bank, bank_samples, methods, prior, strengths)
    at_head = {label: method for label, method in methods.items() if method.seam is Seam.HEAD}
    if captions is not None and not at_head:
        raise SettingError(
            f"captions are for methods at the head, and {', '.join(methods)} is none: add mgap, or leave them out"
        )
    plain = _Plain.read(model, benchmark, bank, bank_samples, k, _batches(benchmark.samples, batch_size), progress)
    shifts, oracle = list[Line](), list[Line]()
    for label, method in methods.items():
        gathered = _Gathered(label, method, prior, strengths)
        with first_states(model, method) as read:
            for rows in _batches(benchmark.samples, batch_size):
                batch = benchmark.samples[rows]
                with asking(model.backbone.model, [Asked.by_name(s.image, s.prompt, benchmark.picture) for s in batch]):
                    states = read(_encode(model, benchmark, batch))
                gathered.add(states, {name: reference[rows] for name, reference in plain.references.items()})
                _report(progress, f"states of {label}", rows.stop, len(benchmark.samples))
        shifts += gathered.shift_lines(benchmark.samples)
        oracle += gathered.oracle_lines(benchmark.samples, {"wrong": plain.wrong, "right": plain.right})
    counts = {"right": sum(plain.right), "wrong": sum(plain.wrong)}
    counts["unclear"] = len(benchmark.samples) - sum(counts.values())
    notes: list[str] = []
    if captions is not None:
        lines, steps = _measure_captions(model, captions, at_head, prior, strengths, batch_size, progress)
        oracle, counts = [*oracle, *lines], counts | steps
        if others := [label for label in methods if label not in at_head]:
            notes.append(f"Not followed along captions, because they do not act at the head: {', '.join(others)}.")
    name, (width, rank) = model.backbone.name, prior.basis.shape
    return Representation(name, width, rank, len(bank), k, counts, tuple(shifts), tuple(oracle), tuple(notes))


def _check(
    model: Model,
    benchmark: Benchmark,
    bank: Bank,
    bank_samples: Sequence[Sample],
    methods: Mapping[str, Method],
    prior: Subspace,
    strengths: Sequence[float],
) -> None:
    """Refuse whatever can be refused before the model runs."""
    if not methods or not strengths:
        raise SettingError("nothing to measure: give at least one method and one strength, such as 0.5")
    for strength in strengths:
        check_strength("strengths", strength)
    for method in methods.values():
        method.require_state()
    if not len(bank) == len(bank_samples) == len(bank.rows.unique()):
        raise SettingError(f"a bank of {len(bank)} states with {len(bank_samples)} samples: give the sample of every state")
    if (bank.tokens < 0).any():
        raise SettingError("this bank does not know which tokens were chosen from its states: collect it with Bank.collect")
    for sample in (*benchmark.samples, *bank_samples):
        if sample.truth not in LABELS:
            raise SettingError(
                f"sample {sample.id!r} has the truth {sample.truth!r:.40}: give questions with yes or no as truth"
            )
    if both := {sample.image for sample in benchmark.samples} & {sample.image for sample in bank_samples}:
        raise SettingError(f"{len(both)} pictures are in the bank and among those judged, such as {min(both)}: set some aside")
    bank.require(model.backbone)
    prior.require(model.backbone)


def known_answers(model: Model, bank: Bank, bank_samples: Sequence[Sample]) -> dict[str, Tensor]:
    """By true answer, the bank's states [m, d] of questions that plain decoding answered correctly, on the head's device."""
    truths = [bank_samples[row].truth for row in bank.rows.tolist()]
    is_right = [verdict == truth for verdict, truth in zip(_verdicts(model, bank.tokens.tolist()), truths, strict=True)]
    return right_states(bank.states.to(model.backbone.device), truths, is_right)


@dataclass(frozen=True)
class _Plain:
    """How plain decoding answers the questions, with their `aligned` references and controls."""

    right: list[bool]
    wrong: list[bool]  # if neither, the first word is neither yes nor no
    references: dict[str, Tensor]  # [n, d] each

    @classmethod
    def read(
        cls,
        model: Model,
        benchmark: Benchmark,
        bank: Bank,
        bank_samples: Sequence[Sample],
        k: int,
        batches: Iterator[slice],
        progress: Progress | None,
    ) -> _Plain:
        by_answer = known_answers(model, bank, bank_samples)
        verdicts, parts = list[str | None](), dict[str, list[Tensor]]()
        with first_states(model, None) as read:
            for rows in batches:
                samples = benchmark.samples[rows]
                states = read(_encode(model, benchmark, samples))
                verdicts += _verdicts(model, states.plain_tokens())
                truths = [sample.truth for sample in samples]
                others = [LABELS[truth == LABELS[0]] for truth in truths]
                for name, answers in (("aligned", truths), ("other answer", others)):
                    parts.setdefault(name, []).append(aligned_states(states.h, answers, by_answer, k).cpu())
                _report(progress, "states of plain decoding", rows.stop, len(benchmark.samples))
        pairs = list(zip(verdicts, (sample.truth for sample in benchmark.samples), strict=True))
        wrong = [verdict is not None and verdict != truth for verdict, truth in pairs]
        references = {name: torch.cat(batch_states) for name, batch_states in parts.items()}
        return cls([verdict == truth for verdict, truth in pairs], wrong, references)


@dataclass
class _Gathered:
    """The terms of one method by strength, added batch by batch; no states are kept."""

    label: str
    method: Method
    prior: Subspace
    strengths: Sequence[float]
    shifts: dict[float, list[Terms]] = field(default_factory=dict)
    oracles: dict[tuple[str, float], list[Terms]] = field(default_factory=dict)  # by reference and strength

    def add(self, states: StepStates, references: Mapping[str, Tensor]) -> None:
        h = states.h.cpu()
        for strength in self.strengths:
            after = states.at(strength).cpu()
            self.shifts.setdefault(strength, []).append(split_shift(h, after, self.prior.basis).terms())
            beta = self.method.betas(states.head, states.h, strength).cpu() if isinstance(self.method, MGAP) else None
            for name, reference in references.items():
                terms = Oracle.of(h, reference, self._basis).terms(after, beta)
                self.oracles.setdefault((name, strength), []).append(terms)

    @property
    def _basis(self) -> Tensor:
        return self.method.subspace.basis if isinstance(self.method, MGAP) else self.prior.basis

    def shift_lines(self, samples: Sequence[Sample]) -> list[Line]:
        return [Line(self.label, strength, figures(samples, _join(parts))) for strength, parts in self.shifts.items()]

    def oracle_lines(self, samples: Sequence[Sample], groups: Mapping[str, Sequence[bool]]) -> list[Line]:
        lines = []
        for group, is_member in groups.items():
            mask = torch.tensor(is_member, dtype=torch.bool)
            members = [sample for sample, inside in zip(samples, is_member, strict=True) if inside]
            for (reference, strength), parts in self.oracles.items():
                terms = {name: (part[mask], whole[mask]) for name, (part, whole) in _join(parts).items()}
                lines.append(Line(self.label, strength, figures(members, terms), reference, group))
        return lines


def _measure_captions(
    model: Model,
    captions: TrueCaptions,
    methods: Mapping[str, Method],
    prior: Subspace,
    strengths: Sequence[float],
    batch_size: int,
    progress: Progress | None,
) -> tuple[list[Line], dict[str, int]]:
    """Theorem 1 along captions, and the number of steps before (agree) and after (apart) plain and true text diverge."""
    samples, backbone, head = captions.benchmark.samples, model.backbone, model.backbone.probe_head()
    gathered = [_Gathered(label, method, prior, strengths) for label, method in methods.items()]
    step_samples, apart = list[Sample](), list[bool]()
    for rows in _batches(samples, batch_size):
        batch = samples[rows]
        images = open_pictures(batch, captions.benchmark.picture)
        prompts = [sample.prompt for sample in batch]
        answers = model.answers(images, prompts, batch_size=batch_size, max_new_tokens=captions.max_new_tokens)
        plain = [list(answer.token_ids) for answer in answers]
        true = [closest_text(ids, _tokenize(model, captions.texts[s.id], ids)) for ids, s in zip(plain, batch, strict=True)]
        lengths = [min(map(len, pair)) for pair in zip(plain, true, strict=True)]
        inputs = backbone.encode(images, prompts)
        h, reference = (
            torch.cat(forced_states(backbone, inputs, [text[:n] for text, n in zip(texts, lengths, strict=True)]))
            for texts in (plain, true)
        )
        for method_terms in gathered:
            states = StepStates(method_terms.method, head, HeadInputs(h.to(head.device, head.wide)))
            method_terms.add(states, {"teacher": reference, "other step": reference.roll(len(reference) // 2, 0)})
        for sample, plain_ids, true_ids, length in zip(batch, plain, true, lengths, strict=True):
            prefix = shared_prefix_length(plain_ids, true_ids)
            step_samples += [sample] * length
            apart += [step > prefix for step in range(length)]
        _report(progress, "captions", rows.stop, len(samples))
    lines = [line for method_terms in gathered for line in method_terms.oracle_lines(step_samples, {"apart": apart})]
    return lines, {"apart": sum(apart), "agree": len(apart) - sum(apart)}


def _tokenize(model: Model, texts: Sequence[str], like: Sequence[int]) -> list[Ids]:
    """The tokens of texts, with a leading space if the model's own text `like` has one, as after a colon."""
    tokenizer = model.backbone.tokenizer
    space = " " if tokenizer.decode(like, skip_special_tokens=True).startswith(" ") else ""
    return [tokenize_text(tokenizer, space + text.strip()) for text in texts]


def _verdicts(model: Model, tokens: Sequence[int]) -> list[str | None]:
    """yes, no or None for each first token."""
    return [yes_or_no(word) for word in model.backbone.words(tokens)]


def _encode(model: Model, benchmark: Benchmark, samples: Sequence[Sample]) -> dict[str, Tensor]:
    return model.backbone.encode(open_pictures(samples, benchmark.picture), [sample.prompt for sample in samples])


def _batches(samples: Sequence[Sample], size: int) -> Iterator[slice]:
    if size < 1:
        raise SettingError(f"batch_size={size} must be at least 1")
    for start in range(0, len(samples), size):
        yield slice(start, min(start + size, len(samples)))


def _join(parts: Sequence[Terms]) -> Terms:
    names = parts[0]
    return {name: (torch.cat([p[name][0] for p in parts]), torch.cat([p[name][1] for p in parts])) for name in names}


def _report(progress: Progress | None, stage: str, done: int, total: int) -> None:
    if progress is not None:
        progress(stage, done, total)
