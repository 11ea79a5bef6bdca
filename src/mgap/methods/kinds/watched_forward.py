"""A paired forward that is told what the newest token of the main rows attends to, in the forwards that it watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Tap
from mgap.methods.kinds.attention_weights import AttentionWatch
from mgap.methods.kinds.paired_forward import PairedForward

if TYPE_CHECKING:
    from mgap.methods.kinds.branch import PairedMethod


class WatchedForward(PairedForward):
    """Subclasses start the watch before a forward, in `_first` or `_next`, and take what it read in `_split_logits`."""

    def __init__(self, backbone: Backbone, method: PairedMethod, tap: Tap, attention: AttentionWatch) -> None:
        self.attention = attention
        super().__init__(backbone, method, tap)
        self.handles.append(backbone.model.register_forward_hook(self.stop_watching, always_call=True))

    def remove(self) -> None:
        super().remove()
        self.attention.stop()

    def before(self, model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        if not self.is_idle and kwargs.get("output_attentions"):
            raise UnsupportedDecoding(f"{self.method.name} gives no attention weights back: leave output_attentions out")
        return super().before(model, args, kwargs)

    def stop_watching(self, *_: Any) -> None:
        """After every forward of the caller, also a failed one."""
        if not self.is_idle:
            self.attention.stop()
