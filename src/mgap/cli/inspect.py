"""`mgap inspect`: a page in the browser that shows what the prior does to an answer, token by token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.carry_out import by_method
from mgap.cli.options import Device, Dtype, Revision, SavedPrior, Template, TrustRemoteCode
from mgap.cli.signals import Terminated, tell_if_interrupt_is_ignored, way_to_end
from mgap.errors import SettingError
from mgap.registry import EMBEDDED, POCKET_MODELS

if TYPE_CHECKING:
    from mgap.inspector.model_shelf import ModelShelf


def inspect(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            autocompletion=completion.model,
            help="Multimodal model: hub id or folder; repeatable. Default: pocket/llava and pocket/qwen3-vl.",
        ),
    ] = None,
    prior: SavedPrior = None,
    bank: Annotated[
        str | None,
        typer.Option(help="Folder with a saved bank of plain states, to show departures, such as runs/departure/bank."),
    ] = None,
    runs: Annotated[str, typer.Option(help="Folder with runs to browse; it may be empty or missing.")] = "runs",
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 makes it reachable from other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 7860,
    password: Annotated[
        str | None,
        typer.Option(
            envvar="MGAP_INSPECT_PASSWORD",
            help="Required to open the page. Safer through the variable: other users can see a command line.",
        ),
    ] = None,
    open_: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser; default: only from a terminal.")
    ] = None,
    max_mb: Annotated[float, typer.Option(help="Largest dropped picture, in megabytes.")] = 20,
    max_pixels: Annotated[int, typer.Option(help="Largest dropped picture, in pixels.")] = 50_000_000,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 96,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A method's setting, such as vcd.alpha=0.5 or asd.steering=DIR; repeatable."),
    ] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    template: Template = None,
) -> None:
    """Ask about pictures in a web page, see the numbers behind every token, and vary the strength. Local only by default.

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
    prior = _distribute(prior, given)
    warning, ends = exposure(host, password is not None), f"{way_to_end()} ends it"
    try:
        with private_uploads(), bind(host, port) as door:
            tell_if_interrupt_is_ignored()
            if warning:
                print(f"mgap: warning: {warning}", file=sys.stderr, flush=True)
            from mgap.inspector.answering import check_given
            from mgap.inspector.dropped import Limits  # imports Gradio, which then reads the environment
            from mgap.inspector.model_shelf import ModelShelf

            check_given(given)
            limits = Limits(max_mb, max_pixels)
            where: dict[str, Any] = {
                "device": device,
                "dtype": dtype,
                "revision": revision,
                "trust_remote_code": trust_remote_code,
                "template": template,
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
    except Terminated as signal:
        leave(int(signal.code or 0))
        raise
    leave(0)


def _distribute(place: str | None, given: dict[str, dict[str, Any]]) -> str | None:
    """Returns the folder if it holds a prior. Whatever else it holds becomes a setting of the methods that need it."""
    from mgap.run.learning import kinds_in, methods_that_take

    kinds = kinds_in(place) if place else None
    if not place or not kinds:
        return place
    for kind in kinds:
        for name, setting in methods_that_take(kind).items() if kind != "subspace" else ():
            given.setdefault(name, {}).setdefault(setting, place)
    return place if "subspace" in kinds else None


def _load_first(shelf: ModelShelf) -> None:
    """Load the first model, with progress bars. The others are loaded when they are chosen."""
    import torch
    from transformers.utils import logging

    from mgap.io.progress import bars

    if set(shelf.names) <= set(POCKET_MODELS):
        torch.set_num_threads(1)  # small models are slower on two cores if another process uses one
    logging.disable_progress_bar()  # ours shows the same
    with bars() as progress:
        shelf.get(shelf.names[0], progress)
