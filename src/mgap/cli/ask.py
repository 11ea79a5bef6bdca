"""`mgap ask`: ask one question about one picture."""

from __future__ import annotations

import sys
import warnings
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import (
    Device,
    Dtype,
    ModelName,
    Revision,
    SavedPrior,
    Template,
    TrustRemoteCode,
    load_model,
    parse_settings,
    working,
)
from mgap.errors import SettingError
from mgap.io.strict_json import strict_json
from mgap.registry import POCKET_MODELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from mgap.decoding.model import Model
    from mgap.methods.base import Method
    from mgap.types import Answer, Step


def ask(
    image: Annotated[str, typer.Argument(help="A picture file. For a pocket model a drawing: photographs mean nothing to it.")],
    question: Annotated[str, typer.Argument(help="A question, or an instruction such as 'Describe the image.'")],
    model: ModelName,
    prior: SavedPrior = None,
    method: Annotated[
        str, typer.Option(autocompletion=completion.method, help="A method (`mgap ls methods`), or vanilla for plain decoding.")
    ] = "mgap",
    alpha: Annotated[float | None, typer.Option(help="The method's strength.")] = None,
    lam: Annotated[float | None, typer.Option(help="Slope of MGAP's entropy gate.")] = None,
    preset: Annotated[
        str | None, typer.Option(autocompletion=completion.preset, help="Named settings of the method (`mgap ls presets`).")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting of the method, as KEY=VALUE; repeatable.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 512,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(help="With --sample.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="With --sample.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="With --sample; 0: no limit.")] = 0,
    min_p: Annotated[float, typer.Option(help="With --sample: least share of the best probability; 0: off.")] = 0.0,
    seed: Annotated[int, typer.Option(help="With --sample.")] = 0,
    num_beams: Annotated[int, typer.Option(help="Number of beams; 1: no beam search.")] = 1,
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the decoding step: slow to start, then fast.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer while it is generated.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show the method's values at every token.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer, and the trace, as JSON.")] = False,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    template: Template = None,
) -> None:
    """Answer a question about a picture, with a method or with plain decoding.

    Example: mgap ask street.jpg "Is there a dog in the image?" --model llava-hf/llava-1.5-7b-hf --prior priors/llava
    """
    from mgap.io.images import open_image
    from mgap.io.prompt_files import check_prompt
    from mgap.types import Decoding

    if stream and (trace or as_json):
        raise SettingError("--stream prints as it goes: leave out --trace and --json, or --stream")
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "sample": sample, "temperature": temperature, "top_p": top_p,
        "top_k": top_k, "min_p": min_p, "seed": seed, "num_beams": num_beams, "compile": compile_,
    }  # fmt: skip
    Decoding.of(**options).modes(stream=stream)  # refuses mistakes before the weights are loaded
    picture = open_image(image)  # refuses it now; the model gets the path, so that methods know the picture by its name
    check_prompt(question)
    named = {"alpha": alpha, "lam": lam, "preset": preset}
    settings = {**parse_settings(set_), **{k: v for k, v in named.items() if v is not None}}
    build = _prepare(method, prior, settings, model)
    _warn_of_a_photograph(image, picture.size, model)
    loaded = load_model(model, device, dtype, revision, trust_remote_code, template)
    chosen = build(loaded)
    with ExitStack() as stack:
        busy = stack.enter_context(working("answering"))
        loaded.on_progress = busy.update
        if chosen is not None:
            stack.enter_context(stack.enter_context(loaded.using(chosen)).hear(busy.update))
        if stream:
            for piece in loaded.stream(image, question, **options):
                busy.stop()  # it would overwrite the answer
                print(piece, end="", flush=True)
            print()
            return
        answer = loaded.answer(image, question, trace=trace, **options)
    if as_json:
        print(strict_json({"model": model, "method": method, "settings": settings, **asdict(answer)}, indent=1))
        return
    print(answer)
    if trace:
        print_trace(answer)


def _warn_of_a_photograph(image: str, size: tuple[int, int], model: str) -> None:
    """Drawn pictures are square. Nothing else tells them from photographs: both have grain and many colours."""
    if model in POCKET_MODELS and size[0] != size[1]:
        warnings.warn(
            f"{model} was trained on square drawings only, and {image} is {size[0]} x {size[1]}: the answer to a photograph "
            "means nothing",
            stacklevel=2,
        )


def _prepare(name: str, prior: str | None, settings: dict[str, Any], model: str) -> Callable[[Model], Method | None]:
    """Check all that needs no model. Returns a function that builds the method once the model is loaded."""
    if name == "vanilla":
        if settings or prior:
            raise SettingError("--method vanilla takes no prior and no settings: leave them out, or name a method")
        return lambda _model: None

    from mgap.io.progress import bars
    from mgap.priors.prior_plan import Priors
    from mgap.run.method_plans import MethodPlan, about_learnt, build_method

    if "prior" in settings:
        raise SettingError(f"--set prior={settings['prior']}: name the folder with --prior")
    plan = MethodPlan(name, name, settings).with_settings({"prior": prior} if prior else {})
    plan.refuse_unlearnt(model)
    built = build_method(plan, None, Priors()) if plan.is_learnt else None

    def build(loaded: Model) -> Method | None:
        method = built
        if method is None:
            with bars() as progress:
                method = build_method(plan, loaded, Priors(), progress)
        for setting, about in about_learnt(method).items():
            print(f"{setting.replace('_', ' ')}: {about}", file=sys.stderr)
        return method

    return build


def print_trace(answer: Answer) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    steps = answer.trace or ()
    table = Table(title="what the method saw and did")
    table.add_column("token")
    for name in steps[0].values if steps else ():
        table.add_column(name, justify="right")
    table.add_column("likeliest before")
    table.add_column("likeliest after")
    for step in steps:
        numbers = (f"{value:.3f}" for value in step.values.values())
        table.add_row(Text(repr(step.token)), *numbers, Text(_best(step, "before")), Text(_best(step, "after")))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _best(step: Step, side: str) -> str:
    return "  ".join(f"{c.token!r} {100 * c.probability:.0f}%" for c in getattr(step, side)[:3])
