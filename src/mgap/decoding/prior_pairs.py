"""Pairs of states for a `PriorMap`: along plain greedy answers, what the head reads with the picture and with a null image.

Both are of the same prompt and the same answer so far. Cost: 2 forwards a token, once for a model.
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
    """Plain decoding with a blind branch beside it, whose states are handed out in the place of what is decoded from."""

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
    """Ask each prompt about its picture, and fit the map on the pair of every token of the plain answer; here, of the first.

    Pictures and prompts may be generators. A picture that is asked about more than once is one picture: it is left out as a
    whole when the map is judged. `progress` is called with the number of rows done so far. Memory: all pairs.
    """
    if batch_size < 1:
        raise SettingError(f"batch_size={batch_size} must be at least 1")
    backbone, questions = Backbone.of(model), Questions(images, prompts)
    prior.require(backbone)
    method, decoding = BlindReader(null_image=null_image), Decoding(max_new_tokens=max_new_tokens)
    numbers: dict[bytes, int] = {}  # of the pictures
    plain, blind, rows = list[Tensor](), list[Tensor](), list[int]()
    with answer_states(backbone, method, decoding) as read:
        while batch := questions.take(batch_size):
            if any(image is None for image, _ in batch):
                raise PromptError("a prompt has no picture, so that nothing would be learnt from it: leave it out")
            pictures = [open_image(image) for image, _ in batch if image is not None]
            for picture, answer in zip(pictures, read(backbone.encode(pictures, [text for _, text in batch])), strict=True):
                key = picture_key(picture.size, picture_digest(picture))
                plain.append(answer.h.cpu())
                blind.append(answer.used.cpu())
                rows += [numbers.setdefault(key, len(numbers))] * len(answer.h)
            if progress is not None:
                progress(questions.count)
    nothing = torch.zeros(0, prior.hidden_size)  # for no prompt at all
    found = PriorMap.from_states(torch.cat([nothing, *plain]), torch.cat([nothing, *blind]), prior, rows)
    origin = {
        "prompts": questions.count,
        "pictures": len(numbers),
        "questions_sha256": questions.sha256,
        "null_image": null_image,
        "max_new_tokens": max_new_tokens,
        "template_sha256": backbone.template_hash(),
        "dtype": backbone.dtype_name,
        "mgap": mgap.__version__,
    }
    return replace(found, identity=backbone.identity, origin=origin)
