"""Reference states h_gt for Theorem 1: what "aligned with the ground truth" can mean, in two ways. Neither is the truth itself.

`teacher` (the paper's example). The true text is forced as the continuation; the state before its token t has read the true
tokens before t. It is held against the state at the same step of plain greedy decoding. Three things follow:
- Before the first token nothing has been forced. Both states are the same, e = 0, and the theorem says nothing: for yes/no
  questions, which one token decides, this reference does not exist.
- The same holds for every step up to the first token that differs: those steps are counted apart.
- Afterwards the two texts may speak of different things at the same step; e then holds that difference too. Of several true
  texts the one that shares the longest beginning with the plain text is taken, so that they part as late as can be.

`aligned` (for yes/no questions). The mean of the k nearest states of the bank whose question has the same true answer as this
one and which plain decoding answered rightly: where a state would lie if the model knew. For a question that is answered
wrongly that is on the other side of the decision; for one that is answered rightly it is just its own neighbourhood, and
moving there gains nothing.

Controls. <e, h_proj> > 0 says no more than that the reference reaches less far along h_proj than h does, which an unrelated
state mostly does. So each reference has a counterpart that is no truth: `other answer`, the same from the bank's states that
rightly say the opposite, and `other step`, the state at another step of the true texts. Only a difference between the two says
that the step knows the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import Ids
from mgap.errors import PromptError, SettingError
from mgap.priors.neighbours import ExactSearch

_AT_ONCE = 1 << 24  # numbers: 64 MiB in float32


def forced_states(backbone: Backbone, inputs: dict[str, Tensor], texts: Sequence[Ids]) -> list[Tensor]:
    """The head's input before each token of given continuations of encoded rows, [tokens, d] float32 on the CPU a row.

    One forward. Texts are filled up on the right, where no earlier position sees it.
    """
    if len(texts) != len(inputs["input_ids"]) or not all(texts):
        raise PromptError(f"{len(texts)} texts for {len(inputs['input_ids'])} rows: give one a row, with a token or more each")
    if any(backbone.image_token_id in text for text in texts):
        raise PromptError("a text holds the token that stands for a picture: leave that text out")
    length = max(map(len, texts))
    read = [text[:-1] for text in texts]  # the last token is predicted, not read
    ids = torch.tensor([text + [backbone.pad_id] * (length - 1 - len(text)) for text in read]).long()  # [B, length - 1]
    mask = torch.tensor([[1] * len(text) + [0] * (length - 1 - len(text)) for text in read])
    more = {"input_ids": ids, "attention_mask": mask}
    more |= {key: torch.zeros_like(ids) for key in ("mm_token_type_ids", "token_type_ids") if key in inputs}  # 0: text
    grown = {**inputs, **{key: torch.cat([inputs[key], value.to(inputs[key])], 1) for key, value in more.items()}}
    caught: list[Tensor] = []

    def catch(_head: nn.Module, args: tuple[Tensor, ...]) -> None:
        caught.append(args[0][:, -length:].detach())

    handle = backbone.head_module.register_forward_pre_hook(catch)
    try:
        with torch.no_grad():
            backbone.model(**grown, position_ids=backbone.positions(grown), use_cache=False, logits_to_keep=length)
    finally:
        handle.remove()
    return [states[: len(text)] for states, text in zip(caught[0].float().cpu(), texts, strict=True)]


def closest_text(plain: Ids, texts: Sequence[Ids]) -> Ids:
    """Of several true texts the first that shares the longest beginning with the plain one."""
    if not any(texts):
        raise PromptError("there is no true text, or only empty ones: give at least one")
    return max(filter(None, texts), key=lambda text: common(plain, text))


def common(one: Ids, other: Ids) -> int:
    """How many tokens two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def right_states(bank: Tensor, truths: Sequence[str], is_right: Sequence[bool]) -> dict[str, Tensor]:
    """By true answer, the rows [m, d] of a bank [n, d] that plain decoding answered rightly."""
    rows = [(truth, row) for row, (truth, right) in enumerate(zip(truths, is_right, strict=True)) if right]
    return {truth: bank[[row for t, row in rows if t == truth]] for truth in dict.fromkeys(truths)}


def aligned_states(states: Tensor, truths: Sequence[str], known: Mapping[str, Tensor], k: int = 10) -> Tensor:
    """The `aligned` references [n, d] of states [n, d]: means of the k nearest of the right states with the same truth."""
    found = torch.empty_like(states)
    for truth in dict.fromkeys(truths):
        right = known.get(truth, states[:0])
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= len(right):
            raise SettingError(
                f"k={k!r} must be a whole number from 1 to {len(right)}, the states of the bank that rightly say {truth}: "
                "give a smaller k or a larger bank"
            )
        asked = [row for row, t in enumerate(truths) if t == truth]
        found[asked] = _means(states[asked].to(right), right, k).to(found)
    return found


def _means(states: Tensor, known: Tensor, k: int) -> Tensor:
    """The mean [n, d] of the k nearest of known states [m, d]."""
    _, rows = ExactSearch.of(known).nearest(states, k)  # [n, k]
    return torch.cat([known[some].mean(1) for some in rows.split(max(1, _AT_ONCE // (k * known.shape[1])))])
