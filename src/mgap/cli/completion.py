"""What the shell offers after TAB. Names are looked up when the key is pressed, and none of this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

PRESETS = {  # of `mgap ls presets`, which has to import every method; a test holds the two together
    "code": ("reference-code", "haltrapper"),
    "dola": ("reference-code", "paper"),
    "haltrapper": ("reference-code", "reference-code-5"),
    "mgap": ("paper", "table-random", "table-hard", "reference-code", "tuned"),
    "opera": ("paper", "fast"),
    "pai": ("paper", "reference-code"),
}


def words(*names: str) -> Callable[[str], list[str]]:
    """A completer of a few fixed words."""
    return found(lambda: names)


def found(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completer of names that have to be looked up."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _methods() -> list[str]:
    from mgap.registry import METHODS
    from mgap.run.method_plans import VANILLA

    return [*METHODS.names(), VANILLA]


def _splits() -> tuple[str, ...]:
    from mgap.benchmarks.pope.questions import SPLITS

    return SPLITS


def _experiments() -> list[str]:
    from mgap.registry import EXPERIMENTS
    from mgap.run.config import benchmarks

    return [*benchmarks(), *EXPERIMENTS]


def _parsers() -> list[str]:
    from mgap.benchmarks.yesno_parsers import PARSERS

    return list(PARSERS)


def _engines() -> list[str]:
    from mgap.registry import ENGINES

    return ENGINES.names()


def _datasets() -> list[str]:
    from mgap.run.config import datasets

    return datasets()


def _prompts() -> list[str]:
    from mgap.registry import PROMPTS

    return PROMPTS.names()


def _languages() -> tuple[str, ...]:
    from mgap.benchmarks.language import LANGUAGES

    return LANGUAGES


def _published() -> list[str]:
    from mgap.benchmarks.published_files import names

    return names()


method, experiment, parser = found(_methods), found(_experiments), found(_parsers)
engine, dataset, language, published = found(_engines), found(_datasets), found(_languages), found(_published)
prompts = found(_prompts)
dtype = words("auto", "float32", "bfloat16", "float16")
split = found(_splits)


def preset(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those of the method that is on the line already, else of MGAP."""
    named = ctx.params.get("method") or "mgap"
    return [name for name in PRESETS.get(named, ()) if name.startswith(incomplete)]


def model(incomplete: str) -> list[str]:
    """Embedded models, and folders: one that holds a checkpoint as it is, another with the slash that goes into it.

    Nothing where only one folder is left that has to be gone into: the shell's own completion does so without a space.
    """
    from mgap.registry import EMBEDDED

    above = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    typed = incomplete if incomplete.endswith("/") else incomplete[: len(incomplete) - len(Path(incomplete).name)]
    try:
        folders = sorted(path for path in above.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:  # no such folder, or a closed one
        folders = []
    named = {f"{typed}{path.name}{'' if (path / 'config.json').is_file() else '/'}": path for path in folders}
    offered = [name for name in (*EMBEDDED, *named) if name.startswith(incomplete)]
    return [] if len(offered) == 1 and offered[0].endswith("/") else offered
