"""CODE, countering description contrastive decoding (Kim et al., NeurIPS 2024): contrast with an answer from text alone.

    D = 1/2 sum_v (p_v + p'_v) log2(|p_v - p'_v|^k + 1) in [0, 1],   a = 1 - D
    s = (1 + a) l - a l',   dropped: p_v < D max p

The model first describes the picture; the branch answers from that text instead. Where both agree, the contrast is strong and
hardly anything is dropped; where they differ, it is weak, and only likely tokens stay. Cost: one description per new picture,
then 2 forwards per token. No setting turns it off: as k goes to 0, D goes to 1, and greedy decoding is the plain model's. `k`
is called cd_alpha in the authors' code, where it is no weight either; their cd_beta is never read, and absent here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import Ids, decode_exact, tokenize_text
from mgap.errors import PromptError, SettingError
from mgap.methods.base import Tap
from mgap.methods.kinds.branch import BranchMethod, Build, check_length
from mgap.methods.kinds.description import CAPTION, Descriptions
from mgap.methods.kinds.paired_forward import Inputs
from mgap.settings import check_choice, check_count, check_strength

PROMPTS = {
    "thorough": "Provide a detailed description of the image, covering all visible elements and their interactions, so as to "
    "thoroughly answer any potential questions about the image.",
    "caption": CAPTION,
}
PLACES = ("in_place_of_image", "before_question")
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "reference-code": {"k": 0.7, "prompt": "thorough", "place": "in_place_of_image", "length": 512},
        "haltrapper": {"k": 1.0, "prompt": "caption", "place": "before_question", "length": 512},
    }
)


def divergence(p: Tensor, q: Tensor, k: float) -> Tensor:
    """D of two distributions [..., vocab]: 0 for equal ones, 1 for certain and different ones."""
    return (
        ((p + q) * ((p - q).abs().pow(k) + 1).log2()).sum(-1).div(2).clamp(0, 1)
    )  # rounding must not drop the most likely token


@dataclass(frozen=True)
class CODE(BranchMethod):
    """Countering description. Settings that are not given come from the preset.

    `prompt` asks for the description: a name of PROMPTS, or your own text; `length` is its maximum number of tokens. `place` is
    where it goes: "in_place_of_image" (its tokens replace the picture's) or "before_question" (plain text, no picture).
    """

    name: ClassVar[str] = "code"
    summary: ClassVar[str] = "contrast with an answer from the model's own description"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    moved_by: ClassVar[str] = "weight"  # a, the same for all of the vocabulary

    k: float | None = None
    prompt: str | None = None
    place: str | None = None
    length: int | None = None
    preset: str = "reference-code"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fill_from_preset()
        if not check_strength("k", self.exponent) > 0:
            raise SettingError("k=0 makes equal predictions differ: it must be above 0")
        check_choice("place", str(self.place), PLACES)
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise SettingError(f"prompt={self.prompt!r}: choose from {', '.join(PROMPTS)}, or write one")
        check_count("length", self.length, least=1)

    @property
    def exponent(self) -> float:
        return self.k  # type: ignore[return-value]  # set above

    def prepare(self, backbone: Backbone, tap: Tap) -> Build:
        prompt = str(self.prompt)
        describe = Descriptions(backbone, PROMPTS.get(prompt, prompt), int(self.length or 0), tap=tap)
        write = _in_place if self.place == "in_place_of_image" else _before_question

        def build(main: Inputs) -> Inputs:
            if backbone.pixel_keys[0] not in main:
                raise PromptError(f"{self.name} describes a picture: give one, or leave {self.name} off")
            backbone.rewrite(main, lambda ids, *_: ids)  # raises now if a row does not have exactly one picture
            texts = iter(describe(main))
            branch = backbone.rewrite(main, lambda ids, start, end: write(backbone, next(texts), ids, start, end))
            return check_length(self.name, backbone, branch)

        return build

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        return self.prepare(backbone, Tap())(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        p, q = main.softmax(-1), branch.softmax(-1)
        D = divergence(p, q, self.exponent)
        a = (1 - D).unsqueeze(-1)
        dropped = p < D.unsqueeze(-1) * p.amax(-1, keepdim=True)
        scores = ((1 + a) * main - a * branch).masked_fill(dropped, -torch.inf)
        return scores, {"divergence": D, "weight": a.squeeze(-1)}


def _in_place(backbone: Backbone, text: str, ids: Ids, _start: int, _end: int) -> Ids:
    """As in the authors' code: the text tokenized on its own, with its BOS token; the markers stay."""
    words = _without_pictures(backbone, backbone.tokenizer(text)["input_ids"])
    first, count = ids.index(backbone.image_token_id), ids.count(backbone.image_token_id)
    return ids[:first] + words + ids[first + count :]


def _before_question(backbone: Backbone, text: str, ids: Ids, start: int, end: int) -> Ids:
    """A text-only prompt: description, what stood between picture and question (or a space), question."""
    tokenizer, opening = backbone.tokenizer, int(ids[0] == backbone.tokenizer.bos_token_id)
    head = decode_exact(tokenizer, ids[opening:start], right=ids[start])
    tail = decode_exact(tokenizer, ids[end:], left=ids[end - 1])
    rest = tokenizer.decode(ids[end:])
    words = text if not text or rest[:1].isspace() else f"{text} "
    if head is None or tail is None:
        return ids[:start] + _without_pictures(backbone, tokenize_text(tokenizer, words)) + ids[end:]
    return ids[:opening] + _without_pictures(backbone, tokenize_text(tokenizer, head + words + tail))


def _without_pictures(backbone: Backbone, ids: Ids) -> Ids:
    """Drop image tokens that a description happens to spell."""
    return [token for token in ids if token not in backbone.image_block_ids]
