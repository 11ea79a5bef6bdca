"""Pairs of states for a `PriorMap`: what the head reads with the picture and with a null image, along plain greedy answers.

Both states follow the same prompt and the same answer so far. Cost: 2 forwards per token, once per model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import mgap
from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.head import Head
from mgap.backbones.prepared_pictures import picture_digest, picture_key
from mgap.decoding.answer_states import answer_states
from mgap.errors import PromptError, SettingError
from mgap.io.images import ImageSource, open_image
from mgap.methods.blind import Blind
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.priors.plain_answers import Questions
from mgap.priors.prior_map import PriorMap
from mgap.priors.subspace import Subspace
from mgap.types import Decoding


@dataclass(frozen=True)
class BlindReader(Blind):
    """Plain decoding beside a blind branch; reports the branch's states as its effective states."""

    rho: float = 0.0

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:  # noqa: ARG002
        return inputs.branches[0]


def fit_prior_map(
    model: Backbone | HasBackbone,
    images: Iterable[ImageSource],
    prompts: Iterable[str],
    prior: Subspace,
    *,
    null_image: str = "black_same_size",
    max_new_tokens: int = 1,
    batch_size: int = 8,
    progress: Callable[[int], None] | None = None,
) -> PriorMap:
    """Ask each prompt about its picture, and fit the map to one pair per token of the plain answer; by default the first token.

    Pictures and prompts may be generators. Cross-validation of the map leaves out all rows of a picture together, so a picture
    with several prompts counts once. `progress` is called with the number of rows done so far. Memory: all pairs.
    """
    if batch_size < 1:
        raise SettingError(f"batch_size={batch_size} must be at least 1")
    backbone, questions = Backbone.of(model), Questions(images, prompts)
    prior.require(backbone)
    method, decoding = BlindReader(null_image=null_image), Decoding(max_new_tokens=max_new_tokens)
    picture_ids: dict[bytes, int] = {}
    plain, blind, groups = list[Tensor](), list[Tensor](), list[int]()
    with answer_states(backbone, method, decoding) as read:
        while batch := questions.take(batch_size):
            if any(image is None for image, _ in batch):
                raise PromptError("a prompt has no picture, so that nothing would be learnt from it: leave it out")
            pictures = [open_image(image) for image, _ in batch if image is not None]
            for picture, answer in zip(pictures, read(backbone.encode(pictures, [text for _, text in batch])), strict=True):
                key = picture_key(picture.size, picture_digest(picture))
                plain.append(answer.h.cpu())
                blind.append(answer.used.cpu())
                groups += [picture_ids.setdefault(key, len(picture_ids))] * len(answer.h)
            if progress is not None:
                progress(questions.count)
    empty = torch.zeros(0, prior.hidden_size)  # torch.cat needs one tensor, also without prompts
    prior_map = PriorMap.from_states(torch.cat([empty, *plain]), torch.cat([empty, *blind]), prior, groups)
    origin = {
        "prompts": questions.count,
        "pictures": len(picture_ids),
        "questions_sha256": questions.sha256,
        "null_image": null_image,
        "max_new_tokens": max_new_tokens,
        "template_sha256": backbone.template_hash(),
        "dtype": backbone.dtype_name,
        "mgap": mgap.__version__,
    }
    return replace(prior_map, identity=backbone.identity, origin=origin)
