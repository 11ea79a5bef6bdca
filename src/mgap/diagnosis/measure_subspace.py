"""Analyse a model's prior subspace: its spectrum, its words, and how much it depends on prompts, N, null image and model.

Blind states are collected once for each set of prompts and null image; every N and K is a slice of them.

with bars() as progress:
    analysis = analyse_subspace(model, Prior(), pocket=True, progress=progress)
Path("subspace.json").write_text(json.dumps(analysis.to_json()))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mgap.backbones.null_images import NULL_IMAGES
from mgap.decoding.attach import attached
from mgap.decoding.model import Model
from mgap.diagnosis.model_comparison import Side, compare_sides
from mgap.diagnosis.principal_angles import SubspaceComparison
from mgap.diagnosis.subspace_analysis import Halves, ModelComparison, SubspaceAnalysis, Variation
from mgap.diagnosis.subspace_words import (
    answer_line,
    average_step,
    orient,
    read_answers,
    read_directions,
    spellings,
    word_table,
)
from mgap.errors import DegenerateSubspace, PromptError, SettingError
from mgap.io.progress import Progress
from mgap.methods.kinds.opposed_words import token_ids
from mgap.priors.collect_states import blind_states
from mgap.priors.prior_plan import PROMPT_SETS, Prior, prompt_set
from mgap.priors.subspace import Subspace
from mgap.settings import check_choice

COUNTS = (10, 25, 50, 100, 200)
RANKS = (1, 3, 5, 10)
READOUT = ("Yes", "No")


@dataclass
class BlindStateCache:
    """Blind states by prompts and null image, collected as needed."""

    model: Model
    pocket: bool
    size: tuple[int, int] | None
    batch_size: int
    progress: Progress | None
    cache: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def states(self, prompts: str, null_image: str, count: int) -> Tensor:
        """States [n, d] of the first `count` prompts of a set, or of all if it has fewer."""
        key = prompts, null_image
        if key not in self.cache or len(self.cache[key]) < count:
            texts = prompt_set(prompts, count, pocket=self.pocket)
            if key not in self.cache or len(self.cache[key]) < len(texts):
                self.cache[key] = self._collect(texts, prompts, null_image)
        return self.cache[key][:count]

    def _collect(self, texts: list[str], prompts: str, null_image: str) -> Tensor:
        chunks: list[Tensor] = []
        for chunk in blind_states(
            self.model.backbone, texts, null_image=null_image, size=self.size, batch_size=self.batch_size
        ):
            chunks.append(chunk)
            if self.progress is not None:
                self.progress(f"blind states: {prompts}, {null_image}", sum(map(len, chunks)), len(texts))
        return torch.cat(chunks)


@dataclass
class ComparisonBuilder:
    """Comparisons of subspaces of one rank, with notes on those that could not be fitted."""

    rank: int
    line: Tensor | None  # [d] between two answers
    comparisons: list[SubspaceComparison] = field(default_factory=list)
    halves: list[Halves] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def compare(self, name: str, sets: Mapping[str, Tensor], fitted: Mapping[str, Subspace] | None = None) -> None:
        """Fit a subspace to each set of states, and compare them with each other and with those fitted already."""
        subspaces = dict(fitted or {})
        for label, rows in sets.items():
            try:
                subspaces[label] = Subspace.from_states(rows, self.rank)
            except DegenerateSubspace as error:
                self.notes.append(f"{name}: {label} left out: {error}")
        if len(subspaces) > 1:
            bases = {label: (subspace.basis, subspace.count) for label, subspace in subspaces.items()}
            self.comparisons.append(SubspaceComparison.of(name, bases, self.line))

    def compare_halves(self, states: Tensor, ranks: Sequence[int]) -> None:
        """Every second prompt against the others."""
        parts = states[::2], states[1::2]
        for rank in sorted(set(ranks)):
            try:
                one, other = (Subspace.from_states(rows, rank).basis for rows in parts)
            except DegenerateSubspace as error:
                self.notes.append(f"halves at rank {rank} left out: {error}")
            else:
                self.halves.append(Halves.of(one, other, len(parts[1])))


def analyse_subspace(
    model: Model,
    prior: Prior | None = None,
    *,
    pocket: bool = False,
    prompts: Sequence[str] = PROMPT_SETS,
    counts: Sequence[int] = COUNTS,
    ranks: Sequence[int] = RANKS,
    null_images: Sequence[str] = NULL_IMAGES,
    size: tuple[int, int] | None = None,
    readout: tuple[str, str] | None = READOUT,
    words: int = 8,
    states: Mapping[str, Tensor] | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> SubspaceAnalysis:
    """The full analysis of the subspace that `prior` describes (default: as `mgap run` fits it).

    `prompts` are names of sets or files, compared at the prior's N; `counts` are slices of the prior's own set; `size` is the
    pictures' size, needed for the null image black_same_size. `readout` are two answers of one token each, or None. `states`
    [n, d] by name are further states to average MGAP's step over, such as a bank's. What cannot be fitted is left out, with a
    note.
    """
    prior = _named(prior or Prior(), pocket)
    if active := attached(model.backbone.model):
        raise SettingError(f"{active[0].method.name} is attached to this model: a subspace is of plain states; detach it")
    for name, values in (("counts", counts), ("ranks", ranks), ("words", (words,)), ("batch_size", (batch_size,))):
        if any(value < 1 for value in values):
            raise SettingError(f"{name}={values!r}: whole numbers of at least 1 are meant")
    for kind in null_images:
        check_choice("null_images", kind, NULL_IMAGES)
    for name in prompts:
        prompt_set(name, 1, pocket=pocket)  # refuses a missing file now, not after minutes of work
    tokenizer = model.backbone.tokenizer
    readout_tokens = None if readout is None else [token_ids(word, tokenizer) for word in readout]
    blind, own = BlindStateCache(model, pocket, size, batch_size, progress), None
    if prior.folder is None:
        own = blind.states(prior.prompts, prior.null_image, max(prior.count, *counts, 1))
        if len(own) < prior.count:
            raise PromptError(f"a prior from {prior.count} prompts: {prior.prompts} has {len(own)}; give a file with more")
        main = Subspace.from_states(own[: prior.count], prior.rank)
    else:
        main = Subspace.load(prior.folder)
        main.require(model.backbone)
    head = model.backbone.probe_head()
    spelled, basis = spellings(tokenizer, head.vocab_size), orient(main.basis, main.mean)
    table = word_table(head, basis, list(spelled))
    answers, line = None, None
    if readout_tokens is not None:
        answers = read_answers(head, basis, main.mean, spelled, *readout_tokens)
        line = answer_line(head, answers.tokens)
    builder, step_states = ComparisonBuilder(main.rank, None if line is None else line.w), dict(states or {})
    if head.cap is not None or not head.linear:
        builder.notes.append("the model caps its logits or rounds what its head reads: words are those of a linear head")
    if own is None:
        builder.notes.append(
            "the prior is a saved one: its states are not known, so neither N, null images, halves nor its step"
        )
        null = str(main.origin.get("null_image", prior.null_image))
        blind.size = size or main.origin.get("size")
        builder.compare("prompts", {name: blind.states(name, null, main.count) for name in prompts}, {"saved": main})
    else:
        _vary(builder, prior, own, blind, prompts, counts, null_images)
        builder.compare_halves(own, ranks)
        step_states = {"blind": own[: prior.count], **step_states}
    return SubspaceAnalysis(
        model=model.backbone.name,
        hidden_size=main.hidden_size,
        rank=main.rank,
        count=main.count,
        prior=prior.to_json(),
        spectrum=Variation.of(main),
        directions=read_directions(table, basis, main, spelled, words=words, line=line),
        readout=answers,
        steps=tuple(
            average_step(name, table, basis, rows, spelled, words=words, line=line) for name, rows in step_states.items()
        ),
        comparisons=tuple(builder.comparisons),
        halves=tuple(builder.halves),
        notes=tuple(dict.fromkeys(builder.notes)),
    )


def compare_models(
    one: tuple[Model, Subspace], other: tuple[Model, Subspace], *, draws: int = 20, progress: Progress | None = None
) -> ModelComparison:
    """Compare two models' priors by their effect on the tokens of both; `draws` random pairs show what the heads share."""
    report = None if progress is None else lambda done: progress("random directions", done, draws)
    return compare_sides(Side.of(*one), Side.of(*other), draws=draws, progress=report)


def _named(prior: Prior, pocket: bool) -> Prior:
    """Replace the prompts "auto" by the name of their set."""
    return replace(prior, prompts="questions" if pocket else "default") if prior.prompts == "auto" else prior


def _vary(
    builder: ComparisonBuilder,
    prior: Prior,
    own: Tensor,
    blind: BlindStateCache,
    prompts: Sequence[str],
    counts: Sequence[int],
    null_images: Sequence[str],
) -> None:
    """Compare the prior with those from other prompts, from fewer or more of its own, and with other null images."""
    names = dict.fromkeys((prior.prompts, *prompts))
    sets = {name: blind.states(name, prior.null_image, prior.count) for name in names}
    short = [(name, len(rows)) for name, rows in sets.items() if len(rows) < prior.count]
    builder.notes += [f"{name} has {length} prompts: fitted on these" for name, length in short]
    builder.compare("prompts", sets)
    sizes = sorted({prior.count, *counts})
    if missing := [count for count in sizes if count > len(own)]:
        builder.notes.append(f"{prior.prompts} has {len(own)} prompts: N = {', '.join(map(str, missing))} left out")
    builder.compare("counts", {f"N = {count}": own[:count] for count in sizes if count <= len(own)})
    kinds = dict.fromkeys((prior.null_image, *null_images))
    if blind.size is None and "black_same_size" in kinds:
        del kinds["black_same_size"]
        builder.notes.append("black_same_size left out: it needs the size of the pictures")
    builder.compare("null_images", {kind: blind.states(prior.prompts, kind, prior.count) for kind in kinds})
