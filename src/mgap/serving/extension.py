"""What an offline engine can be asked by name (`worker_extension_cls`), through `llm.collective_rpc`."""

from __future__ import annotations

from typing import Any

from mgap.serving.attaching import HELD, identity_of


class Extension:
    """Mixed into vLLM's worker; every rank answers."""

    def mgap_identity(self) -> dict[str, Any] | None:
        """Which model this is, as JSON; None on a rank without its input embedding."""
        from vllm.distributed.parallel_state import get_pp_group

        runner: Any = self.model_runner  # type: ignore[attr-defined]
        return identity_of(runner.get_model(), runner.model_config).to_json() if get_pp_group().is_first_rank else None

    def mgap_counts(self) -> dict[str, float] | None:
        """How often and how strongly MGAP has acted (`counts.Acted`); None where it does not."""
        held = self.model_runner.get_model().__dict__.get(HELD)  # type: ignore[attr-defined]
        return None if held is None else held.counts.read()._asdict()
