"""Options that several commands share, and what they build."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mgap.cli import completion
from mgap.errors import SettingError
from mgap.registry import check_pocket_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.status import Status

    from mgap.benchmarks.repope.new_labels import NewLabels
    from mgap.decoding.model import Model
    from mgap.reports.scores import Scores


def check_model_name(name: str | None) -> str | None:
    """Refuses a misspelt embedded model while the command line is read, before anything heavy is imported."""
    return None if name is None else check_pocket_name(name)


def check_template(stated: str | None) -> str | None:
    """Refuses a template without a place for the question; a backslash and an n, as typed in a shell, are a line break."""
    from mgap.backbones.template_rendering import check_stated

    return None if stated is None else check_stated(stated.replace("\\n", "\n"))


ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        callback=check_model_name,
        autocompletion=completion.model,
        help="Multimodal model: hub id or folder, or pocket/llava, pocket/qwen3-vl, pocket/natural.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, cpu, ...; default: a GPU if there is one.")]
Dtype = Annotated[
    str,
    typer.Option(autocompletion=completion.dtype, help="Weights: auto (as in the checkpoint), float32, bfloat16 or float16."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the model on the hub.")]
Against = Annotated[str | None, typer.Option(help="Label of the method to compare the others with; default: plain decoding.")]
MatchLength = Annotated[
    bool, typer.Option("--match-length", help="Also compare with the baseline's captions cut to each method's mean length.")
]
MatchRecall = Annotated[
    bool, typer.Option("--match-recall", help="Also compare with the baseline's captions cut to each method's recall.")
]
Unfinished = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.unfinished,
        help="keep or drop the unfinished last sentence of a caption that reached the longest length; default: as in the run.",
    ),
]
UnfinishedInFile = Annotated[
    str,
    typer.Option(
        "--unfinished",
        autocompletion=completion.unfinished,
        help="keep an unfinished last sentence, as the published scorers do, or drop it.",
    ),
]
Parser = Annotated[
    str | None,
    typer.Option(autocompletion=completion.parser, help="How to read yes and no (`mgap ls parsers`); default: as in the run."),
]
Language = Annotated[
    str | None,
    typer.Option(autocompletion=completion.language, help="How to read captions: nltk or builtin; default: as in the run."),
]
Scoring = Annotated[list[str] | None, typer.Option("--set", help="Another setting of the scorer, as KEY=VALUE; repeatable.")]
Relabel = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.words("repope"), help="Of POPE on COCO: repope scores on its labels too, side by side."
    ),
]
RelabelData = Annotated[
    str | None, typer.Option("--data", help="With --relabel: folder with RePOPE's files; default: download them into a cache.")
]
Wide = Annotated[
    bool, typer.Option("--wide", help="Print all tables with all columns and every interval, not the short ones that fit 100.")
]
SavedPrior = Annotated[
    str | None,
    typer.Option(
        help="Folder or hub repository with what the method needs: a prior, prior map, bank, steering vectors or null space."
    ),
]
Images = Annotated[str | None, typer.Option(help="Folder with the pictures, such as coco/val2014.")]
Data = Annotated[
    str | None, typer.Option(help="Folder with the benchmark's published files; default: download them into a cache.")
]
Tasks = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.tasks,
        help="MME: hallucination (its default), perception, cognition, all, or names with commas.",
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use only the first N pictures.")]
BatchSize = Annotated[int | None, typer.Option(help="Questions per batch; default: 32, or 256 with engine vllm or server.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow Python code from the model's repository to run.")
]


Template = Annotated[
    str | None,
    typer.Option(
        callback=check_template,
        help="How prompts are written, for a model without a chat template: text with {question}, and {image} for the picture.",
    ),
]
COLUMNS = 100  # of a terminal, which short tables and the sentences about them are to fit


class CommandGroup(TyperGroup):
    """A command with subcommands. Its help shows the complete first sentence of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=300)) for name, each in commands if each is not None])


class SeveralAtOnce(TyperCommand):
    """A command whose repeatable options take several values in a row: --alpha 0 .5 1 is --alpha 0 --alpha .5 --alpha 1.

    Only for commands without arguments: there, a word after a value can only be another value.
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


def load_model(
    name: str, device: str | None, dtype: str, revision: str | None, trust_remote_code: bool, template: str | None = None
) -> Model:
    """Load a model. transformers shows its progress bars on a terminal only."""
    from mgap.decoding.model import load
    from mgap.registry import POCKET_MODELS

    hide_library_bars()
    print(f"loading {name}", file=sys.stderr)
    loaded = load(name, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code, template=template)
    if name in POCKET_MODELS and loaded.backbone.device.type == "cpu":
        use_one_thread()
    return loaded


def use_one_thread() -> None:
    """For small models on a CPU, unless OMP_NUM_THREADS is set: on busy cores, torch's threads mostly wait for each other.

    `mgap tune --model pocket/llava --scenes 20` beside other work on two cores: 10 s, and with two threads 50 to 92 s.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def hide_library_bars() -> None:
    """Switch off transformers' progress bars where standard error is not a terminal."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def parse_settings(pairs: list[str] | None, option: str = "--set", example: str = "alpha=1") -> dict[str, Any]:
    """Parse the key=value words of a repeatable option. Values are read as YAML: numbers, true, false, strings."""
    from mgap.io.yaml_text import parse_yaml

    settings = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise SettingError(f"{option} {pair!r:.60} is not of the form key=value, such as {option} {example}")
        try:
            settings[key] = parse_yaml(value)
        except ValueError:
            raise SettingError(
                f"{option} {pair!r:.60}: the value cannot be read; write a number, true, false or a word"
            ) from None
    return settings


def score_run(
    folder: str,
    against: str | None,
    match_length: bool,
    parser: str | None,
    language: str | None,
    settings: list[str] | None,
    labels: NewLabels | None = None,
    *,
    match_recall: bool = False,
    unfinished: str | None = None,
) -> Scores:
    """Score a run's folder with its own settings, except those given here; on new labels too, given or at hand."""
    from mgap.reports.relabelled import beside_new_labels, on_new_labels
    from mgap.reports.scores import score
    from mgap.run.records import Run

    named = {"parser": parser, "language": language, "unfinished": unfinished}
    given = {name: value for name, value in named.items() if value is not None}
    others = parse_settings(settings, example="parser=vcd")
    if twice := [name for name in others if name in given]:
        raise SettingError(f"{twice[0]} is given twice: leave out --{twice[0]}, or --set {twice[0]}=...")
    run = Run.load(folder)
    scores = score(run, against=against, match_length=match_length, match_recall=match_recall, **given, **others)
    return beside_new_labels(scores) if labels is None else on_new_labels(scores, labels)


def new_labels(relabel: str | None, data: str | None) -> NewLabels | None:
    """Read the labels that --relabel and --data name; None without --relabel."""
    from mgap.benchmarks.repope.new_labels import NAME, read_new_labels

    if relabel is None:
        if data is not None:
            raise SettingError(f"--data {data} holds labels that nothing asks for: add --relabel {NAME}, or leave it out")
        return None
    if relabel != NAME:
        raise SettingError(f"unknown relabel {relabel!r:.60}: choose from {NAME}")
    return read_new_labels(data)


def working(label: str) -> Status:
    """A spinner on standard error for work of unknown length; nothing if that is not a terminal."""
    from rich.console import Console

    return Console(stderr=True).status(label)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; called with how many are done."""
    from mgap.io.progress import bars

    with bars() as report:
        report(label, 0, total)
        yield lambda done: report(label, done, total)


def print_scores(scores: Scores, *, wide: bool = False) -> None:
    """Print the verdict and the tables of a run's scores in Markdown, and warnings to standard error.

    Short tables have the columns that matter most; what they leave out stands in the report, and is printed with `wide`.
    """
    from mgap.pages.table_formats import markdown, shortened
    from mgap.reports.report import sections, verdict_lines
    from mgap.reports.verdict import verdicts

    for text in scores.warnings:
        print(f"mgap: warning: {text}", file=sys.stderr)
    if scores.relabelled is not None and scores.relabelled.why_not:
        print(f"mgap: note: {scores.relabelled}", file=sys.stderr)
    for verdict in verdicts([scores]):
        print("\n".join([*verdict_lines(verdict, COLUMNS), ""]))
    printed = ("results", "controls", "paired", "relabelled", "matched", "matched-recall")
    tables = [table for section in sections([scores]) if section.name in printed for table in section.tables]
    if wide or not any(table.short for table in tables):
        print("\n".join(markdown(table) for table in tables))
        return
    print("\n".join(markdown(shortened(table), COLUMNS) for table in tables if not table.spans))
    print("mgap: these are short tables; --wide prints all of them, with all columns and intervals", file=sys.stderr)
