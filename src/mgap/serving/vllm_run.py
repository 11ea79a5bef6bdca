"""The engine vllm: refuses what it cannot do before anything is loaded, then makes the folder and the worker.

Missing priors are fitted with transformers; that model is freed before vLLM starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mgap.errors import SettingError, UnsupportedDecoding
from mgap.io.progress import Progress
from mgap.io.regular_files import inside
from mgap.priors.prior_plan import Priors
from mgap.run.method_plans import VANILLA, MethodPlan, about_learnt, about_settings, build_method
from mgap.serving.engine_settings import SERVED_METHODS, learnt_key

if TYPE_CHECKING:
    from mgap.run.config import Config
    from mgap.run.job import Job
    from mgap.run.records import Run
    from mgap.run.worker import Notify
    from mgap.serving.vllm_worker import VllmWorker


class VllmEngine:
    """`mgap run --engine vllm`."""

    batch_size: ClassVar[int] = 256  # requests per call; vLLM itself decides how many it computes at once

    @staticmethod
    def refuse(config: Config) -> None:
        """Raise if a run asks for something that vLLM does not do, or does by itself."""
        from mgap.serving.offline import check_options
        from mgap.serving.sampling import refuse_decoding
        from mgap.serving.servable import refuse_method

        if config.benchmark == "departure":
            raise SettingError("engine vllm answers and shows no states: departures are measured with engine transformers")
        if config.workers not in ("auto", 0):
            raise SettingError(f"workers={config.workers}: vLLM prepares pictures itself; leave workers out")
        if config.profile:
            raise SettingError("profile tells the stages of engine transformers: leave it out, or see vLLM's own profiler")
        if config.prefill == "shared":
            raise SettingError("prefill=shared: vLLM's prefix cache shares what can be shared; use prefill auto")
        if config.device is not None:
            raise SettingError(
                f"device={config.device}: vLLM takes the cards that it sees; choose them with CUDA_VISIBLE_DEVICES"
            )
        if config.dtype != "auto" and config.engine_options.get("dtype", config.dtype) != config.dtype:
            raise SettingError(
                f"dtype={config.dtype}, and engine_options say {config.engine_options['dtype']}: give one of them"
            )
        check_options(config.engine_options)
        for plan in config.methods:
            refuse_decoding(decoding := config.decode(plan))
            if decoding.min_p and config.engine_options.get("speculative_config"):
                raise UnsupportedDecoding("vLLM applies no min_p to drafted tokens: leave out min_p, or speculative_config")
            if plan.method != VANILLA:
                refuse_method(plan.method)
            if any(need.kind != "subspace" for need in plan.unlearnt().values()):
                raise SettingError(
                    f"{plan.label}: engine vllm reads a prior map and learns none: give its folder as prior, of "
                    f"`mgap fit --for {plan.method}`"
                )

    @staticmethod
    def require(config: Config, *, is_launched: bool) -> None:
        """Raise if vLLM is not here, would leave the plugin out, or was started in several processes by a launcher."""
        from mgap.serving.installed import refuse_filtered, require_vllm

        require_vllm("engine vllm")
        if any(plan.method in SERVED_METHODS for plan in config.methods):
            refuse_filtered()
        if is_launched:
            raise SettingError(
                "vLLM starts its own processes: leave the launcher out, and give tensor_parallel_size in engine_options, or "
                "start shares by hand with --shard 0/2"
            )

    @staticmethod
    def begin(job: Job, *, progress: Progress | None, note: Notify, status: Notify) -> tuple[Run, VllmWorker]:
        """Fit missing priors, start vLLM, and make or join the folder. The worker must be closed."""
        from mgap.backbones.loading import load_weightless
        from mgap.registry import locate
        from mgap.run.job import versions
        from mgap.serving.offline import EngineRecipe, require_options, vllm_version
        from mgap.serving.vllm_worker import VllmWorker

        config = job.config
        where: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        priors = Priors(inside(job.out, "priors"))
        ready = [each for each in config.methods if each.prior is None or priors.has(each.prior)]
        methods = {each.label: build_method(each, None, priors) for each in ready}  # refuses an unreadable prior at once
        backbone = load_weightless(
            locate(config.model, config.revision), called=config.model, template=config.template, **where
        )
        status("importing vLLM")
        require_options(config.engine_options)
        job.out.mkdir(parents=True, exist_ok=True)
        _fit(job, priors, progress, note, status)
        methods |= {each.label: build_method(each, None, priors) for each in config.methods if each not in ready}
        places = {each.label: _absolute(place) for each in config.methods if (place := _learnt_place(each, priors))}
        dtype = config.dtype if config.dtype != "auto" else _dtype_of(backbone.config)
        recipe = EngineRecipe(config.model, config.engine_options, dtype, **where)
        worker = VllmWorker(recipe, backbone, job.benchmark, config.decode(), methods, places, status)
        try:
            engine = worker.require(job.labels[0])
            made_with: dict[str, Any] = {"versions": {**versions(), "vllm": vllm_version()}, "device": engine.device}
            learnt = {label: about for label, method in methods.items() if (about := about_learnt(method))}
            settings = {label: about for label, method in methods.items() if (about := about_settings(method))}
            made_with |= {"model": engine.describe(config.model), "learnt": learnt, "settings": settings}
            plan = {**job.plan(), **made_with}
            return job.open(plan, [each.run_method("own") for each in config.methods], progress=progress, note=note), worker
        except BaseException:
            worker.close()
            raise


def _fit(job: Job, priors: Priors, progress: Progress | None, note: Notify, status: Notify) -> None:
    """Fit what is not there yet; one process does it for all that share the folder."""
    from mgap.decoding.model import load
    from mgap.run.engine import free_memory
    from mgap.run.folder import locked

    config = job.config
    with locked(job.out):
        missing = [each.prior for each in config.methods if each.prior is not None and not priors.has(each.prior)]
        if not missing:
            return
        note(
            "the prior is fitted with transformers before vLLM starts; with --prior DIR, of `mgap fit`, it is taken from there"
        )
        status(f"loading {config.model} to fit the prior")
        where: dict[str, Any] = {"revision": config.revision, "template": config.template}
        model = load(config.model, dtype=config.dtype, trust_remote_code=config.trust_remote_code, **where)
        for prior in missing:
            priors.get(prior, model, progress)
        del model
    free_memory()


def _learnt_place(plan: MethodPlan, priors: Priors) -> str | None:
    """Where a method's prior or prior map lies; None if it needs none."""
    if plan.prior is not None:
        return priors.place(plan.prior)
    kind = SERVED_METHODS.get(plan.method)
    return None if kind is None else str(plan.settings[learnt_key(kind)])


def _absolute(place: str) -> str:
    """vLLM's processes may have another working directory; a hub repository stays as it is."""
    return str(Path(place).resolve()) if Path(place).exists() else place


def _dtype_of(config: Any) -> str:
    """The checkpoint's own, as transformers takes it; vLLM's auto would halve float32."""
    found = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return "float32" if found is None else str(found).removeprefix("torch.")
