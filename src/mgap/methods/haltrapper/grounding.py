"""Internal grounding (HalTrapper, Zheng et al., ICCV 2025): does a thing of the caption rest on what any thing would rest on?

    IG[o] = cos(A_in, A_out)   over (blocks, heads, image tokens), in float64

After its caption the model is made to say " There is also". A_out is how the first token that it adds looks at the picture: it
predicts a thing. A_in is how the position before o looked at the picture, which predicted o. For these two forwards the text
decoder's configuration names a registered attention function, which keeps the image columns of a few rows and nothing else; the
model's own kernel, whatever it is, comes back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import ModelError
from mgap.methods.kinds.attention import last_scores, refuse_odd_scores, whole_mask
from mgap.methods.kinds.per_picture import EncodedPicture, expand, generate, show
from mgap.priors.object_words import Vocabulary

ALSO = " There is also"
IMPLEMENTATION = "mgap_grounding"  # as the text decoder's configuration names it while a caption is grounded
_ARGUMENT = "mgap_looks"  # carries what is kept from the decoder's door to its attention
_NAME = "haltrapper"


@dataclass(frozen=True)
class Looks:
    """How some queries of one forward look at the picture."""

    queries: Sequence[int]
    keys: slice  # where the picture is
    length: int  # positions so far
    weights: dict[int, Tensor] = field(default_factory=dict)  # block -> [heads, queries, image tokens]

    def stacked(self) -> Tensor:
        return torch.stack([self.weights[block] for block in sorted(self.weights)])  # [blocks, heads, queries, image tokens]


def similarity(rows: Tensor, target: Tensor) -> Tensor:
    """IG of each query: attention to image tokens [blocks, heads, queries, image tokens] against that of one [..., 1, ...]."""
    a, b = (weights.double().movedim(-2, 0).flatten(1) for weights in (rows, target))
    return F.cosine_similarity(a, b, dim=-1, eps=1e-300)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **more: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention of a decoder block [1, heads, T, d] as transformers calls it: torch's own, with a look at some rows."""
    looks: Looks | None = more.pop(_ARGUMENT, None)
    if looks is None:
        raise ModelError(
            f"{type(module).__name__} does not hand arguments on to its attention: {_NAME} cannot watch this model"
        )
    refuse_odd_scores(_NAME, module, more)
    unseen = looks.length - key.shape[2]  # a sliding window keeps the newest keys only
    kept = []
    for row in looks.queries:
        scores, _ = last_scores(query[:, :, [row]], key, attention_mask[:, :, [row]], more.get("scaling"))
        kept.append(F.pad(scores.softmax(-1), (unseen, 0))[0, :, :, looks.keys].cpu())
    looks.weights[module.layer_idx] = torch.cat(kept, dim=1)
    plain: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **more)
    return plain


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, whole_mask)


@contextmanager
def watching(backbone: Backbone, queries: Sequence[int], keys: slice) -> Iterator[list[Looks]]:
    """Inside: a generate of one row adds what it saw, an entry a forward; of a prompt the given queries, then the newest."""
    config, blocks = backbone.config.get_text_config(decoder=True), set(range(len(backbone.layers)))
    seen: list[Looks] = []

    def enter(_language: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        past, new = kwargs["past_key_values"].get_seq_length(), kwargs["inputs_embeds"].shape[1]
        seen.append(Looks(queries if past == 0 else [0], keys, past + new))
        return args, {**kwargs, _ARGUMENT: seen[-1]}

    def leave(language: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        if set(seen[-1].weights) != blocks:
            raise ModelError(
                f"{type(language).__name__} has attention of its own in some blocks: {_NAME} cannot watch this model"
            )

    handles = [
        backbone.language.register_forward_pre_hook(enter, with_kwargs=True),
        backbone.language.register_forward_hook(leave),
    ]
    usual, config._attn_implementation = config._attn_implementation, IMPLEMENTATION
    try:
        yield seen
    finally:
        config._attn_implementation = usual
        for handle in handles:
            handle.remove()


def ground(backbone: Backbone, picture: EncodedPicture, text: str, caption: str, vocabulary: Vocabulary) -> dict[str, float]:
    """IG of every thing that the caption names, which the model gave to the rendered text; nothing if it has no more to add."""
    for name in backbone.tokenizer.convert_ids_to_tokens(list(backbone.image_block_ids)):
        caption = caption.replace(name, "")  # what spells a placeholder shows no picture
    places = vocabulary.first_mentions(caption)
    if not places:
        return {}
    opening = text if text[-1:].isspace() else f"{text} "
    start = len(expand(backbone, opening, picture))
    spans = backbone.spans(expand(backbone, f"{opening}{caption}{ALSO}", picture))
    tokens = [next(n for n, (_, end) in enumerate(spans) if end > start + place) for place in places.values()]
    inputs, features = show(backbone, [picture], [f"{opening}{caption}{ALSO}"])
    first = int(backbone.image_mask(inputs)[0].int().argmax())
    with watching(backbone, [token - 1 for token in tokens], slice(first, first + picture.tokens)) as seen:
        generate(backbone, inputs, features, 2)  # the second forward reads the first new token
    if len(seen) < 2:
        return {}
    return dict(zip(places, similarity(seen[0].stacked(), seen[1].stacked()).tolist(), strict=True))
