"""Analyse a model's prior subspace: its spectrum, its words, and how much of it the prompts, their number, the null image and
the model decide. Blind states are collected once for each set of prompts and null image; every N and K is a slice of them.

with bars() as told:
    found = analyse_subspace(model, Prior(), pocket=True, progress=told)
Path("subspace.json").write_text(json.dumps(found.to_json()))
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
from mgap.methods.bias import token_ids
from mgap.priors.collect_states import blind_states
from mgap.priors.prior_plan import PROMPT_SETS, Prior, prompt_set
from mgap.priors.subspace import Subspace
from mgap.settings import check_choice

COUNTS = (10, 25, 50, 100, 200)
RANKS = (1, 3, 5, 10)
READOUT = ("Yes", "No")


@dataclass
class Collected:
    """Blind states by prompts and null image, as many as were asked for so far."""

    model: Model
    pocket: bool
    size: tuple[int, int] | None
    batch_size: int
    told: Progress | None
    kept: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def states(self, prompts: str, null_image: str, count: int) -> Tensor:
        """[n, d] of the first prompts of a set: `count`, or all that there are."""
        key = prompts, null_image
        if key not in self.kept or len(self.kept[key]) < count:
            asked = prompt_set(prompts, count, pocket=self.pocket)
            if key not in self.kept or len(self.kept[key]) < len(asked):
                self.kept[key] = self._collect(asked, prompts, null_image)
        return self.kept[key][:count]

    def _collect(self, asked: list[str], prompts: str, null_image: str) -> Tensor:
        chunks: list[Tensor] = []
        for chunk in blind_states(
            self.model.backbone, asked, null_image=null_image, size=self.size, batch_size=self.batch_size
        ):
            chunks.append(chunk)
            if self.told is not None:
                self.told(f"blind states: {prompts}, {null_image}", sum(map(len, chunks)), len(asked))
        return torch.cat(chunks)


@dataclass
class Among:
    """Subspaces that are put beside each other, all of one rank, and notes of those that could not be fitted."""

    rank: int
    line: Tensor | None  # [d] between two answers
    comparisons: list[SubspaceComparison] = field(default_factory=list)
    halves: list[Halves] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def compare(self, name: str, sets: Mapping[str, Tensor], known: Mapping[str, Subspace] | None = None) -> None:
        fitted = dict(known or {})
        for label, rows in sets.items():
            try:
                fitted[label] = Subspace.from_states(rows, self.rank)
            except DegenerateSubspace as error:
                self.notes.append(f"{name}: {label} left out: {error}")
        if len(fitted) > 1:
            bases = {label: (each.basis, each.count) for label, each in fitted.items()}
            self.comparisons.append(SubspaceComparison.of(name, bases, self.line))

    def halve(self, own: Tensor, ranks: Sequence[int]) -> None:
        """Every second prompt against the others."""
        parts = own[::2], own[1::2]
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
    """Everything about the subspace that `prior` asks for (default: as `mgap run` fits it).

    `prompts` are names of sets or files, compared at the prior's N; `counts` are slices of the prior's own set; `size` is
    that of the pictures, which the null image black_same_size needs. `readout` are two answers of one token each, or None.
    `states` [n, d] by name are others than the blind ones to average MGAP's step over, such as a bank's. What cannot be fitted
    is left out, and a note says so.
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
        prompt_set(name, 1, pocket=pocket)  # a file that is not there is refused now, not when the model has run for minutes
    tokenizer = model.backbone.tokenizer
    spellers = None if readout is None else [token_ids(word, tokenizer) for word in readout]
    collected, own = Collected(model, pocket, size, batch_size, progress), None
    if prior.folder is None:
        own = collected.states(prior.prompts, prior.null_image, max(prior.count, *counts, 1))
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
    if spellers is not None:
        answers = read_answers(head, basis, main.mean, spelled, *spellers)
        line = answer_line(head, answers.tokens)
    among, blind = Among(main.rank, None if line is None else line.w), dict[str, Tensor]()
    if head.cap is not None or not head.linear:
        among.notes.append("the model caps its logits or rounds what its head reads: words are those of a linear head")
    if own is None:
        among.notes.append("the prior is a saved one: its states are not known, so neither N, null images, halves nor its step")
        null = str(main.origin.get("null_image", prior.null_image))
        collected.size = size or main.origin.get("size")
        among.compare("prompts", {name: collected.states(name, null, main.count) for name in prompts}, {"saved": main})
    else:
        _vary(among, prior, own, collected, prompts, counts, null_images)
        among.halve(own, ranks)
        blind = {"blind": own[: prior.count]}
    seen = {**blind, **(states or {})}
    return SubspaceAnalysis(
        model=model.backbone.name,
        hidden_size=main.hidden_size,
        rank=main.rank,
        count=main.count,
        prior=prior.to_json(),
        spectrum=Variation.of(main),
        directions=read_directions(table, basis, main, spelled, words=words, line=line),
        readout=answers,
        steps=tuple(average_step(name, table, basis, rows, spelled, words=words, line=line) for name, rows in seen.items()),
        comparisons=tuple(among.comparisons),
        halves=tuple(among.halves),
        notes=tuple(dict.fromkeys(among.notes)),
    )


def compare_models(
    one: tuple[Model, Subspace], other: tuple[Model, Subspace], *, draws: int = 20, progress: Progress | None = None
) -> ModelComparison:
    """Two models' priors by what they do to the words that both can say; `draws` random pairs tell what the heads share."""
    report = None if progress is None else lambda done: progress("random directions", done, draws)
    return compare_sides(Side.of(*one), Side.of(*other), draws=draws, progress=report)


def _named(prior: Prior, pocket: bool) -> Prior:
    """With the prompts by the name of their set."""
    return replace(prior, prompts="questions" if pocket else "default") if prior.prompts == "auto" else prior


def _vary(
    among: Among,
    prior: Prior,
    own: Tensor,
    collected: Collected,
    prompts: Sequence[str],
    counts: Sequence[int],
    null_images: Sequence[str],
) -> None:
    """The prior among those from other prompts, from fewer or more of its own, and with other null images."""
    names = dict.fromkeys((prior.prompts, *prompts))
    sets = {name: collected.states(name, prior.null_image, prior.count) for name in names}
    short = [(name, len(rows)) for name, rows in sets.items() if len(rows) < prior.count]
    among.notes += [f"{name} has {length} prompts: fitted on these" for name, length in short]
    among.compare("prompts", sets)
    sizes = sorted({prior.count, *counts})
    if missing := [count for count in sizes if count > len(own)]:
        among.notes.append(f"{prior.prompts} has {len(own)} prompts: N = {', '.join(map(str, missing))} left out")
    among.compare("counts", {f"N = {count}": own[:count] for count in sizes if count <= len(own)})
    kinds = dict.fromkeys((prior.null_image, *null_images))
    if collected.size is None and "black_same_size" in kinds:
        del kinds["black_same_size"]
        among.notes.append("black_same_size left out: it needs the size of the pictures")
    among.compare("null_images", {kind: collected.states(prior.prompts, kind, prior.count) for kind in kinds})
