"""Internal grounding (HalTrapper, Zheng et al., ICCV 2025): does an object of the caption attend as any object would?

    IG[o] = cos(A_in, A_out)   over (blocks, heads, image tokens), in float64

After its caption the model must continue " There is also". A_out is the attention to the picture of the first token it adds,
which predicts an object. A_in is the attention to the picture of the position before o, which predicted o. Attention is
intercepted for these two forwards only, and the image columns of a few rows are kept; afterwards the model's own kernel is
restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.methods.kinds.attention_interceptor import AttentionInterceptor, AttentionPass, BlockAttention
from mgap.methods.kinds.per_picture import EncodedPicture, expand, generate, show
from mgap.priors.object_words import Vocabulary

ALSO = " There is also"
_NAME = "haltrapper"


class ImageWeights(AttentionPass):
    """The attention weights of some queries on the picture, in one forward of one row."""

    def __init__(self, queries: Sequence[int], keys: slice, length: int) -> None:
        super().__init__(_NAME)
        self.queries, self.keys, self.length = queries, keys, length  # `keys`: the picture; `length`: positions so far
        self.weights: dict[int, Tensor] = {}  # block -> [heads, queries, image tokens]

    def attend(self, block: BlockAttention) -> Tensor:
        missing = self.length - block.key.shape[2]  # a sliding window keeps the newest keys only
        rows = (block.scores_at([query])[0].softmax(-1) for query in self.queries)
        self.weights[block.index] = torch.cat([F.pad(row, (missing, 0))[0, :, :, self.keys].cpu() for row in rows], dim=1)
        return block.fused()

    def stacked(self) -> Tensor:
        return torch.stack([self.weights[block] for block in sorted(self.weights)])  # [blocks, heads, queries, image tokens]


def similarity(rows: Tensor, target: Tensor) -> Tensor:
    """IG of each query: cosine of its attention [blocks, heads, queries, image tokens] with that of one query [..., 1, ...]."""
    a, b = (weights.double().movedim(-2, 0).flatten(1) for weights in (rows, target))
    return F.cosine_similarity(a, b, dim=-1, eps=1e-300)


@contextmanager
def watching(backbone: Backbone, queries: Sequence[int], keys: slice) -> Iterator[list[ImageWeights]]:
    """Collect the weights of one row's `generate`, one entry per forward: the given queries of the prompt, then the newest."""
    forwards: list[ImageWeights] = []

    def begin(kwargs: Call, length: int) -> ImageWeights:
        forwards.append(ImageWeights(queries if kwargs["past_key_values"].get_seq_length() == 0 else [0], keys, length))
        return forwards[-1]

    interceptor = AttentionInterceptor(backbone, _NAME, begin)
    interceptor.start()
    try:
        yield forwards
    finally:
        interceptor.stop()


def ground(backbone: Backbone, picture: EncodedPicture, text: str, caption: str, vocabulary: Vocabulary) -> dict[str, float]:
    """IG of every object in the caption, the model's answer to the rendered text; empty if the model adds no further token."""
    for name in backbone.tokenizer.convert_ids_to_tokens(list(backbone.image_block_ids)):
        caption = caption.replace(name, "")  # a placeholder spelled in the caption is no picture
    mentions = vocabulary.first_mentions(caption)
    if not mentions:
        return {}
    opening = text if text[-1:].isspace() else f"{text} "
    start = len(expand(backbone, opening, picture))
    spans = backbone.spans(expand(backbone, f"{opening}{caption}{ALSO}", picture))
    tokens = [next(n for n, (_, end) in enumerate(spans) if end > start + offset) for offset in mentions.values()]
    inputs, features = show(backbone, [picture], [f"{opening}{caption}{ALSO}"])
    first = int(backbone.image_mask(inputs)[0].int().argmax())
    with watching(backbone, [token - 1 for token in tokens], slice(first, first + picture.tokens)) as forwards:
        generate(backbone, inputs, features, 2)  # the second forward reads the first new token
    if len(forwards) < 2:
        return {}
    return dict(zip(mentions, similarity(forwards[0].stacked(), forwards[1].stacked()).tolist(), strict=True))
