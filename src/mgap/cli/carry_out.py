"""Shared by the commands that carry out a run: from a config to records on disk, and the messages at the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from mgap.cli.limits import reason
from mgap.cli.options import hide_library_bars, parse_settings, print_scores, working
from mgap.cli.signals import Terminated, tell_if_interrupt_is_ignored
from mgap.errors import RunError, SettingError
from mgap.io.strict_json import strict_json

if TYPE_CHECKING:
    from mgap.backbones.clock import Clock
    from mgap.run.config import Config
    from mgap.run.engine import Summary
    from mgap.run.job import Job
    from mgap.run.records import Run
    from mgap.run.worker import RunEngine, Worker


def by_method(pairs: list[str]) -> dict[str, dict[str, Any]]:
    """Parse METHOD.KEY=VALUE words into settings by method."""
    settings: dict[str, dict[str, Any]] = {}
    for key, value in parse_settings(pairs).items():
        method, dot, name = key.rpartition(".")
        if not dot:
            raise SettingError(f"--set {key}={value}: say whose setting it is, such as mgap.{key}={value}")
        settings.setdefault(method, {})[name] = value
    return settings


def answer(config: Config, out: str | None, shard: str | None, retry_failed: bool) -> tuple[Job, Run, Worker, Summary]:
    """Check all that needs no model, start the engine, and answer this process's share of the samples."""
    from mgap.io.progress import bars
    from mgap.registry import ENGINES
    from mgap.run.answer_worker import AnsweringWorker
    from mgap.run.stage_times import save_profile, stages_table
    from mgap.run.worker import Closing

    job = _prepare(config, out, shard)
    engine: RunEngine = ENGINES.get(config.engine)
    with _explain_how_to_resume(job, out), ExitStack() as stack:
        hide_library_bars()
        with bars() as progress:
            run, worker = engine.begin(job, progress=progress, note=_note, status=_say)
        if isinstance(worker, Closing):
            stack.callback(worker.close)
        clock = worker.clock if isinstance(worker, AnsweringWorker) else None
        summary = _execute(job, run, worker, retry_failed, clock)
    if summary.spent:
        print(stages_table(summary.spent), file=sys.stderr)
        print(save_profile(run.folder, job.shard, summary.spent), file=sys.stderr)
    return job, run, worker, summary


def _prepare(config: Config, out: str | None, shard: str | None) -> Job:
    from mgap.run.folder import Shard
    from mgap.run.job import Job

    job = Job.prepare(config, out, Shard.parse(shard) if shard else None)
    tell_if_interrupt_is_ignored()
    _say(f"{job.benchmark.name}: {len(job.benchmark.samples)} questions, {len(config.methods)} methods -> {job.out}")
    for note in job.benchmark.notes:
        _note(note)
    return job


@contextmanager
def _explain_how_to_resume(job: Job, out: str | None) -> Iterator[None]:
    """Where Ctrl-C, SIGTERM or a full disk ends the run, say what is saved and which command resumes it."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        _say(f"mgap: stopped; {_how_to_resume(job, out)}")
        raise
    except OSError as error:
        if not (why := reason(error)):
            raise
        raise RunError(f"{why}; {_how_to_resume(job, out)}") from error


def _how_to_resume(job: Job, out: str | None) -> str:
    from mgap.run.job import shell_command
    from mgap.run.records import RUN, Run

    total = len(job.benchmark.samples) * len(job.labels)
    run = Run.load(job.out) if (job.out / RUN).is_file() else None
    answered = sum(len(run.records(method)) for method in run.methods if method.label in job.labels) if run else 0
    so_far = f"{answered} of {total} answers are saved in {job.out}" if answered else "nothing has been answered yet"
    again = shell_command() if out is not None else f"{shell_command()} --out {shlex.quote(str(job.out))}"
    return f"{so_far}; resume with: {again}"


def _execute(job: Job, run: Run, worker: Worker, retry_failed: bool, clock: Clock | None = None) -> Summary:
    from mgap.run.engine import execute
    from mgap.run.live_score import LiveScore, showing

    score = None if job.bank else LiveScore(run, job.scorer)
    with showing() as show:
        return execute(
            run,
            worker,
            shard=job.shard,
            labels=job.labels,
            retry_failed=retry_failed,
            listener=lambda state: show(state, score.add(state) if score else ""),
            clock=clock,
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _note(text: str) -> None:
    _say(f"note: {text}")


def is_complete(run: Run, summary: Summary) -> bool:
    """Whether every sample has an answer. Says how many failed and why, and how many answers other shards still owe."""
    for label, failed in summary.failed.items():
        if failed:
            print(f"{label}: {len(failed)} failed; the first, {failed[0].id}: {failed[0].failed}", file=sys.stderr)
            print("--retry-failed asks them again", file=sys.stderr)
    if left := sum(len(run.samples) - len(run.records(method)) for method in run.methods):
        print(
            f"{run.folder}: {left} answers are still missing, from other shards; when they are there: mgap report {run.folder}"
        )
    return not left


def report_scores(run: Run, *, figures: bool = False, wide: bool = False) -> None:
    """Print the scores, and write them and a report into the run's folder; `figures` adds figures for print.

    The tables are printed short unless `wide`.
    """
    from mgap.io.output_folder import write_files
    from mgap.io.regular_files import inside
    from mgap.pages.print_figures import FIGURES
    from mgap.reports.printed.catalogue import draw_prints, save_prints
    from mgap.reports.relabelled import beside_new_labels
    from mgap.reports.report import report_files
    from mgap.reports.scores import SCORES, score

    scores = beside_new_labels(score(run))
    print_scores(scores, wide=wide)
    with working("writing the report"):
        prints = draw_prints([scores]) if figures else []
        files = {SCORES: strict_json(scores.to_json(), indent=1, ensure_ascii=False) + "\n"}
        paths = write_files(run.folder, {**files, **report_files([scores], prints=prints)})
        paths += save_prints(prints, inside(run.folder, FIGURES)) if prints else []
    for path in paths:
        print(path)
