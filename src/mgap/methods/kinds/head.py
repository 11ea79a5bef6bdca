"""Methods that act on what the head reads and says: one branch, one forward a token, every decoding mode.

A method gives a forward hook of the head. It gets the input [B, T, d] and the output [B, T, vocab] of the head; what it returns
takes the place of the output. `head.post` makes logits of an output, `head.unpost` an output of logits.
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
    """Cost: 1 forward a token. Every decoding mode, attention of any kind; a picture's prefill can be shared.

    It stacks on a method with a second branch, and then acts on the main rows only.
    """

    seam: ClassVar[Seam] = Seam.HEAD
    forwards: ClassVar[float] = 1.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES
    shares_prefill: ClassVar[bool] = True

    @abstractmethod
    def correction(self, backbone: Backbone, head: Head, tap: Tap) -> Hook:
        """On attaching: the hook (head module, (states,), output) -> new output. It writes into no tensor in place.

        Raises what can be known now, such as a prior of another model.
        """

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        head = backbone.probe_head()
        return head.module.register_forward_hook(
            on_main_rows(self.correction(backbone, head, tap), row_split_of(backbone.model))
        )
