"""`mgap inspect`: a page in the browser that shows what the prior does to an answer, token by token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.carry_out import by_method
from mgap.cli.options import Device, Dtype, Revision, SavedPrior, TrustRemoteCode
from mgap.cli.signals import Terminated, tell_if_interrupt_is_ignored, way_to_end
from mgap.errors import SettingError
from mgap.registry import EMBEDDED

if TYPE_CHECKING:
    from mgap.inspector.model_shelf import ModelShelf


def inspect(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            autocompletion=completion.model,
            help="Hub id or folder of a multimodal model; repeatable. Default: pocket/llava, pocket/qwen3-vl.",
        ),
    ] = None,
    prior: SavedPrior = None,
    bank: Annotated[
        str | None, typer.Option(help="Folder of a saved bank of plain states, such as runs/departure/bank, for departures.")
    ] = None,
    runs: Annotated[str, typer.Option(help="Folder of runs to look into; it may be empty or missing.")] = "runs",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: reachable from other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 7860,
    password: Annotated[
        str | None,
        typer.Option(
            envvar="MGAP_INSPECT_PASSWORD",
            help="Asked for before the page opens. Better by the variable: others can see a command's words.",
        ),
    ] = None,
    open_: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser; default: where this is a terminal.")
    ] = None,
    max_mb: Annotated[float, typer.Option(help="Megabytes that a dropped picture may have.")] = 20,
    max_pixels: Annotated[int, typer.Option(help="Pixels that a dropped picture may have.")] = 50_000_000,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of an answer, at most.")] = 96,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of a method, as vcd.alpha=0.5 or asd.steering=DIR; repeatable.")
    ] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Ask about pictures in a web page, see every token's numbers, and move the strength. Only this machine can open it.

    Example: mgap inspect --model pocket/llava
    """
    from mgap.inspector.server import bind, exposure, leave, private_uploads, require_gradio, serve

    require_gradio("mgap inspect")
    if password == "":
        raise SettingError("--password is empty: give one, or leave it out")
    if Path(runs).exists() and not Path(runs).is_dir():
        raise SettingError(f"--runs {runs} is a file: give the folder that holds runs")
    given = by_method(set_ or [])
    names = model or list(EMBEDDED)
    prior = _sorted_out(prior, given)
    warning, ends = exposure(host, password is not None), f"{way_to_end()} ends it"
    try:
        with private_uploads(), bind(host, port) as door:
            tell_if_interrupt_is_ignored()
            if warning:
                print(f"mgap: warning: {warning}", file=sys.stderr, flush=True)
            from mgap.inspector.answering import check_given
            from mgap.inspector.dropped import Limits  # imports Gradio, which reads the environment then
            from mgap.inspector.model_shelf import ModelShelf

            check_given(given)
            limits = Limits(max_mb, max_pixels)
            where: dict[str, Any] = {
                "device": device,
                "dtype": dtype,
                "revision": revision,
                "trust_remote_code": trust_remote_code,
            }
            shelf = ModelShelf(names, prior=prior, bank=bank, **where)
            _load_first(shelf)

            from mgap.inspector.app import build_page
            from mgap.inspector.theme import style, theme

            banner = warning if password is None else ""
            serve(
                build_page(shelf, runs=Path(runs), limits=limits, max_new_tokens=max_new_tokens, given=given, banner=banner),
                door,
                host=host,
                password=password,
                max_bytes=limits.bytes,
                open_browser=sys.stdout.isatty() if open_ is None else open_,
                ready=lambda address: print(f"mgap inspect: {address} ({ends})", flush=True),
                css=style(),
                theme=theme(),
            )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Terminated as asked:
        leave(int(asked.code or 0))
        raise
    leave(0)


def _sorted_out(place: str | None, given: dict[str, dict[str, Any]]) -> str | None:
    """Where the page's prior lies; what else is in the folder becomes a setting of the methods that need it."""
    from mgap.run.learning import kinds_in, methods_that_take

    kinds = kinds_in(place) if place else None
    if not place or not kinds:
        return place
    for kind in kinds:
        for name, setting in methods_that_take(kind).items() if kind != "subspace" else ():
            given.setdefault(name, {}).setdefault(setting, place)
    return place if "subspace" in kinds else None


def _load_first(shelf: ModelShelf) -> None:
    """With bars on the terminal; the others are loaded when somebody chooses them."""
    import torch
    from transformers.utils import logging

    from mgap.io.progress import bars

    if set(shelf.names) <= set(EMBEDDED):
        torch.set_num_threads(1)  # small models are slower on two cores where another process has one of them
    logging.disable_progress_bar()  # ours tells the same
    with bars() as told:
        shelf.get(shelf.names[0], told)
