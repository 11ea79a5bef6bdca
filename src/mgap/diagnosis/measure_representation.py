"""Measure the representation analysis (paper, section 5 and Theorem 1): one pass a method serves every strength.

found = measure_representation(model, benchmark, bank, bank_samples, methods, prior)    # methods by label, each with a state

The benchmark asks yes/no questions; so do the bank's samples, about other pictures. `captions` adds the `teacher` reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mgap.backbones.token_rows import Ids, spell
from mgap.benchmarks.base import Benchmark, open_pictures
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.benchmarks.yesno_questions import LABELS
from mgap.decoding.effective_states import StepStates, first_states
from mgap.decoding.model import Model
from mgap.diagnosis.departure import STRENGTHS
from mgap.diagnosis.reference_states import aligned_states, closest_text, common, forced_states, right_states
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
    """Requests to describe, and what is true: one text or several for every sample, by its id."""

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

    The theorem is about a method's own subspace, where it has one. `bank_samples` are the bank's rows. `captions` are for
    methods at the head: what others read along a caption is not followed here.
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
                seen = read(_encode(model, benchmark, benchmark.samples[rows]))
                gathered.add(seen, {name: states[rows] for name, states in plain.references.items()})
                _tell(progress, f"states of {label}", rows.stop, len(benchmark.samples))
        shifts += gathered.shift_lines(benchmark.samples)
        oracle += gathered.oracle_lines(benchmark.samples, {"wrong": plain.wrong, "right": plain.right})
    counts = {"right": sum(plain.right), "wrong": sum(plain.wrong)}
    counts["unclear"] = len(benchmark.samples) - sum(counts.values())
    notes: list[str] = []
    if captions is not None:
        found, steps = _teach(model, captions, at_head, prior, strengths, batch_size, progress)
        oracle, counts = [*oracle, *found], counts | steps
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
    """Everything that can be refused before the model runs."""
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
    """By true answer, the states of a bank of questions [m, d] that plain decoding answered rightly, on the head's device."""
    truths = [bank_samples[row].truth for row in bank.rows.tolist()]
    is_right = [word == truth for word, truth in zip(_words(model, bank.tokens.tolist()), truths, strict=True)]
    return right_states(bank.states.to(model.backbone.device), truths, is_right)


@dataclass(frozen=True)
class _Plain:
    """What plain decoding says to the questions, and their `aligned` references and controls."""

    right: list[bool]
    wrong: list[bool]  # neither: the first word says neither yes nor no
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
        known = known_answers(model, bank, bank_samples)
        words, found = list[str | None](), dict[str, list[Tensor]]()
        with first_states(model, None) as read:
            for rows in batches:
                samples = benchmark.samples[rows]
                seen = read(_encode(model, benchmark, samples))
                words += _words(model, seen.plain_tokens())
                truths = [sample.truth for sample in samples]
                others = [LABELS[truth == LABELS[0]] for truth in truths]
                for name, answers in (("aligned", truths), ("other answer", others)):
                    states = aligned_states(seen.h, answers, known, k)
                    found.setdefault(name, []).append(states.cpu())
                _tell(progress, "states of plain decoding", rows.stop, len(benchmark.samples))
        pairs = list(zip(words, (sample.truth for sample in benchmark.samples), strict=True))
        wrong = [word is not None and word != truth for word, truth in pairs]
        references = {name: torch.cat(parts) for name, parts in found.items()}
        return cls([word == truth for word, truth in pairs], wrong, references)


@dataclass
class _Gathered:
    """The terms of one method, strength by strength, as batches come in; no state is kept."""

    label: str
    method: Method
    prior: Subspace
    strengths: Sequence[float]
    shifts: dict[float, list[Terms]] = field(default_factory=dict)
    oracles: dict[tuple[str, float], list[Terms]] = field(default_factory=dict)  # by reference and strength

    def add(self, seen: StepStates, references: Mapping[str, Tensor]) -> None:
        h = seen.h.cpu()
        for strength in self.strengths:
            after = seen.at(strength).cpu()
            self.shifts.setdefault(strength, []).append(split_shift(h, after, self.prior.basis).terms())
            beta = self.method.betas(seen.head, seen.h, strength).cpu() if isinstance(self.method, MGAP) else None
            for name, states in references.items():
                terms = Oracle.of(h, states, self._basis).terms(after, beta)
                self.oracles.setdefault((name, strength), []).append(terms)

    @property
    def _basis(self) -> Tensor:
        return self.method.subspace.basis if isinstance(self.method, MGAP) else self.prior.basis

    def shift_lines(self, samples: Sequence[Sample]) -> list[Line]:
        return [Line(self.label, strength, figures(samples, _join(parts))) for strength, parts in self.shifts.items()]

    def oracle_lines(self, samples: Sequence[Sample], groups: Mapping[str, Sequence[bool]]) -> list[Line]:
        lines = []
        for group, chosen in groups.items():
            inside = torch.tensor(chosen, dtype=torch.bool)
            own = [sample for sample, is_inside in zip(samples, chosen, strict=True) if is_inside]
            for (reference, strength), parts in self.oracles.items():
                terms = {name: (part[inside], whole[inside]) for name, (part, whole) in _join(parts).items()}
                lines.append(Line(self.label, strength, figures(own, terms), reference, group))
        return lines


def _teach(
    model: Model,
    captions: TrueCaptions,
    methods: Mapping[str, Method],
    prior: Subspace,
    strengths: Sequence[float],
    batch_size: int,
    progress: Progress | None,
) -> tuple[list[Line], dict[str, int]]:
    """Theorem 1 along captions, and at how many steps plain and true text agree so far or are apart."""
    samples, backbone, head = captions.benchmark.samples, model.backbone, model.backbone.probe_head()
    gathered = [_Gathered(label, method, prior, strengths) for label, method in methods.items()]
    rows_of, apart = list[Sample](), list[bool]()
    for rows in _batches(samples, batch_size):
        batch = samples[rows]
        images = open_pictures(batch, captions.benchmark.picture)
        prompts = [sample.prompt for sample in batch]
        answers = model.answers(images, prompts, batch_size=batch_size, max_new_tokens=captions.max_new_tokens)
        plain = [list(answer.token_ids) for answer in answers]
        true = [closest_text(said, _spell(model, captions.texts[s.id], said)) for said, s in zip(plain, batch, strict=True)]
        lengths = [min(map(len, pair)) for pair in zip(plain, true, strict=True)]
        inputs = backbone.encode(images, prompts)
        h, reference = (
            torch.cat(forced_states(backbone, inputs, [text[:n] for text, n in zip(texts, lengths, strict=True)]))
            for texts in (plain, true)
        )
        for one in gathered:
            seen = StepStates(one.method, head, HeadInputs(h.to(head.device, head.wide)))
            one.add(seen, {"teacher": reference, "other step": reference.roll(len(reference) // 2, 0)})
        for sample, said, truth, length in zip(batch, plain, true, lengths, strict=True):
            alike = common(said, truth)
            rows_of += [sample] * length
            apart += [step > alike for step in range(length)]
        _tell(progress, "captions", rows.stop, len(samples))
    lines = [line for one in gathered for line in one.oracle_lines(rows_of, {"apart": apart})]
    return lines, {"apart": sum(apart), "agree": len(apart) - sum(apart)}


def _spell(model: Model, texts: Sequence[str], like: Sequence[int]) -> list[Ids]:
    """The tokens of texts, which begin as one that the model made: after a colon, with a space."""
    tokenizer = model.backbone.tokenizer
    space = " " if tokenizer.decode(like, skip_special_tokens=True).startswith(" ") else ""
    return [spell(tokenizer, space + text.strip()) for text in texts]


def _words(model: Model, tokens: Sequence[int]) -> list[str | None]:
    """yes, no or None for each of these first tokens."""
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


def _tell(progress: Callable[[str, int, int], None] | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, done, total)
