"""Fill the picture of the manifold (paper, figure 3) from a model: one sample, or the mean of several, under several methods.

    (sample, *_) = wrong_answers(samples, said)
    found = picture_manifold(model, manifold, bank.parts, [sample], picture, {"VCD": vcd, "MGAP": ours}, rule=FIRST_WRONG)
    print_manifold(found).save("figures")

Of several samples, marks and paths are means of their states, and d_k is the mean of theirs, not that of the mean state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mgap.benchmarks.base import open_pictures
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.decoding.effective_states import first_states
from mgap.decoding.model import Model
from mgap.diagnosis.departure import STRENGTHS, Picture
from mgap.diagnosis.landscape import plane_of, project, shares_of
from mgap.diagnosis.manifold_figure import BLIND, JOINT, TRUTH, ManifoldPicture, PathPoint
from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.methods.base import Method
from mgap.priors.collect_states import blind_states
from mgap.priors.manifold import Manifold
from mgap.priors.spectrum import Spectrum
from mgap.settings import check_strength
from mgap.types import Sample

FIRST_WRONG = "the first {group} question that plain decoding answers wrongly"
DRAWN = 2000  # states of the bank that are shown, at most


def wrong_answers(samples: Sequence[Sample], said: Mapping[str, str]) -> list[Sample]:
    """The yes/no questions that were answered wrongly, by what was said to each, in order; an unclear answer is not wrong."""
    verdicts = {sample.id: yes_or_no(said[sample.id]) for sample in samples}
    return [sample for sample in samples if verdicts[sample.id] not in (None, sample.truth)]


def picture_manifold(
    model: Model,
    manifold: Manifold,
    bank: Sequence[Tensor],
    samples: Sequence[Sample],
    picture: Picture,
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
    """`bank` has the states that `manifold` is of, in parts [n, d]; at most `drawn` of them are shown, drawn with `seed`.

    `rule` says how the samples were chosen; {group} in it stands for theirs. `reference` is the state [d] that the truth would
    have, or one for each sample [n, d]; None: there is no such mark.
    """
    if not samples or not methods or not strengths:
        raise SettingError("a picture of the manifold needs a sample, a method and a strength: give at least one of each")
    told = progress or (lambda *_: None)
    told("principal directions of the bank", 0, 1)
    axes = plane_of(bank)
    told("principal directions of the bank", 1, 1)
    backbone, prompts = model.backbone, [sample.prompt for sample in samples]
    images = open_pictures(samples, picture)
    blind = torch.cat(list(blind_states(backbone, prompts, null_image=null_image, size=images[0].size)))  # [n, d]
    with first_states(model, None) as read:
        marks = {BLIND: _middle(axes, blind), JOINT: _middle(axes, read(backbone.encode(images, prompts)).h)}
    if reference is not None:
        marks[TRUTH] = _middle(axes, reference.reshape(-1, reference.shape[-1]))
    paths = {}
    for number, (label, method) in enumerate(methods.items(), start=1):
        with first_states(model, method) as read:
            seen = read(backbone.encode(images, prompts))
        states = {check_strength("strengths", strength): seen.at(strength) for strength in strengths}
        paths[label] = tuple(
            PathPoint(strength, *_middle(axes, h), float(manifold.distances(h).mean())) for strength, h in states.items()
        )
        told("paths of methods", number, len(methods))
    shown, count = _drawn(bank, drawn, seed)
    return ManifoldPicture(
        bank=tuple(map(tuple, project(axes, shown).tolist())),
        marks=marks,
        paths=paths,
        tau=manifold.tau,
        k=manifold.k,
        shares=shares_of(axes),
        states=count,
        said=_said(samples, rule),
    )


def _middle(axes: Spectrum, states: Tensor) -> tuple[float, float]:
    x, y = project(axes, states).mean(0).tolist()
    return x, y


def _drawn(bank: Sequence[Tensor], most: int, seed: int) -> tuple[Tensor, int]:
    """So many states of the bank, in its order, and how many it has."""
    count = sum(map(len, bank))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values
    found, start = [], 0
    for part in bank:
        mine = chosen[(chosen >= start) & (chosen < start + len(part))] - start
        found.append(part[mine.to(part.device)].cpu())
        start += len(part)
    return torch.cat(found), count


def _said(samples: Sequence[Sample], rule: str) -> str:
    group = " and ".join(dict.fromkeys(sample.group for sample in samples))
    if len(samples) > 1:
        return f"the mean of {len(samples)} samples, {rule.format(group=group)}"
    sample = samples[0]
    return f'{rule.format(group=group)} ({sample.id}: "{sample.prompt}" In truth: {sample.truth})'
