"""Methods that `llm.collective_rpc` can call by name on the workers of an offline engine (`worker_extension_cls`)."""

from __future__ import annotations

from typing import Any

from mgap.serving.attaching import MODEL_ATTRIBUTE, identity_of


class Extension:
    """Mixed into vLLM's worker; every rank answers."""

    def mgap_identity(self) -> dict[str, Any] | None:
        """The model's identity as JSON; None on a rank without the input embedding."""
        from vllm.distributed.parallel_state import get_pp_group

        runner: Any = self.model_runner  # type: ignore[attr-defined]
        return identity_of(runner.get_model(), runner.model_config).to_json() if get_pp_group().is_first_rank else None

    def mgap_counts(self) -> dict[str, float] | None:
        """How often and how strongly MGAP has acted (`counts.CountSummary`); None on a rank without it."""
        corrected = self.model_runner.get_model().__dict__.get(MODEL_ATTRIBUTE)  # type: ignore[attr-defined]
        return None if corrected is None else corrected.counts.read()._asdict()
