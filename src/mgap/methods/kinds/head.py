"""Methods that act on the head's input and output: one branch, one forward per token, all decoding modes.

A method provides a forward hook for the head. It gets the head's input [B, T, d] and output [B, T, vocab]; what it returns
replaces the output. `head.post` turns an output into logits, `head.unpost` logits into an output.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.methods.base import Method, Removable, Seam, Tap
from mgap.methods.kinds.main_rows import Hook, on_main_rows, row_split_of
from mgap.types import ALL_MODES, Mode

__all__ = ["HeadMethod", "Hook"]


@dataclass(frozen=True)
class HeadMethod(Method):
    """Cost: 1 forward per token. All decoding modes, any attention kernel; a picture's prefill can be shared.

    Stacked on a method with a second branch, it acts on the main rows only.
    """

    seam: ClassVar[Seam] = Seam.HEAD
    forwards: ClassVar[float] = 1.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES
    shares_prefill: ClassVar[bool] = True

    @abstractmethod
    def correction(self, backbone: Backbone, head: Head, tap: Tap) -> Hook:
        """Called on attaching: the hook (head module, (states,), output) -> new output. It modifies no tensor in place.

        Raises what can be known now, such as a prior of another model.
        """

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        head = backbone.probe_head()
        return head.module.register_forward_hook(
            on_main_rows(self.correction(backbone, head, tap), row_split_of(backbone.model))
        )
