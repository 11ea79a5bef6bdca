"""A decoding method of your own, in one file: never say some words. README.md, beside this, goes through it step by step.

    with model.using(Silence(words=("dog", "cat"))): ...

and, once this folder is installed (`pip install ./examples/own_method`), also `mgap ask --method silence --set words=dog`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mgap.backbones.base import Backbone
from mgap.errors import SettingError
from mgap.methods.base import Method, Observation, Removable, Seam, Tap
from mgap.methods.kinds.main_rows import lanes_of, on_main_rows
from mgap.types import ALL_MODES, Mode


@dataclass(frozen=True)
class Silence(Method):
    """The logits of every token that starts one of the words become -inf. Acts at the head; costs nothing."""

    name: ClassVar[str] = "silence"
    summary: ClassVar[str] = "never say some words"
    seam: ClassVar[Seam] = Seam.HEAD
    forwards: ClassVar[float] = 1.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES  # what it is not made for would be left out here, and refused

    words: tuple[str, ...] | str

    def __post_init__(self) -> None:
        if not self.words:
            raise SettingError("words is empty: name at least one word not to say")

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        words = (self.words,) if isinstance(self.words, str) else self.words
        spelled = [backbone.tokenizer.encode(text, add_special_tokens=False) for word in words for text in (word, f" {word}")]
        banned = torch.tensor(sorted({ids[0] for ids in spelled}), device=backbone.device)

        def hush(_head: torch.nn.Module, _args: tuple[torch.Tensor, ...], logits: torch.Tensor) -> torch.Tensor:
            quiet = logits.index_fill(-1, banned, -torch.inf)  # [B, T, vocab]; a hook never writes in place
            if tap.listener is not None:  # someone keeps a trace: say what you saw and did
                mass = logits.softmax(-1)[..., banned].sum(-1)
                tap.listener(Observation({"mass": mass}, logits, quiet))
            return quiet

        # a method with a second branch adds rows of its own behind the caller's: they are not ours to change
        return backbone.head_module.register_forward_hook(on_main_rows(hush, lanes_of(backbone.model)))
