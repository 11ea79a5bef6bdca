"""Reference states h_gt for Theorem 1: two readings of "aligned with the ground truth". Neither is the truth itself.

`teacher` (the paper's example). The true text is forced as the continuation; the state before its token t has read the true
tokens before t. It is compared with the state at the same step of plain greedy decoding. Three things follow:
- Before the first token nothing has been forced. Both states are the same, e = 0, and the theorem says nothing: for yes/no
  questions, which one token decides, this reference does not exist.
- The same holds for every step up to the first token that differs: those steps are counted separately.
- Afterwards the two texts may be about different things at the same step; e then contains that difference too. Of several true
  texts we take the one that shares the longest prefix with the plain text, so that they diverge as late as possible.

`aligned` (for yes/no questions). The mean of the k nearest bank states whose question has the same true answer and was answered
correctly by plain decoding: where the state would lie if the model knew. For a wrong answer this is across the decision
boundary; for a correct one it is just the state's own neighbourhood, and moving there gains nothing.

Controls. <e, h_proj> > 0 says only that the reference extends less far along h_proj than h does, as an unrelated state mostly
does. So each reference has a control that is not the truth: `other answer`, the same from bank states that correctly say the
opposite, and `other step`, the state at another step of the true texts. Only a difference between reference and control shows
that the step knows the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head_states import catch_states
from mgap.backbones.token_rows import Ids
from mgap.errors import PromptError, SettingError
from mgap.priors.neighbours import ExactSearch

_CHUNK = 1 << 24  # numbers at once: 64 MiB in float32


def forced_states(backbone: Backbone, inputs: dict[str, Tensor], texts: Sequence[Ids]) -> list[Tensor]:
    """The head's input before each token of given continuations, [tokens, d] float32 on the CPU for each encoded row.

    One forward pass. Texts are padded on the right, where no earlier position attends.
    """
    if len(texts) != len(inputs["input_ids"]) or not all(texts):
        raise PromptError(f"{len(texts)} texts for {len(inputs['input_ids'])} rows: give one a row, with a token or more each")
    if any(backbone.image_token_id in text for text in texts):
        raise PromptError("a text holds the token that stands for a picture: leave that text out")
    length = max(map(len, texts))
    forced = [text[:-1] for text in texts]  # the last token is predicted, not read
    ids = torch.tensor([text + [backbone.pad_id] * (length - 1 - len(text)) for text in forced]).long()  # [B, length - 1]
    mask = torch.tensor([[1] * len(text) + [0] * (length - 1 - len(text)) for text in forced])
    more = {"input_ids": ids, "attention_mask": mask}
    more |= {key: torch.zeros_like(ids) for key in ("mm_token_type_ids", "token_type_ids") if key in inputs}  # 0: text
    grown = {**inputs, **{key: torch.cat([inputs[key], value.to(inputs[key])], 1) for key, value in more.items()}}
    with catch_states(backbone, last=False) as caught, torch.no_grad():
        backbone.model(**grown, position_ids=backbone.positions(grown), use_cache=False, logits_to_keep=length)
    return [states[: len(text)] for states, text in zip(caught[0][:, -length:].float().cpu(), texts, strict=True)]


def closest_text(plain: Ids, texts: Sequence[Ids]) -> Ids:
    """The true text that shares the longest prefix with the plain one; the first of equals."""
    if not any(texts):
        raise PromptError("there is no true text, or only empty ones: give at least one")
    return max(filter(None, texts), key=lambda text: shared_prefix_length(plain, text))


def shared_prefix_length(one: Ids, other: Ids) -> int:
    """The number of leading tokens that two texts share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def right_states(bank: Tensor, truths: Sequence[str], is_right: Sequence[bool]) -> dict[str, Tensor]:
    """By true answer, the rows [m, d] of a bank [n, d] that plain decoding answered correctly."""
    rows = [(truth, row) for row, (truth, right) in enumerate(zip(truths, is_right, strict=True)) if right]
    return {truth: bank[[row for t, row in rows if t == truth]] for truth in dict.fromkeys(truths)}


def aligned_states(states: Tensor, truths: Sequence[str], by_answer: Mapping[str, Tensor], k: int = 10) -> Tensor:
    """The `aligned` references [n, d] of states [n, d]: means of the k nearest states in `by_answer` with the same truth."""
    references = torch.empty_like(states)
    for truth in dict.fromkeys(truths):
        right = by_answer.get(truth, states[:0])
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= len(right):
            raise SettingError(
                f"k={k!r} must be a whole number from 1 to {len(right)}, the states of the bank that rightly say {truth}: "
                "give a smaller k or a larger bank"
            )
        rows = [row for row, t in enumerate(truths) if t == truth]
        references[rows] = _neighbour_means(states[rows].to(right), right, k).to(references)
    return references


def _neighbour_means(states: Tensor, bank: Tensor, k: int) -> Tensor:
    """The means [n, d] of the k nearest states of a bank [m, d]."""
    _, rows = ExactSearch.of(bank).nearest(states, k)  # [n, k]
    return torch.cat([bank[chunk].mean(1) for chunk in rows.split(max(1, _CHUNK // (k * bank.shape[1])))])
