"""Your own decoding method in one file: never say some words. The README.md next to it explains it step by step.

    with model.using(Silence(words=("dog", "cat"))): ...

and, once this folder is installed (`pip install ./examples/own_method`), also `mgap ask --method silence --set words=dog`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.base import Observation, Tap
from mgap.methods.kinds.head import HeadMethod, Hook


@dataclass(frozen=True)
class Silence(HeadMethod):
    """The logits of every token that starts one of the words become -inf. Acts at the head; costs nothing."""

    name: ClassVar[str] = "silence"
    summary: ClassVar[str] = "never say some words"

    words: tuple[str, ...] | str

    def __post_init__(self) -> None:
        if not self.words:
            raise SettingError("words is empty: name at least one word not to say")

    def correction(self, backbone: Backbone, head: Head, tap: Tap) -> Hook:
        words = (self.words,) if isinstance(self.words, str) else self.words
        spelled = [backbone.tokenizer.encode(text, add_special_tokens=False) for word in words for text in (word, f" {word}")]
        banned = torch.tensor(sorted({ids[0] for ids in spelled}), device=head.device)

        def hush(_head: torch.nn.Module, _args: tuple[torch.Tensor, ...], logits: torch.Tensor) -> torch.Tensor:
            quiet = logits.index_fill(-1, banned, -torch.inf)  # [B, T, vocab]; a hook never writes in place
            if tap.listener is not None:  # someone keeps a trace: say what you saw and did
                mass = logits.softmax(-1)[..., banned].sum(-1)
                tap.listener(Observation({"mass": mass}, logits, quiet))
            return quiet

        return hush
