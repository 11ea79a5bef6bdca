"""Shell completion. Names are looked up when TAB is pressed; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

PRESETS = {  # `mgap ls presets` would import every method; a test keeps the two equal
    "avisc": ("questions", "captions"),
    "code": ("reference-code", "haltrapper"),
    "dola": ("reference-code", "paper"),
    "ed": ("questions", "captions"),
    "given": ("convis", "agla", "halc", "marine", "cicd"),
    "haltrapper": ("reference-code", "reference-code-5"),
    "mgap": ("paper", "table-random", "table-hard", "reference-code", "tuned"),
    "opera": ("paper", "fast"),
    "pai": ("paper", "reference-code"),
    "sid": ("paper", "reference-code"),
    "vista": ("captions", "questions"),
    "yes-if-close": ("yes-if-close", "no-if-close"),
}


def words(*names: str) -> Callable[[str], list[str]]:
    """A completer for fixed words."""
    return completer(lambda: names)


def completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completer for names that are looked up."""

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


def _mme_parsers() -> list[str]:
    from mgap.benchmarks.mme.readers import READERS

    return list(READERS)


def _tasks() -> tuple[str, ...]:
    from mgap.benchmarks.mme.questions import ALL, TASK_SETS

    return (*TASK_SETS, *ALL)


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

    return [*names(), "smollm2"]


method, experiment, parser = completer(_methods), completer(_experiments), completer(_parsers)
engine, dataset, language, published = completer(_engines), completer(_datasets), completer(_languages), completer(_published)
prompts = completer(_prompts)
dtype = words("auto", "float32", "bfloat16", "float16")
split, tasks, mme_parser = completer(_splits), completer(_tasks), completer(_mme_parsers)
unfinished = words("keep", "drop")


def preset(ctx: typer.Context, incomplete: str) -> list[str]:
    """The presets of the method on the command line, else of MGAP."""
    named = ctx.params.get("method") or "mgap"
    return [name for name in PRESETS.get(named, ()) if name.startswith(incomplete)]


def model(incomplete: str) -> list[str]:
    """Embedded models, and folders: a checkpoint's by its name, any other with a slash at the end.

    Offers nothing if the only match is such a folder: the shell's own completion enters it without adding a space.
    """
    from mgap.registry import POCKET_MODELS

    above = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    typed = incomplete if incomplete.endswith("/") else incomplete[: len(incomplete) - len(Path(incomplete).name)]
    try:
        folders = sorted(path for path in above.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:  # missing or unreadable
        folders = []
    named = {f"{typed}{path.name}{'' if (path / 'config.json').is_file() else '/'}": path for path in folders}
    offered = [name for name in (*POCKET_MODELS, *named) if name.startswith(incomplete)]
    return [] if len(offered) == 1 and offered[0].endswith("/") else offered
