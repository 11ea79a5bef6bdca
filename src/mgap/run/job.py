"""From a config to a run on disk: read and check, build the methods, and make or join the folder."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mgap
from mgap.backbones.loading import check_device
from mgap.benchmarks.base import Benchmark
from mgap.benchmarks.tally import Scorer
from mgap.decoding.model import Model
from mgap.decoding.prefill_sharing import can_share
from mgap.errors import SettingError
from mgap.io.output_folder import check_folder
from mgap.io.progress import Progress
from mgap.methods.base import Method
from mgap.priors.prior_plan import Priors
from mgap.registry import ENGINES, SCORERS, locate
from mgap.run.answer_worker import TransformersWorker
from mgap.run.benchmarks import read_bank, read_benchmark, refuse_chosen
from mgap.run.config import Config
from mgap.run.folder import Shard, alone, note_process, open_run, refuse_other, refuse_strangers
from mgap.run.method_plans import MethodPlan, about_learnt, build_method
from mgap.run.picture_workers import foresee
from mgap.run.records import RUN, Arm, Run
from mgap.run.sample_order import plan_order
from mgap.run.worker import Worker
from mgap.types import Sample

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pillow")


@dataclass(frozen=True)
class Job:
    """A run that is checked and may begin: its config, its benchmark and its folder."""

    config: Config
    benchmark: Benchmark
    out: Path
    shard: Shard
    bank: tuple[Sample, ...] = ()  # for departures: what is asked for the plain states that the others are held against

    @classmethod
    def prepare(
        cls,
        config: Config,
        out: str | os.PathLike[str] | None = None,
        shard: Shard | None = None,
        *,
        benchmark: Benchmark | None = None,
    ) -> Job:
        """Everything that can be checked without the model is checked here.

        `benchmark` is what to ask instead of what the config's keys would read; keys that choose samples are then refused.
        """
        share = shard or launched_shard()
        ENGINES.get(config.engine).require(config, is_launched=shard is None and share.of > 1)
        if out is None and share.of > 1:
            raise SettingError("several processes need one folder: give --out")
        folder = Path(out) if out is not None else default_folder(config)
        check_folder(folder, [RUN])
        refuse_strangers(folder)
        locate(config.model, config.revision)
        for arm in config.methods:
            if arm.is_learnt:
                build_method(arm, None, Priors())  # what was saved and cannot be read is told before the model is loaded
        bank: tuple[Sample, ...] = ()
        if benchmark is None:
            benchmark = read_benchmark(config)
        else:
            refuse_chosen(config)
        if config.benchmark == "departure":
            benchmark, bank = read_bank(config, benchmark)
        job = cls(config, benchmark, folder, share, bank)
        job.scorer  # noqa: B018  refuses settings that it does not have
        if (folder / RUN).is_file():
            run = Run.load(folder)
            prefills = {arm.label: arm.prefill for arm in run.arms}
            arms = [arm.arm(prefills.get(arm.label, "own")) for arm in config.methods]
            refuse_other(run, job.plan(), job.benchmark.samples, arms)
        return job

    def plan(self) -> dict[str, Any]:
        """run.json, without the methods and what only the loaded model tells."""
        config, found = self.config, self.benchmark
        return {
            "benchmark": {
                "name": found.name,
                "task": found.task,
                "lexicon": dict(found.lexicon),
                "sources": dict(found.sources),
                "notes": list(found.notes),
            },
            "images": config.images and os.path.abspath(config.images),  # where its pictures were; for who looks at them later
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

    def foresee(self, device: str | None = None) -> None:
        """Before the model is loaded onto this device: processes that will prepare pictures begin with what they import."""
        if not self.bank:
            pictures = len({sample.image for sample in self.benchmark.samples}) // self.shard.of
            foresee(self.config.workers, check_device(device), pictures)

    def begin(
        self, model: Model, *, told: Progress | None = None, noted: Callable[[str], None] | None = None
    ) -> tuple[Run, Worker]:
        """The folder, made or joined, and what will answer. `told` hears of preparations, `noted` of what one should know."""
        device = model.backbone.device.type
        plan = {**self.plan(), "model": describe(model), "device": device}
        self.out.mkdir(parents=True, exist_ok=True)
        priors = Priors(self.out / "priors")
        with alone(self.out):
            methods = {arm.label: build_method(arm, model, priors, told) for arm in self.config.methods}
            plan["learnt"] = {label: about for label, method in methods.items() if (about := about_learnt(method))}
            worker: Worker = TransformersWorker(
                model, self.benchmark, self.config.decode(), methods, workers=self.config.workers
            )
            if self.bank:
                worker, plan["departure"] = self._measuring(model, methods, told)
        arms = [self._arm(arm, model, methods[arm.label], noted) for arm in self.config.methods]
        return self.open(plan, arms, told=told, noted=noted), worker

    def open(
        self,
        plan: Mapping[str, Any],
        arms: Sequence[Arm],
        *,
        told: Progress | None = None,
        noted: Callable[[str], None] | None = None,
    ) -> Run:
        """The folder, made or joined, once the model is known; keeps that this process works in it."""
        samples, is_new = self.benchmark.samples, not (self.out / RUN).exists()
        order = plan_order(samples, self.benchmark.picture, told) if is_new else ()  # a run keeps the one it has
        run = open_run(self.out, plan, samples, arms, order)
        facts = {
            "versions": plan["versions"],
            "device": plan["device"],
            "command": shell_command(),
            "pid": os.getpid(),
        }
        for difference in note_process(self.out, facts):
            (noted or _silent)(f"this run was begun elsewhere: {difference}")
        return run

    def _measuring(
        self, model: Model, methods: Mapping[str, Method | None], told: Progress | None
    ) -> tuple[Worker, dict[str, Any]]:
        """What measures departures instead of answering, and what it is held against."""
        from mgap.diagnosis.departure import STRENGTHS, prepare
        from mgap.run.answer_departure_worker import AlongWorker, variants_of
        from mgap.run.departure_worker import DepartureWorker

        wanted = {key: value for key, value in self.config.departure.items() if key not in ("along", "bank", "strengths")}
        strengths = [float(value) for value in self.config.departure.get("strengths", STRENGTHS)]
        picture, folder, decoding = self.benchmark.picture, self.out / "bank", self.config.decode()
        is_long = self.config.along == "answers"
        variants = {label: variants_of(method, strengths) for label, method in methods.items()} if is_long else {}
        wanted |= {"batch_size": self.config.batch_size, "max_new_tokens": decoding.max_new_tokens if is_long else 1}
        manifold = prepare(model, self.bank, picture, folder, progress=told, **wanted)
        measured = {**manifold.to_json(), "strengths": strengths}
        if is_long:
            return AlongWorker(model, picture, manifold, variants, decoding), {**measured, "along": "answers"}
        return DepartureWorker(model, picture, manifold, lambda arm: methods[arm.label], strengths=strengths), measured

    @cached_property
    def scorer(self) -> Scorer:
        scorer: Scorer = SCORERS.get(self.benchmark.task).of(self.benchmark.lexicon, **self.config.scoring)
        return scorer

    @property
    def labels(self) -> list[str]:
        return [arm.label for arm in self.config.methods]

    def _arm(self, plan: MethodPlan, model: Model, method: Method | None, noted: Callable[[str], None] | None) -> Arm:
        """Whether it shares prefills is settled here: where it cannot, auto takes its own, and shared is refused."""
        if self.config.prefill == "own" or self.bank:
            return plan.arm("own")
        reason = can_share(model, method)
        if reason and self.config.prefill == "shared":
            raise SettingError(f"{plan.label}: prefills cannot be shared: {reason}; use prefill auto or own")
        if reason and noted is not None:
            noted(f"{plan.label} reads every picture anew for each question: {reason}")
        return plan.arm("own" if reason else "shared")


def describe(model: Model) -> dict[str, Any]:
    """Which model this is; enough to refuse another."""
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
    """This process's share under `accelerate launch` or `torchrun`, which set RANK and WORLD_SIZE; else everything."""
    try:
        return Shard(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
    except ValueError as error:
        raise SettingError(f"RANK and WORLD_SIZE in the environment must be whole numbers: {error}") from None


def launched_device(device: str | None) -> str | None:
    """The GPU of this process where a launcher started several; a device that was asked for stays."""
    import torch

    if device is None and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return device


def versions() -> dict[str, str]:
    found = {"mgap": mgap.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from source, beside an odd installation
            found[package] = "unknown"
    return found


def shell_command() -> str:
    import shlex

    name = Path(sys.argv[0]).name
    return shlex.join(["mgap" if name in ("mgap", "main.py") else name, *sys.argv[1:]])


def _silent(_: str) -> None:
    return None
