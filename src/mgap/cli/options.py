"""Options that several verbs share, and what they build."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mgap.cli import completion
from mgap.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.status import Status

    from mgap.decoding.model import Model
    from mgap.reports.scores import Scores

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        autocompletion=completion.model,
        help="Hub id or folder of a multimodal model, or pocket/llava, pocket/qwen3-vl.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, cpu, ...; default: a GPU when there is one.")]
Dtype = Annotated[
    str, typer.Option(autocompletion=completion.dtype, help="auto (the checkpoint's), float32, bfloat16 or float16.")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the model on the hub.")]
Against = Annotated[str | None, typer.Option(help="Label of the method to compare with; default: plain decoding.")]
MatchLength = Annotated[bool, typer.Option("--match-length", help="Also compare captions cut to each method's mean length.")]
Parser = Annotated[
    str | None,
    typer.Option(autocompletion=completion.parser, help="How yes and no are read, instead of the run's own way."),
]
Language = Annotated[
    str | None,
    typer.Option(autocompletion=completion.language, help="Which language resource reads captions, instead of the run's own."),
]
Scoring = Annotated[list[str] | None, typer.Option("--set", help="Another setting of the scorer, key=value (repeatable).")]
SavedPrior = Annotated[
    str | None,
    typer.Option(help="Folder or hub repository of what a method needs: a prior, a prior map, a bank, steering vectors."),
]
Images = Annotated[str | None, typer.Option(help="Folder of the pictures, such as coco/val2014.")]
Data = Annotated[str | None, typer.Option(help="Folder of the published files; default: fetched into a cache.")]
Limit = Annotated[int | None, typer.Option(help="Only the first so many pictures.")]
BatchSize = Annotated[int | None, typer.Option(help="Questions a forward.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that the model ships.")]


class CommandGroup(TyperGroup):
    """A verb with verbs of its own, whose help shows the whole first sentence of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.get_short_help_str(limit=300)) for name, verb in verbs if verb is not None])


class SeveralAtOnce(TyperCommand):
    """A verb whose repeatable options take several values in a row: --alpha 0 .5 1 is --alpha 0 --alpha .5 --alpha 1.

    For verbs without arguments: a word that follows a value could be nothing else.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeatable = {name for each in self.params if getattr(each, "multiple", False) for name in each.opts}
        words: list[str] = []
        option, has_value = "", False
        for word in args:
            if word.startswith("-") and not _is_number(word):
                option, has_value = word if word in repeatable else "", False
            elif option:
                words += [option] if has_value else []
                has_value = True
            words.append(word)
        return super().parse_args(ctx, words)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def load_model(name: str, device: str | None, dtype: str, revision: str | None, trust_remote_code: bool) -> Model:
    """Load with the library's own progress bars on a terminal, and silently elsewhere."""
    from transformers.utils import logging

    from mgap.decoding.model import load

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    print(f"loading {name}", file=sys.stderr)
    return load(name, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """key=value words to typed values, read as YAML: numbers, true and false, strings."""
    from mgap.io.yaml_text import parse_yaml

    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise SettingError(f"--set {pair!r:.60} is not of the form key=value, such as --set alpha=1")
        try:
            settings[key] = parse_yaml(value)
        except ValueError:
            raise SettingError(f"--set {pair!r:.60}: the value cannot be read; write a number, true, false or a word") from None
    return settings


def score_run(
    folder: str,
    against: str | None,
    match_length: bool,
    parser: str | None,
    language: str | None,
    settings: list[str] | None,
) -> Scores:
    """The scores of a run's folder, with what it was planned with but for what is given here."""
    from mgap.reports.scores import score
    from mgap.run.records import Run

    given = {name: value for name, value in {"parser": parser, "language": language}.items() if value is not None}
    return score(Run.load(folder), against=against, match_length=match_length, **given, **parse_settings(settings or []))


def working(label: str) -> Status:
    """A spinner on standard error while something of unknown length runs; nothing where that is no terminal."""
    from rich.console import Console

    return Console(stderr=True).status(label)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; called with how many are done."""
    from mgap.io.progress import bars

    with bars() as report:
        report(label, 0, total)
        yield lambda done: report(label, done, total)


def print_scores(scores: Scores) -> None:
    """The tables of a run's scores, in Markdown; what a reader should know of them on standard error."""
    from mgap.pages.table_formats import markdown
    from mgap.reports.report import sections

    for text in scores.warnings:
        print(f"mgap: warning: {text}", file=sys.stderr)
    for section in sections([scores]):
        if section.name in ("results", "paired", "matched"):
            print("\n".join(markdown(table) for table in section.tables))
