"""`mgap serve`: vLLM's OpenAI server with MGAP on."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import Revision, TrustRemoteCode
from mgap.cli.signals import way_to_end
from mgap.errors import SettingError


def serve(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.model,
            help="Multimodal model: hub id or folder, or pocket/llava, pocket/qwen3-vl, pocket/natural.",
        ),
    ],
    further: Annotated[
        list[str] | None, typer.Argument(help="After --: options of `vllm serve`, such as --tensor-parallel-size 4.")
    ] = None,
    prior: Annotated[
        str | None, typer.Option(help="Folder or hub repository with what the method has learnt (`mgap fit`).")
    ] = None,
    method: Annotated[str, typer.Option(help="mgap, or predicted-prior, whose --prior is a prior map.")] = "mgap",
    alpha: Annotated[
        float | None, typer.Option(help="Strength for requests that do not set their own: MGAP's alpha, or rho.")
    ] = None,
    lam: Annotated[float | None, typer.Option(help="Slope of MGAP's entropy gate.")] = None,
    preset: Annotated[
        str | None, typer.Option(autocompletion=completion.preset, help="Named settings (`mgap ls presets`).")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Use only the first N directions of the prior.")] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Allow another prior for the running server: POST /v1/mgap/prior.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 makes it reachable from other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the command, but start nothing.")] = False,
) -> None:
    """Serve a model over the OpenAI API with MGAP on; a request with "vllm_xargs": {"mgap_alpha": 0} turns it off.

    Example: mgap serve Qwen/Qwen3-VL-8B-Instruct --prior priors/qwen3-vl --alpha 0.75 -- --tensor-parallel-size 4
    """
    from mgap.serving.engine_settings import SERVED_METHODS
    from mgap.serving.installed import refuse_filtered, require_vllm
    from mgap.serving.launch import plan_launch, refuse_taken
    from mgap.settings import check_choice

    if prior is None:
        raise SettingError(
            f"a served model needs its prior: make one with `mgap fit --model {model} --out DIR`, then --prior DIR"
        )
    if not dry_run:
        require_vllm("mgap serve")
        refuse_taken(host, port)
    refuse_filtered()
    strength = SERVED_METHODS[check_choice("--method", method, SERVED_METHODS)].moved_by
    given: dict[str, Any] = {strength: alpha, "lam": lam, "preset": preset, "rank": rank, "reload": reload or None}
    settings = {name: value for name, value in given.items() if value is not None}
    where: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    launch = plan_launch(model, prior, settings, method=method, host=host, port=port, further=further or [], **where)
    print(launch.line, flush=True)
    if dry_run:
        return
    print(f"starting the server, which takes half a minute or more; {way_to_end()} ends it", file=sys.stderr, flush=True)
    os.execve(sys.executable, launch.command, {**os.environ, **launch.environment})
