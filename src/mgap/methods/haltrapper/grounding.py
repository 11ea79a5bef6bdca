"""Internal grounding (HalTrapper, Zheng et al., ICCV 2025): is an object of the caption attended to as any object would be?

    IG[o] = cos(A_in, A_out)   over (blocks, heads, image tokens), in float64

After its caption the model is made to say " There is also". A_out is how the first token that it adds looks at the picture: it
predicts a thing. A_in is how the position before o looked at the picture, which predicted o. Attention is intercepted for these
two forwards only, and the image columns of a few rows are kept; the model's own kernel, whatever it is, comes back afterwards.
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
    """How some queries of one forward, of one row, attend to the picture."""

    def __init__(self, queries: Sequence[int], keys: slice, length: int) -> None:
        super().__init__(_NAME)
        self.queries, self.keys, self.length = queries, keys, length  # where the picture is; positions so far
        self.weights: dict[int, Tensor] = {}  # block -> [heads, queries, image tokens]

    def attend(self, block: BlockAttention) -> Tensor:
        missing = self.length - block.key.shape[2]  # a sliding window keeps the newest keys only
        rows = (block.scores_at([query])[0].softmax(-1) for query in self.queries)
        self.weights[block.index] = torch.cat([F.pad(row, (missing, 0))[0, :, :, self.keys].cpu() for row in rows], dim=1)
        return block.fused()

    def stacked(self) -> Tensor:
        return torch.stack([self.weights[block] for block in sorted(self.weights)])  # [blocks, heads, queries, image tokens]


def similarity(rows: Tensor, target: Tensor) -> Tensor:
    """IG of each query: attention to image tokens [blocks, heads, queries, image tokens] against that of one [..., 1, ...]."""
    a, b = (weights.double().movedim(-2, 0).flatten(1) for weights in (rows, target))
    return F.cosine_similarity(a, b, dim=-1, eps=1e-300)


@contextmanager
def watching(backbone: Backbone, queries: Sequence[int], keys: slice) -> Iterator[list[ImageWeights]]:
    """Inside: a generate of one row adds its weights, an entry a forward; of a prompt the given queries, then the newest."""
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
    with watching(backbone, [token - 1 for token in tokens], slice(first, first + picture.tokens)) as forwards:
        generate(backbone, inputs, features, 2)  # the second forward reads the first new token
    if len(forwards) < 2:
        return {}
    return dict(zip(places, similarity(forwards[0].stacked(), forwards[1].stacked()).tolist(), strict=True))
