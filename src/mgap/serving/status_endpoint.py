"""What vLLM's server says of MGAP: `/v1/mgap`, `/v1/mgap/prior`, `/mgap/ready`, and metrics. A new prior for a running server.

vLLM loads `StatusEndpoint` through its entry point, where VLLM_PLUGINS names mgap (`mgap serve` sees to that). It asks the
workers, so that these need our extension. The paths that begin with /v1 are those that an --api-key guards.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request
from vllm.v1.engine.exceptions import EngineDeadError

import mgap
from mgap.serving import metrics, plugin
from mgap.serving.engine_settings import EXTENSION, Serving

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.protocol import EngineClient

METRICS_EVERY = 10.0  # seconds between two looks at the engine's counts
NO_EXTENSION = f"this server's workers do not tell: start it with `mgap serve`, or with --worker-extension-cls {EXTENSION}"


class StatusEndpoint:
    """vLLM's `EndpointPlugin`."""

    name = "mgap"
    required_tasks = ("generate",)
    client: EngineClient
    measuring: asyncio.Task[None] | None = None

    def attach_router(self, app: FastAPI) -> None:
        app.add_api_route("/v1/mgap", self.status, methods=["GET"])
        app.add_api_route("/v1/mgap/prior", self.prior, methods=["GET"])
        app.add_api_route("/v1/mgap/prior", self.reload, methods=["POST"])
        app.add_api_route("/mgap/ready", self.ready, methods=["GET"])

    async def init_state(self, engine_client: EngineClient, state: Any, args: Namespace) -> None:  # noqa: ARG002
        self.client, self.changing = engine_client, asyncio.Lock()
        if self.tells and self.is_on:
            self.measuring = asyncio.create_task(self._keep_measuring())

    async def status(self) -> dict[str, Any]:
        """What `mgap run --engine server` must know before it asks, and what an operator wants to see."""
        import vllm

        self._require_extension()
        model = self.config.model_config
        method = await self._first("mgap_method") or dict.fromkeys(("method", "prior", "sha256", "settings", "exact"))
        return {
            "is_on": self.is_on,
            **method,
            "counts": await self._first("mgap_counts"),
            "model": await self._first("mgap_identity"),
            "family": model.hf_config.model_type,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(self.config.device_config.device_type),
            "drafts": self.config.speculative_config is not None,
            "versions": {"mgap": mgap.__version__, "vllm": str(vllm.__version__)},
        }

    async def prior(self) -> dict[str, Any]:
        """The prior itself (`Extension.mgap_prior`)."""
        self._require_extension()
        if found := await self._first("mgap_prior"):
            return found
        raise HTTPException(404, "this server runs without MGAP, or with another method, whose prior it does not give away")

    async def ready(self) -> dict[str, Any]:
        """For probes: 200 where the engine answers with MGAP on, else 503."""
        try:
            await self.client.check_health()
        except EngineDeadError as error:
            raise HTTPException(503, "the engine has ended") from error
        if not self.is_on:
            raise HTTPException(503, "this server runs without MGAP")
        method = await self._first("mgap_method") if self.tells else None
        return {"is_on": True, "prior": method["prior"] if method else self.prior_at_start}

    async def reload(self, request: Request) -> dict[str, Any]:
        """Another prior, or other settings: keys of `additional_config` that replace the present ones. The new status."""
        self._require_extension()
        serving = Serving.of_engine(self.config)
        if serving is None or plugin.fault:
            raise HTTPException(409, "this server runs without MGAP: start one with a prior")
        if not serving.reload:
            raise HTTPException(403, 'this server keeps its prior: start it with `mgap serve --reload`, or with "reload": true')
        try:
            given = json.loads(await request.body())
        except ValueError:
            given = None
        if not isinstance(given, dict) or not given:
            raise HTTPException(400, 'give keys and values as JSON, such as {"prior": "priors/new"}')
        async with self.changing:
            await self._change(given)
        return await self.status()

    async def _change(self, given: dict[str, Any]) -> None:
        read = await self.client.collective_rpc("mgap_read_next", args=(given,))
        errors = [told["error"] for told in read if "error" in told]
        if not errors and len({told["sha256"] for told in read}) > 1:
            errors = ["the ranks of this engine read different priors there: name a folder that all of them see"]
        errors = errors or [told for told in await self.client.collective_rpc("mgap_check_next") if told]
        if errors:
            raise HTTPException(400, errors[0])
        await self.client.collective_rpc("mgap_take_next")

    @property
    def config(self) -> VllmConfig:
        return self.client.vllm_config

    @property
    def tells(self) -> bool:
        """Whether the workers have our extension."""
        return bool(self.config.parallel_config.worker_extension_cls == EXTENSION)

    @property
    def is_on(self) -> bool:
        return self.prior_at_start is not None

    @property
    def prior_at_start(self) -> str | None:
        serving = None if plugin.fault else Serving.of_engine(self.config)
        return None if serving is None else serving.prior

    def _require_extension(self) -> None:
        if not self.tells:
            raise HTTPException(404, NO_EXTENSION)

    async def _first(self, method: str) -> dict[str, Any] | None:
        """What the first rank that knows answers."""
        return next((told for told in await self.client.collective_rpc(method) if told is not None), None)

    async def _keep_measuring(self) -> None:
        """Bring the engine's counts to where Prometheus reads, as long as the engine lives."""
        while True:
            try:
                if method := await self._first("mgap_method"):
                    metrics.set_prior(method["prior"])
                if counts := await self._first("mgap_counts"):
                    metrics.set_counts(counts)
            except EngineDeadError:
                return
            await asyncio.sleep(METRICS_EVERY)
