"""Attach MGAP to a model of mlx-vlm: its own generate, stream_generate and batch_generate then decode with it."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import mlx.core as mx

from mgap.errors import SettingError, UnsupportedHead
from mgap.integrations.mlx.mlx_correction import MlxCorrection
from mgap.integrations.mlx.mlx_head import MlxHead
from mgap.integrations.mlx.mlx_identity import identity_of
from mgap.methods.mgap import MGAP


class CorrectedHead:
    """What stands in the head's place: the head, and the correction of what it gives."""

    def __init__(self, head: MlxHead, method: MGAP) -> None:
        self.head, self.method = head, method
        self.correction = MlxCorrection(method.subspace.basis, head, method.settings)
        self.weights = head.place.weights

    def __call__(self, h: Any) -> Any:
        if self.head.place.weights != self.weights:
            raise UnsupportedHead(
                "the model's head has other weights than when mgap was attached: detach it, and attach it again"
            )
        if self.method.settings.alpha == 0:
            return self.head.place.own(h)  # bit-equal
        output = self.head.product(h) if self.method.exact else self.head.place.own(h).astype(mx.float32)
        return self.correction(h.astype(mx.float32), output)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own protocols
            raise AttributeError(name)
        raise UnsupportedHead(
            f"mlx-vlm asks for the head's {name}, to make logits past mgap; so it does to check the tokens of a draft model: "
            "leave draft_model out, or detach mgap"
        )


class MlxAttachment:
    """MGAP attached to a model of mlx-vlm. Call `detach()`, or use it as a context manager."""

    def __init__(self, model: Any, method: MGAP) -> None:
        self.method = method
        prior = method.prior
        prior.require_identity(identity_of(model, prior.identity), "the prior")
        head = MlxHead.of(model)
        self._corrected = CorrectedHead(head, method)
        self._place = head.place
        self._place.set(self._corrected)

    @property
    def is_attached(self) -> bool:
        return self._place.shadow is self._corrected

    def detach(self) -> None:
        """Give the model its own head back. Calling it twice does no harm."""
        if self.is_attached:
            self._place.clear()

    def __enter__(self) -> MlxAttachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()


def attach(model: Any, method: Any) -> MlxAttachment:
    """Attach MGAP to what `mlx_vlm.load` returned first, or to an `MlxModel`."""
    if not isinstance(method, MGAP):
        name = getattr(method, "name", None)
        what = f"{name} has no form in MLX" if isinstance(name, str) else f"{method!r:.60} is not a method"
        raise SettingError(f"{what}: pass mgap.MGAP(prior), or decode with transformers")
    return MlxAttachment(getattr(model, "mlx", model), method)
