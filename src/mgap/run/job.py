"""From a config to a run on disk: check, build the methods, and make or join the folder."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mgap
from mgap.backbones.loading import check_device
from mgap.benchmarks.answer_texts import unfinished_of
from mgap.benchmarks.base import YES_NO, Benchmark
from mgap.benchmarks.tally import Scorer
from mgap.decoding.model import Model
from mgap.decoding.prefill_sharing import can_share
from mgap.errors import ImageError, ModelError, PromptError, SettingError
from mgap.io.output_folder import check_folder
from mgap.io.progress import Progress
from mgap.io.regular_files import inside
from mgap.io.strict_json import unwritable
from mgap.methods.base import Method
from mgap.priors.prior_plan import Priors
from mgap.registry import ENGINES, SCORERS, locate
from mgap.run.answer_worker import TransformersWorker
from mgap.run.benchmarks import read_bank, read_benchmark, refuse_chosen
from mgap.run.config import Config
from mgap.run.folder import Shard, locked, note_process, open_run, refuse_other, refuse_strangers
from mgap.run.method_plans import MethodPlan, about_learnt, about_settings, build_method
from mgap.run.picture_workers import start_server
from mgap.run.records import RUN, Run, RunMethod
from mgap.run.sample_order import plan_order
from mgap.run.worker import Notify, Worker
from mgap.types import Sample

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pillow")


@dataclass(frozen=True)
class Job:
    """A checked run, ready to begin: config, benchmark, folder and shard."""

    config: Config
    benchmark: Benchmark
    out: Path
    shard: Shard
    bank: tuple[Sample, ...] = ()  # for departures: samples whose plain states are the reference

    @classmethod
    def prepare(
        cls,
        config: Config,
        out: str | os.PathLike[str] | None = None,
        shard: Shard | None = None,
        *,
        benchmark: Benchmark | None = None,
    ) -> Job:
        """Check all that needs no model.

        A given `benchmark` replaces the one that the config names; keys that choose samples are then refused.
        """
        own_shard = shard or launched_shard()
        ENGINES.get(config.engine).require(config, is_launched=shard is None and own_shard.of > 1)
        if out is None and own_shard.of > 1:
            raise SettingError("several processes need one folder: give --out")
        folder = Path(out) if out is not None else default_folder(config)
        check_folder(folder, [RUN])
        refuse_strangers(folder)
        locate(config.model, config.revision)
        for plan in config.methods:
            if plan.is_learnt:
                build_method(plan, None, Priors())  # refuses an unreadable file before the model is loaded
        bank: tuple[Sample, ...] = ()
        if benchmark is None:
            benchmark = read_benchmark(config)
        else:
            refuse_chosen(config)
        if config.benchmark == "departure":
            benchmark, bank = read_bank(config, benchmark)
        if config.controls and (config.benchmark == "departure" or benchmark.task != YES_NO):
            raise SettingError(
                f"controls are rows for yes/no questions, and {config.benchmark} asks for others: leave them out"
            )
        job = cls(config, benchmark, folder, own_shard, bank)
        unfinished_of(job.scorer, benchmark.samples)  # refuses what cannot act; the scorer, unknown settings
        if why := unwritable([job.plan(), [vars(sample) for sample in benchmark.samples]]):
            raise SettingError(f"this run could not be written down: {why}")
        if (folder / RUN).is_file():
            run = Run.load(folder)
            prefills = {method.label: method.prefill for method in run.methods}
            methods = [plan.run_method(prefills.get(plan.label, "own")) for plan in config.methods]
            refuse_other(run, job.plan(), job.benchmark.samples, methods)
        return job

    def plan(self) -> dict[str, Any]:
        """The content of run.json, except the methods and what is only known once the model is loaded."""
        config, benchmark = self.config, self.benchmark
        return {
            "benchmark": {
                "name": benchmark.name,
                "task": benchmark.task,
                "lexicon": dict(benchmark.lexicon),
                "sources": dict(benchmark.sources),
                "notes": list(benchmark.notes),
            },
            "images": config.images and os.path.abspath(config.images),  # so that the inspector finds the pictures later
            "difficulty": dict(config.difficulty),
            "held_out": config.held_out,
            "template": config.template,
            "engine": config.engine,
            "engine_options": dict(config.engine_options),
            "decoding": asdict(config.decode()),
            "batch_size": config.batch_size,
            "warm_up": config.warm_up,
            "scoring": dict(config.scoring),
            "experiment": {"title": config.title, "axis": config.axis, "published": dict(config.published)},
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": shell_command(),
            "versions": versions(),
        }

    def start_picture_server(self, device: str | None = None) -> None:
        """Call before loading the model onto `device`: processes that will prepare pictures start their imports."""
        if not self.bank:
            pictures = len({sample.image for sample in self.benchmark.samples}) // self.shard.of
            start_server(self.config.workers, check_device(device), pictures)

    def begin(self, model: Model, *, progress: Progress | None = None, note: Notify | None = None) -> tuple[Run, Worker]:
        """Build the methods, make or join the folder, and return the run with its worker. `note` takes lines for the user."""
        if self.config.engine != "transformers":
            raise SettingError(
                f"this run's engine is {self.config.engine}, and a model of transformers was given: begin it with "
                f"mgap.registry.ENGINES.get({self.config.engine!r}).begin(job, ...), or leave engine out"
            )
        self._refuse_unasked(model)
        device = model.backbone.device.type
        plan = {**self.plan(), "model": describe(model), "device": device}
        self.out.mkdir(parents=True, exist_ok=True)
        priors = Priors(inside(self.out, "priors"))
        with locked(self.out):
            methods = {planned.label: build_method(planned, model, priors, progress) for planned in self.config.methods}
            plan["learnt"] = {label: about for label, method in methods.items() if (about := about_learnt(method))}
            plan["settings"] = {label: about for label, method in methods.items() if (about := about_settings(method))}
            worker: Worker = TransformersWorker(
                model, self.benchmark, self.config.decode(), methods, workers=self.config.workers
            )
            if self.bank:
                worker, plan["departure"] = self._departure_worker(model, methods, progress)
        run_methods = [self._run_method(each, model, methods[each.label], note) for each in self.config.methods]
        return self.open(plan, run_methods, progress=progress, note=note), worker

    def open(
        self,
        plan: Mapping[str, Any],
        methods: Sequence[RunMethod],
        *,
        progress: Progress | None = None,
        note: Notify | None = None,
    ) -> Run:
        """Make or join the folder once the model is known, and note this process in it."""
        samples, is_new = self.benchmark.samples, not (self.out / RUN).exists()
        order = plan_order(samples, self.benchmark.picture, progress) if is_new else ()  # a run keeps its order
        run = open_run(self.out, plan, samples, methods, order)
        facts = {
            "versions": plan["versions"],
            "device": plan["device"],
            "command": shell_command(),
            "pid": os.getpid(),
        }
        for difference in note_process(self.out, facts):
            (note or _silent)(f"this run was begun elsewhere: {difference}")
        return run

    def _departure_worker(
        self, model: Model, methods: Mapping[str, Method | None], progress: Progress | None
    ) -> tuple[Worker, dict[str, Any]]:
        """The worker that measures departures instead of answering, and the key `departure` of run.json."""
        from mgap.diagnosis.departure import STRENGTHS, prepare
        from mgap.run.answer_departure_worker import AnswerDepartureWorker, variants_of
        from mgap.run.departure_worker import DepartureWorker

        options = {key: value for key, value in self.config.departure.items() if key not in ("along", "bank", "strengths")}
        strengths = [float(value) for value in self.config.departure.get("strengths", STRENGTHS)]
        picture, folder, decoding = self.benchmark.picture, inside(self.out, "bank"), self.config.decode()
        is_long = self.config.along == "answers"
        variants = {label: variants_of(method, strengths) for label, method in methods.items()} if is_long else {}
        options |= {"batch_size": self.config.batch_size, "max_new_tokens": decoding.max_new_tokens if is_long else 1}
        manifold = prepare(model, self.bank, picture, folder, progress=progress, **options)
        facts = {**manifold.to_json(), "strengths": strengths}
        if is_long:
            return AnswerDepartureWorker(model, picture, manifold, variants, decoding), {**facts, "along": "answers"}
        return DepartureWorker(model, picture, manifold, lambda method: methods[method.label], strengths=strengths), facts

    @cached_property
    def scorer(self) -> Scorer:
        scorer: Scorer = SCORERS.get(self.benchmark.task).of(self.benchmark.lexicon, **self.config.scoring)
        return scorer

    @property
    def labels(self) -> list[str]:
        return [plan.label for plan in self.config.methods]

    def _refuse_unasked(self, model: Model) -> None:
        """Refuse a model that cannot be asked without a picture, if some samples have none."""
        unshown = sum(not sample.image for sample in self.benchmark.samples)
        try:
            if unshown:
                model.backbone.encode([None], ["Is it?"])
        except (ImageError, ModelError, PromptError) as error:
            raise ModelError(
                f"{unshown} questions come without a picture, and {self.config.model} cannot be asked so ({error}); "
                "leave them out with pictures: only"
            ) from error

    def _run_method(self, plan: MethodPlan, model: Model, method: Method | None, note: Notify | None) -> RunMethod:
        """Decide whether the method shares prefills. Where it cannot, `auto` falls back to its own and `shared` is refused."""
        unshown = sum(not sample.image for sample in self.benchmark.samples)
        if unshown and method is not None and method.needs_picture and note is not None:
            note(
                f"{plan.label} needs a picture: {unshown} questions without one are answered by plain decoding, as records say"
            )
        if self.config.prefill == "own" or self.bank:
            return plan.run_method("own")
        reason = can_share(model, method)
        if reason and self.config.prefill == "shared":
            raise SettingError(f"{plan.label}: prefills cannot be shared: {reason}; use prefill auto or own")
        if reason and note is not None:
            note(f"{plan.label} reads every picture anew for each question: {reason}")
        return plan.run_method("own" if reason else "shared")


def describe(model: Model) -> dict[str, Any]:
    """What identifies the model; enough to refuse another."""
    backbone = model.backbone
    weights = next(backbone.model.parameters())
    identity = backbone.identity.to_json()
    return {
        **identity,
        "family": backbone.config.model_type,
        "dtype": str(weights.dtype).removeprefix("torch."),
    }


def default_folder(config: Config) -> Path:
    """runs/DATE_TIME_BENCHMARK_MODEL."""
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d_%H%M%S")
    return Path("runs") / f"{when}_{config.benchmark}_{Path(config.model).name}"


def launched_shard() -> Shard:
    """This process's shard under `accelerate launch` or `torchrun`, which set RANK and WORLD_SIZE; otherwise everything."""
    try:
        return Shard(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
    except ValueError as error:
        raise SettingError(f"RANK and WORLD_SIZE in the environment must be whole numbers: {error}") from None


def launched_device(device: str | None) -> str | None:
    """This process's GPU under a launcher. An explicit device stays."""
    import torch

    if device is None and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return device


def versions() -> dict[str, str]:
    numbers = {"mgap": mgap.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:  # an odd installation
            numbers[package] = "unknown"
    return numbers


def shell_command() -> str:
    import shlex

    name = Path(sys.argv[0]).name
    return shlex.join(["mgap" if name in ("mgap", "main.py") else name, *sys.argv[1:]])


def _silent(_: str) -> None:
    return None
