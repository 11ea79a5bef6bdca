"""Compute the picture of the manifold (paper, figure 3): one sample, or the mean of several, under several methods.

    (sample, *_) = wrong_answers(samples, answers)
    data = picture_manifold(model, manifold, bank.parts, [sample], picture, {"VCD": vcd, "MGAP": ours}, rule=FIRST_WRONG)
    print_manifold(data).save("figures")

For several samples, marks and paths are means over their states; d_k is the mean of their d_k, not the d_k of the mean state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mgap.backbones.asked_rows import Asked, asking
from mgap.benchmarks.base import open_pictures
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.decoding.effective_states import first_states
from mgap.decoding.model import Model
from mgap.diagnosis.departure import STRENGTHS
from mgap.diagnosis.landscape import plane_of, project, shares_of
from mgap.diagnosis.manifold_figure import BLIND, JOINT, TRUTH, ManifoldPicture, PathPoint
from mgap.errors import SettingError
from mgap.io.images import Opener
from mgap.io.progress import Progress
from mgap.methods.base import Method
from mgap.priors.collect_states import blind_states
from mgap.priors.manifold import Manifold
from mgap.priors.spectrum import Spectrum
from mgap.settings import check_strength
from mgap.types import Sample

FIRST_WRONG = "the first {group} question that plain decoding answers wrongly"
DRAWN = 2000  # the most states of the bank that are shown


def wrong_answers(samples: Sequence[Sample], answers: Mapping[str, str]) -> list[Sample]:
    """The yes/no questions that were answered wrongly, in order; `answers` by id. An unclear answer is not wrong."""
    verdicts = {sample.id: yes_or_no(answers[sample.id]) for sample in samples}
    return [sample for sample in samples if verdicts[sample.id] not in (None, sample.truth)]


def picture_manifold(
    model: Model,
    manifold: Manifold,
    bank: Sequence[Tensor],
    samples: Sequence[Sample],
    picture: Opener,
    methods: Mapping[str, Method],
    *,
    rule: str,
    strengths: Sequence[float] = STRENGTHS,
    reference: Tensor | None = None,
    null_image: str = "black336",
    drawn: int = DRAWN,
    seed: int = 0,
    progress: Progress | None = None,
) -> ManifoldPicture:
    """`bank` holds the states of `manifold`, in parts [n, d]; at most `drawn` of them are shown, sampled with `seed`.

    `rule` says how the samples were chosen; {group} in it is replaced by theirs. `reference` is the state of the ground truth
    [d], or one for each sample [n, d]; None leaves that mark out.
    """
    if not samples or not methods or not strengths:
        raise SettingError("a picture of the manifold needs a sample, a method and a strength: give at least one of each")
    report = progress or (lambda *_: None)
    report("principal directions of the bank", 0, 1)
    axes = plane_of(bank)
    report("principal directions of the bank", 1, 1)
    backbone, prompts = model.backbone, [sample.prompt for sample in samples]
    images = open_pictures(samples, picture)
    asked = [Asked(image, sample.prompt, sample.image) for image, sample in zip(images, samples, strict=True)]
    blind = torch.cat(list(blind_states(backbone, prompts, null_image=null_image, size=images[0].size)))  # [n, d]
    with first_states(model, None) as read:
        marks = {BLIND: _mean_position(axes, blind), JOINT: _mean_position(axes, read(backbone.encode(images, prompts)).h)}
    if reference is not None:
        marks[TRUTH] = _mean_position(axes, reference.reshape(-1, reference.shape[-1]))
    paths = {}
    for number, (label, method) in enumerate(methods.items(), start=1):
        with first_states(model, method) as read, asking(backbone.model, asked):
            states = read(backbone.encode(images, prompts))
        moved = {check_strength("strengths", strength): states.at(strength) for strength in strengths}
        paths[label] = tuple(
            PathPoint(strength, *_mean_position(axes, h), float(manifold.distances(h).mean())) for strength, h in moved.items()
        )
        report("paths of methods", number, len(methods))
    shown, count = _sample(bank, drawn, seed)
    return ManifoldPicture(
        bank=tuple(map(tuple, project(axes, shown).tolist())),
        marks=marks,
        paths=paths,
        tau=manifold.tau,
        k=manifold.k,
        shares=shares_of(axes),
        states=count,
        said=_describe(samples, rule),
    )


def _mean_position(axes: Spectrum, states: Tensor) -> tuple[float, float]:
    x, y = project(axes, states).mean(0).tolist()
    return x, y


def _sample(bank: Sequence[Tensor], size: int, seed: int) -> tuple[Tensor, int]:
    """At most `size` states of the bank, in its order, and how many it has."""
    count = sum(map(len, bank))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:size].sort().values
    states, start = [], 0
    for part in bank:
        rows = chosen[(chosen >= start) & (chosen < start + len(part))] - start
        states.append(part[rows.to(part.device)].cpu())
        start += len(part)
    return torch.cat(states), count


def _describe(samples: Sequence[Sample], rule: str) -> str:
    group = " and ".join(dict.fromkeys(sample.group for sample in samples))
    if len(samples) > 1:
        return f"the mean of {len(samples)} samples, {rule.format(group=group)}"
    sample = samples[0]
    return f'{rule.format(group=group)} ({sample.id}: "{sample.prompt}" In truth: {sample.truth})'
