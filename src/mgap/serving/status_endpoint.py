"""`GET /v1/mgap` of vLLM's server: whether MGAP is on, with which prior and settings, and how it acts.

vLLM loads `StatusEndpoint` through its entry point, where VLLM_PLUGINS names mgap (`mgap serve` sees to that). It only reads.
The paths begin with /v1, which an --api-key guards.
"""

from __future__ import annotations

import base64
import json
from argparse import Namespace
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from safetensors.torch import save as dump_tensors

import mgap
from mgap.serving import plugin
from mgap.serving.engine_settings import EXTENSION, Serving

if TYPE_CHECKING:
    from fastapi import FastAPI
    from vllm.config import VllmConfig
    from vllm.engine.protocol import EngineClient

    from mgap.methods.mgap import MGAP

PATH, PRIOR_PATH = "/mgap", "/mgap/prior"  # below /v1


class StatusEndpoint:
    """vLLM's `EndpointPlugin`."""

    name = "mgap"
    required_tasks = ("generate",)
    client: EngineClient

    def attach_router(self, app: FastAPI) -> None:
        app.add_api_route(f"/v1{PATH}", self.status, methods=["GET"])
        app.add_api_route(f"/v1{PRIOR_PATH}", self.prior, methods=["GET"])

    async def init_state(self, engine_client: EngineClient, state: Any, args: Namespace) -> None:  # noqa: ARG002
        self.client = engine_client

    async def status(self) -> dict[str, Any]:
        """What `mgap run --engine server` must know before it asks, and what an operator wants to see."""
        import vllm

        config = self.config
        method, place = self.served or (None, None)
        model = config.model_config
        has_extension = config.parallel_config.worker_extension_cls == EXTENSION
        return {
            "is_on": method is not None,
            "prior": place,
            "settings": None if method is None else {**asdict(method.settings), "rank": method.subspace.rank},
            "exact": None if method is None else method.exact,
            "counts": await self._first("mgap_counts") if has_extension and method is not None else None,
            "model": await self._first("mgap_identity") if has_extension else None,
            "family": model.hf_config.model_type,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(config.device_config.device_type),
            "drafts": config.speculative_config is not None,
            "versions": {"mgap": mgap.__version__, "vllm": str(vllm.__version__)},
        }

    async def prior(self) -> dict[str, Any]:
        """The prior itself, as it would be saved: its description, and its tensors as safetensors in base64."""
        from fastapi import HTTPException

        if self.served is None:
            raise HTTPException(404, "this server runs without MGAP")
        tensors, about = self.served[0].prior.described()
        data = dump_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})
        return {"about": json.loads(json.dumps(about)), "tensors": base64.b64encode(data).decode()}

    @property
    def config(self) -> VllmConfig:
        return self.client.vllm_config

    @cached_property
    def served(self) -> tuple[MGAP, str] | None:
        """The method of this server, and where its prior lies; None without MGAP."""
        serving = None if plugin.fault else Serving.of_engine(self.config)
        return None if serving is None else (serving.method(), serving.prior)

    async def _first(self, method: str) -> dict[str, Any] | None:
        """What the first rank that knows answers."""
        return next((told for told in await self.client.collective_rpc(method) if told is not None), None)
