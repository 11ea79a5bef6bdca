"""Requests' own strengths under vLLM's second model runner.

A request keeps one slot for its lifetime. Before each step the runner says which slot each row of the logits belongs to,
including rows of drafted tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mgap.serving.engine_settings import PAIR, own_alpha
from mgap.serving.row_strengths import RowStrengths

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig


def track_request_rows(model: nn.Module, rows: RowStrengths, config: VllmConfig) -> None:
    """Make the runner's model state set `rows` before each step."""
    from vllm.v1.worker.gpu.model_states import resolve_model_state_cls

    base: type[Any] = resolve_model_state_cls(config, model)

    class StrengthState(base):
        """The model's own state, extended by every slot's own strength; NaN: the server's, which may change."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.own = np.full(self.max_num_reqs, np.nan, dtype=np.float32)  # by slot; a host copy, to skip work
            self.device_own = torch.full((self.max_num_reqs,), torch.nan, dtype=torch.float32, device=self.device)

        def add_request(self, req_index: int, new_req_data: Any) -> None:
            super().add_request(req_index, new_req_data)
            params = new_req_data.sampling_params
            own = None if params is None else own_alpha(params.extra_args, others=(PAIR,))
            self.own[req_index] = self.device_own[req_index] = np.nan if own is None else own

        def prepare_inputs(self, input_batch: Any, req_states: Any) -> Any:
            own = self.own[input_batch.idx_mapping_np]
            alphas = np.where(np.isnan(own), np.float32(rows.alpha), own)
            strengths = None
            if (alphas != np.float32(rows.alpha)).any():
                device_own = self.device_own[input_batch.expanded_idx_mapping]
                strengths = torch.where(device_own.isnan(), rows.alpha, device_own)
            rows.set_next(strengths, is_off=not alphas.any(), has_plain=not alphas.all())
            return super().prepare_inputs(input_batch, req_states)

    StrengthState.__name__ = StrengthState.__qualname__ = base.__name__
    model.__dict__["get_model_state_cls"] = lambda: StrengthState
