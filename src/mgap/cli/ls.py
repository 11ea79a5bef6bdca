"""`mgap ls`: list what is available."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from mgap.cli import completion
from mgap.errors import SettingError
from mgap.registry import ASSEMBLED, BACKBONES, BENCHMARKS, EXPERIMENTS, METHODS, POCKET_MODELS, PROMPTS, Registry

if TYPE_CHECKING:
    from mgap.methods.base import Need


def ls(
    what: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completion.completer(lambda: LISTINGS),
            help="models, methods, presets, engines, backbones, benchmarks, experiments, null-images, parsers, prompt-sets, "
            "prompts or plugins.",
        ),
    ] = None,
    which: Annotated[
        str | None, typer.Argument(metavar="[SET]", autocompletion=completion.prompts, help="With prompts: which set.")
    ] = None,
) -> None:
    """List models, methods, presets, engines, backbones, benchmarks, experiments, null images, parsers, prompts and plugins."""
    if what is not None and what not in LISTINGS:
        raise SettingError(f"nothing called {what!r} to list: choose from {', '.join(LISTINGS)}")
    if which is not None:
        if what != "prompts":
            raise SettingError(f"{which!r}: only prompts come in sets, such as `mgap ls prompts default`")
        print("\n".join(PROMPTS.get(which)()))
        return
    for name in [what] if what else [n for n in LISTINGS if n != "prompts"]:
        lines = LISTINGS[name]()
        if what is None and lines:
            print(f"{name}:")
        for line in lines:
            print(line if what else f"  {line}")


def _methods() -> list[str]:
    from mgap.serving.servable import why_not

    lines = []
    for name, method in sorted(METHODS.loaded().items()):
        modes = ", ".join(sorted(mode.value for mode in method.modes))
        cost = f"{method.forwards:g} forward{'' if method.forwards == 1 else 's'} a token"
        cost += f" ({method.besides})" if method.besides else ""
        lines.append(f"{name:<15} seam {method.seam.value}, {cost}: {method.summary}")
        lines.append(f"{'':<15} decoding: {modes}")
        if method.presets:
            lines.append(f"{'':<15} presets: {', '.join(method.presets)}")
        if needs := method.learnt_settings():
            lines.append(f"{'':<15} needs: {', '.join(_need(name, need) for name, need in needs.items())}")
        reason = why_not(method)
        lines.append(f"{'':<15} engine vllm: {f'no, {reason}' if reason else 'yes'}")
    return lines + _broken(METHODS)


def _broken(registry: Registry) -> list[str]:
    """Entries of other packages that cannot be used."""
    return [f"{name:<15} not usable: {reason}" for name, reason in registry.plugins().items() if reason]


def _plugins() -> list[str]:
    from mgap.cli.environment import plugins

    return [f"{name}: {state}" for name, state in plugins().items()]


def _need(setting: str, need: Need) -> str:
    from mgap.run.learning import called

    return f"{setting} ({called(need.kind)}{f', where {need.only_with} is not 0' if need.only_with else ''})"


def _presets() -> list[str]:
    lines = []
    for name, method in sorted(METHODS.loaded().items()):
        for preset, values in method.presets.items():
            listed = ", ".join(f"{k}={v}" for k, v in values.items()) or "what `mgap tune` chose for the prior"
            lines.append(f"{name} {preset:<16} {listed}")
    return lines


def _engines() -> list[str]:
    from mgap.integrations.engine_support import ENGINES

    lines = []
    for engine in ENGINES:
        names = engine.methods()
        lines.append(f"{engine.name:<15} {engine.call.replace('`', '')}")
        lines.append(f"{'':<15} methods: {'all' if len(names) == len(METHODS.loaded()) else ', '.join(names)}")
        for is_done, said in ((True, "decoding"), (False, "refused")):
            modes = [
                mode.value + (f" ({support.remark})" if support.remark else "")
                for mode, support in engine.modes.items()
                if support.is_done is is_done
            ]
            lines += [f"{'':<15} {said}: {', '.join(modes)}"] if modes else []
        lines.append(f"{'':<15} answers equal {engine.equals.replace('`', '')}")
    return lines


def _backbones() -> list[str]:
    reasons = BACKBONES.plugins()  # imports those of other packages only
    return [name for name in BACKBONES.names() if not reasons.get(name)] + _broken(BACKBONES)


def _benchmarks() -> list[str]:
    lines = [
        f"{name:<15} pictures: {', '.join(source.datasets)}; answers of up to {source.max_new_tokens} tokens"
        + (f"; its own keys: {', '.join(sorted(source.keys))}" if source.keys else "")
        for name, source in BENCHMARKS.loaded().items()
    ]
    return lines + _broken(BENCHMARKS)


def _experiments() -> list[str]:
    import yaml

    titles = {name: yaml.safe_load(path.read_text(encoding="utf-8"))["title"] for name, path in EXPERIMENTS.items()}
    return [f"{f'experiments/{name}.yaml':<36} {title}" for name, title in titles.items()]


def _null_images() -> list[str]:
    from mgap.backbones.null_images import NULL_IMAGES

    return list(NULL_IMAGES)


def _parsers() -> list[str]:
    from mgap.benchmarks.mme.readers import READERS
    from mgap.benchmarks.yesno_parsers import PARSERS

    parsers = dict.fromkeys((*PARSERS.values(), *READERS.values()))
    return [f"{parser.name:<15} {parser.summary}" for parser in parsers]


def _prompt_sets() -> list[str]:
    sets = sorted(PROMPTS.loaded().items())
    return [f"{name:<10} {len(list(prompts()))} prompts" for name, prompts in sets] + _broken(PROMPTS)


def _prompts() -> list[str]:
    return list(PROMPTS.get("default")())


LISTINGS: dict[str, Callable[[], list[str]]] = {
    "models": lambda: [f"{name}  (fetched on first use)" if name in ASSEMBLED else name for name in POCKET_MODELS],
    "methods": _methods,
    "presets": _presets,
    "engines": _engines,
    "backbones": _backbones,
    "benchmarks": _benchmarks,
    "experiments": _experiments,
    "null-images": _null_images,
    "parsers": _parsers,
    "prompt-sets": _prompt_sets,
    "prompts": _prompts,
    "plugins": _plugins,
}
