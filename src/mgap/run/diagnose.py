"""The analyses that `mgap diagnose` adds to a run of departures. Each is written once, completely or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from mgap.benchmarks.base import Benchmark, DrawnWorld
from mgap.benchmarks.yesno_questions import LABELS
from mgap.decoding.effective_states import first_states
from mgap.decoding.model import Model
from mgap.diagnosis.departure import STRENGTHS
from mgap.diagnosis.manifold_picture import FIRST_WRONG, picture_manifold, wrong_answers
from mgap.diagnosis.measure_representation import TrueCaptions, known_answers, measure_representation
from mgap.diagnosis.measure_subspace import READOUT, analyse_subspace, compare_models
from mgap.diagnosis.reference_states import aligned_states
from mgap.errors import SettingError
from mgap.io.images import open_image
from mgap.io.output_folder import write_files
from mgap.io.progress import Progress
from mgap.io.regular_files import inside
from mgap.io.strict_json import strict_json
from mgap.methods.base import Method, Seam
from mgap.methods.kinds.opposed_words import token_ids
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.priors.prior_plan import Prior, Priors
from mgap.priors.subspace import Subspace
from mgap.registry import POCKET_MODELS, WORLDS
from mgap.run.job import Job
from mgap.run.method_plans import VANILLA, build_method
from mgap.run.records import ANALYSES, Run, analysis_file
from mgap.types import Sample

PICTURES = 100  # at most, whose questions or captions measure the representation


@dataclass(frozen=True)
class Diagnosis:
    """A finished run of departures, and its model."""

    job: Job
    model: Model
    progress: Progress | None = None
    other: Callable[[], Model] | None = None  # another model, to compare priors with

    def carry_out(self, note: Callable[[str], None]) -> None:
        """Make every analysis the folder does not have yet. `note` is told of those that these questions do not allow."""
        analyses: dict[str, Callable[[], dict[str, Any]]] = {"subspace": self.subspace, "picture": self.picture}
        right = {label: len(states) for label, states in self._right_states.items()}
        if not all(sample.truth in LABELS for sample in (*self._judged.samples, *self.job.bank)):
            note("where states are moved to is left out: not all of these questions are answered by yes or no")
        elif min(right.get(label, 0) for label in LABELS) < self._k:
            note(f"where states are moved to is left out: of the bank's states {right} are right, not {self._k} of each")
        else:
            analyses["representation"] = self.representation
        if self._readout is None:
            note(f"how {' and '.join(READOUT)} lie to the prior is left out: they are not one token each of this model")
        if self.other is not None:
            analyses["models"] = partial(self.models, self.other)
        for name, measure in analyses.items():
            path = analysis_file(self.job.out, name)
            if not path.is_file():
                text = strict_json(measure(), required=str(path), ensure_ascii=False) + "\n"
                write_files(inside(self.job.out, ANALYSES), {path.name: text})

    def subspace(self) -> dict[str, Any]:
        return analyse_subspace(
            self.model,
            self._prior_plan,
            pocket=self.job.config.model in POCKET_MODELS,
            size=open_image(self._judged.picture(self._judged.samples[0].image)).size,
            readout=self._readout,
            states={"with pictures": self._bank.states},
            progress=self.progress,
        ).to_json()

    def models(self, load: Callable[[], Model]) -> dict[str, Any]:
        """Compare this model's prior with another's, fitted alike, by their effect on the words that both models have."""
        other = load()
        plan = replace(self._prior_plan, folder=None)
        priors = Priors(inside(self.job.out, "priors", "other"))
        pair = (self.model, self._prior), (other, priors.get(plan, other, self.progress))
        return compare_models(*pair, progress=self.progress).to_json()

    def representation(self) -> dict[str, Any]:
        return measure_representation(
            self.model,
            self._judged,
            self._bank,
            self.job.bank,
            self._methods,
            self._prior,
            self._strengths,
            captions=self._captions(),
            k=self._k,
            batch_size=self.job.config.batch_size,
            progress=self.progress,
        ).to_json()

    def picture(self) -> dict[str, Any]:
        """How every method moves one state: of the first question that plain decoding gets wrong, or of the first question."""
        samples, run = self._judged.samples, Run.load(self.job.out)
        (plain,) = (method for method in run.methods if method.method == VANILLA)
        wrong = wrong_answers(samples, {id: record.text for id, record in run.records(plain).items()})
        sample, rule = (
            (wrong[0], FIRST_WRONG) if wrong else (samples[0], "the first {group} question; none is answered wrongly")
        )
        given = self.job.config.departure
        how = {key: given[key] for key in ("k", "delta", "metric", "search") if key in given}
        return picture_manifold(
            self.model,
            Manifold.of(self._bank, device=self.model.backbone.device, **how),
            self._bank.parts,
            [sample],
            self._judged.picture,
            self._methods,
            rule=rule,
            strengths=self._strengths,
            reference=self._reference(sample),
            null_image=self._prior_plan.null_image,
            progress=self.progress,
        ).to_json()

    def _reference(self, sample: Sample) -> Tensor | None:
        """Where the state would be if the model knew; None if the bank has too few states with that right answer."""
        if sample.truth not in self._right_states or len(self._right_states[sample.truth]) < self._k:
            return None
        image = open_image(self._judged.picture(sample.image))
        with first_states(self.model, None) as read:
            h = read(self.model.backbone.encode([image], [sample.prompt])).h
        return aligned_states(h, [sample.truth], self._right_states, self._k)

    def _captions(self) -> TrueCaptions | None:
        """True captions exist for drawn scenes only, and are used for methods at the head only."""
        if not self.job.config.is_drawn or not any(method.seam is Seam.HEAD for method in self._methods.values()):
            return None
        world: DrawnWorld = WORLDS.get(self.job.config.data_set)
        return TrueCaptions(*world.captions(self.job.config, min(PICTURES, self.job.config.scenes)))

    @cached_property
    def _readout(self) -> tuple[str, str] | None:
        """The two answers, if each is a single token of the model."""
        try:
            for word in READOUT:
                token_ids(word, self.model.backbone.tokenizer)
        except SettingError:
            return None
        return READOUT

    @cached_property
    def _right_states(self) -> dict[str, Tensor]:
        return known_answers(self.model, self._bank, self.job.bank)

    @property
    def _k(self) -> int:
        """Number of right states averaged into a reference; the same k as for distances."""
        return int(self.job.config.departure.get("k", 10))

    @property
    def _strengths(self) -> list[float]:
        return [float(value) for value in self.job.config.departure.get("strengths", STRENGTHS)]

    @cached_property
    def _bank(self) -> Bank:
        return Bank.load(self.job.out / "bank")

    @cached_property
    def _judged(self) -> Benchmark:
        """The first pictures of the judged ones."""
        samples = self.job.benchmark.samples
        pictures = set(list(dict.fromkeys(sample.image for sample in samples))[:PICTURES])
        return replace(self.job.benchmark, samples=tuple(sample for sample in samples if sample.image in pictures))

    @cached_property
    def _prior_plan(self) -> Prior:
        """The prior of the first method that has one, else the default."""
        return next((plan.prior for plan in self.job.config.methods if plan.prior is not None), Prior())

    @cached_property
    def _priors(self) -> Priors:
        return Priors(inside(self.job.out, "priors"))

    @cached_property
    def _prior(self) -> Subspace:
        return self._priors.get(self._prior_plan, self.model, self.progress)

    @cached_property
    def _methods(self) -> dict[str, Method]:
        """By label, without plain decoding."""
        built = {plan.label: build_method(plan, self.model, self._priors, self.progress) for plan in self.job.config.methods}
        return {label: method for label, method in built.items() if method is not None}
