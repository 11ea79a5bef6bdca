"""What the verbs that carry out a run share: from a config to records on disk, and what is said at the end."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mgap.cli.options import load_model, parse_settings, print_scores, working
from mgap.cli.signals import Terminated, tell_if_interrupt_is_ignored
from mgap.errors import SettingError

if TYPE_CHECKING:
    from mgap.backbones.clock import Clock
    from mgap.decoding.model import Model
    from mgap.run.config import Config
    from mgap.run.engine import Summary
    from mgap.run.job import Job
    from mgap.run.records import Run
    from mgap.run.worker import Worker


def by_method(pairs: list[str]) -> dict[str, dict[str, Any]]:
    """METHOD.KEY=VALUE words as settings by method."""
    settings: dict[str, dict[str, Any]] = {}
    for key, value in parse_settings(pairs).items():
        method, dot, name = key.rpartition(".")
        if not dot:
            raise SettingError(f"--set {key}={value}: say whose setting it is, such as mgap.{key}={value}")
        settings.setdefault(method, {})[name] = value
    return settings


def answer(config: Config, out: str | None, shard: str | None, retry_failed: bool) -> tuple[Job, Model, Run, Summary]:
    """Check everything that needs no model, load it, and go through this process's share of the samples."""
    from mgap.backbones.clock import Clock
    from mgap.io.progress import bars
    from mgap.run.job import launched_device
    from mgap.run.stage_times import save_profile, stages_table

    job = _prepare(config, out, shard)
    with _telling_how_to_go_on(job, out):
        device = launched_device(config.device)
        job.foresee(device)
        model = load_model(config.model, device, config.dtype, config.revision, config.trust_remote_code)
        with bars() as told:
            run, worker = job.begin(model, told=told, noted=_note)
        if config.profile:
            model.backbone.clock = Clock(model.backbone.device)
        summary = _go_through(job, run, worker, retry_failed, model.backbone.clock)
    if summary.spent:
        print(stages_table(summary.spent), file=sys.stderr)
        print(save_profile(run.folder, job.shard, summary.spent), file=sys.stderr)
    return job, model, run, summary


def answer_served(config: Config, out: str | None, shard: str | None, retry_failed: bool) -> tuple[Run, Summary]:
    """The same with vLLM, which loads the model in its own way."""
    from contextlib import closing

    from mgap.io.progress import bars
    from mgap.serving.vllm_run import begin

    job = _prepare(config, out, shard)
    with _telling_how_to_go_on(job, out):
        with bars() as told:
            run, worker = begin(job, told=told, noted=_note, said=_say)
        with closing(worker):
            return run, _go_through(job, run, worker, retry_failed)


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
def _telling_how_to_go_on(job: Job, out: str | None) -> Iterator[None]:
    """When Ctrl-C or SIGTERM ends the run: what is kept, and what to type."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        from mgap.run.job import shell_command
        from mgap.run.records import RUN, Run

        whole = len(job.benchmark.samples) * len(job.labels)
        run = Run.load(job.out) if (job.out / RUN).is_file() else None
        kept = sum(len(run.records(arm)) for arm in run.arms if arm.label in job.labels) if run else 0
        so_far = f"{kept} of {whole} answers are kept in {job.out}" if kept else "nothing was answered yet"
        again = shell_command() if out is not None else f"{shell_command()} --out {shlex.quote(str(job.out))}"
        _say(f"mgap: stopped; {so_far}; go on with: {again}")
        raise


def _go_through(job: Job, run: Run, worker: Worker, retry_failed: bool, clock: Clock | None = None) -> Summary:
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


def is_whole(run: Run, summary: Summary) -> bool:
    """Say how many failed and why, and what is still to come from other shares; whether everything is answered."""
    for label, failed in summary.failed.items():
        if failed:
            print(f"{label}: {len(failed)} failed; the first, {failed[0].id}: {failed[0].failed}", file=sys.stderr)
            print("ask them again with --retry-failed", file=sys.stderr)
    if left := sum(len(run.samples) - len(run.records(arm)) for arm in run.arms):
        print(f"{run.folder}: {left} answers are still to come, from other shares; then: mgap report {run.folder}")
    return not left


def report_scores(run: Run, *, figures: bool = False) -> None:
    """Print the scores, and write them and a report into the run's folder; with figures for print, if asked."""
    from mgap.io.output_folder import write_files
    from mgap.pages.print_figures import FIGURES
    from mgap.reports.printed.catalogue import draw_prints, save_prints
    from mgap.reports.report import report_files
    from mgap.reports.scores import SCORES, score

    scores = score(run)
    print_scores(scores)
    with working("writing the report"):
        prints = draw_prints([scores]) if figures else []
        files = {SCORES: json.dumps(scores.to_json(), indent=1, ensure_ascii=False) + "\n"}
        paths = write_files(run.folder, {**files, **report_files([scores], prints=prints)})
        paths += save_prints(prints, run.folder / FIGURES) if prints else []
    for path in paths:
        print(path)
