"""Methods that `collective_rpc` can call by name on an engine's workers (`worker_extension_cls`). Every rank answers."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from safetensors.torch import save as dump_tensors

from mgap.methods.mgap import MGAP
from mgap.serving.attaching import MODEL_ATTRIBUTE, SERVING_ATTRIBUTE, identity_of
from mgap.serving.reloading import check_next, read_next, take_next

if TYPE_CHECKING:
    from torch import nn

    from mgap.serving.correcting import CorrectedLogits


class Extension:
    """Mixed into vLLM's worker."""

    def mgap_identity(self) -> dict[str, Any] | None:
        """The model's identity as JSON; None on a rank without the input embedding."""
        from vllm.distributed.parallel_state import get_pp_group

        runner: Any = self.model_runner  # type: ignore[attr-defined]
        return identity_of(runner.get_model(), runner.model_config).to_json() if get_pp_group().is_first_rank else None

    def mgap_counts(self) -> dict[str, float] | None:
        """How often and how strongly MGAP has acted (`counts.CountSummary`); None on a rank without it."""
        corrected = _corrected(self)
        return None if corrected is None or corrected.counts is None else corrected.counts.read()._asdict()

    def mgap_method(self) -> dict[str, Any] | None:
        """The method, what it has learnt and its settings; None on a rank without it."""
        corrected = _corrected(self)
        if corrected is None:
            return None
        method = corrected.method
        return {
            "method": method.name,
            "prior": _model(self).__dict__[SERVING_ATTRIBUTE].prior,
            "sha256": method.learnt.digest,
            "settings": {**asdict(method.settings), "rank": method.subspace.rank},
            "exact": method.exact,
        }

    def mgap_prior(self) -> dict[str, Any] | None:
        """MGAP's prior as it would be saved: its description, and its tensors as safetensors in base64."""
        corrected = _corrected(self)
        if corrected is None or not isinstance(corrected.method, MGAP):
            return None
        tensors, about = corrected.method.prior.described()
        data = dump_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})
        return {"about": json.loads(json.dumps(about)), "tensors": base64.b64encode(data).decode()}

    def mgap_read_next(self, given: dict[str, Any]) -> dict[str, str]:
        return read_next(_model(self), given)

    def mgap_check_next(self) -> str:
        return check_next(_model(self), self.model_runner.model_config)  # type: ignore[attr-defined]

    def mgap_take_next(self) -> None:
        take_next(_model(self))


def _model(worker: Any) -> nn.Module:
    model: nn.Module = worker.model_runner.get_model()
    return model


def _corrected(worker: Any) -> CorrectedLogits | None:
    return _model(worker).__dict__.get(MODEL_ATTRIBUTE)
