"""The engine server: refuses what it cannot do before the first question, then makes the folder and the worker.

No weights are loaded here: the model's configuration and tokenizer are enough.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from mgap.errors import ModelError, SettingError, require_extra
from mgap.io.progress import Progress
from mgap.io.regular_files import inside
from mgap.methods.mgap import MGAP
from mgap.priors.prior_plan import SERVED, Priors
from mgap.priors.subspace import Subspace
from mgap.registry import METHODS, locate
from mgap.run.method_plans import VANILLA, MethodPlan, about_learnt, about_settings, build_method
from mgap.serving.remote.remote_options import RemoteOptions

if TYPE_CHECKING:
    from mgap.backbones.base import Backbone
    from mgap.methods.base import Method
    from mgap.run.config import Config
    from mgap.run.job import Job
    from mgap.run.records import Run
    from mgap.run.worker import Notify
    from mgap.serving.remote.fleet import Fleet
    from mgap.serving.remote.remote_server import Told
    from mgap.serving.remote.remote_worker import RemoteWorker


class RemoteEngine:
    """`mgap run --engine server --url http://HOST:8000/v1`."""

    batch_size: ClassVar[int] = 256  # questions that are written down together
    prior: ClassVar[str] = SERVED  # that of the servers

    @staticmethod
    def refuse(config: Config) -> None:
        """Raise if a run asks for something that a server does not do, or does by itself."""
        from mgap.serving.remote.chat_bodies import refuse_decoding
        from mgap.serving.servable import refuse_method

        if config.benchmark == "departure":
            raise SettingError("servers answer and show no states: departures are measured with engine transformers")
        for name, usual in (("workers", "auto"), ("device", None), ("dtype", "auto"), ("prefill", "auto"), ("profile", False)):
            if getattr(config, name) != usual and (name, config.workers) != ("workers", 0):
                raise SettingError(f"{name}={getattr(config, name)}: that is the server's business; leave {name} out")
        if config.template is not None:
            raise SettingError("template: a server writes prompts by its own chat template; give it to the server")
        RemoteOptions.of(config.engine_options)
        for plan in config.methods:
            refuse_decoding(config.decode(plan))
            if plan.method != VANILLA:
                refuse_method(plan.method, "server")
            if plan.prior is not None and plan.prior.folder is None:
                raise SettingError(
                    f"{plan.label}: a server has its prior and fits none: leave prior out, or name the folder that it has"
                )

    @staticmethod
    def require(config: Config, *, is_launched: bool) -> None:  # noqa: ARG004  several processes may ask
        """Raise if the client is not installed."""
        require_extra("openai", "server", "engine server")

    @staticmethod
    def begin(job: Job, *, progress: Progress | None, note: Notify, status: Notify) -> tuple[Run, RemoteWorker]:
        """Ask the servers what they are, and make or join the folder. The worker must be closed."""
        from mgap.backbones.loading import load_weightless
        from mgap.run.job import versions
        from mgap.serving.remote.fleet import Fleet
        from mgap.serving.remote.remote_worker import RemoteWorker

        config, options = job.config, RemoteOptions.of(job.config.engine_options)
        where: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        backbone = load_weightless(locate(config.model, config.revision), called=config.model, **where)
        status(f"asking {', '.join(options.url)}")
        fleet = Fleet(options)
        try:
            told = fleet.connect(backbone)
            refuse_other_model(config, told, backbone, options.url[0])
            refuse_unservable(config, told, options.url[0])
            methods = served_methods(job, fleet, told)
            if not told.shows_prompts:
                note("this server does not tell the prompts that it makes of questions: records have none")
            theirs = {} if told.status is None else {f"server's {name}": of for name, of in told.status.versions.items()}
            plan = {**job.plan(), "versions": {**versions(), **theirs}, "model": described(config, told, backbone)}
            plan["device"] = "a server's" if told.status is None else told.status.device
            plan["learnt"] = {label: about for label, method in methods.items() if (about := about_learnt(method))}
            plan["settings"] = {label: about for label, method in methods.items() if (about := about_settings(method))}
            run = job.open(plan, [each.run_method("own") for each in config.methods], progress=progress, note=note)
            return run, RemoteWorker(fleet, told, backbone, job.benchmark, config.decode(), methods)
        except BaseException:
            fleet.close()
            raise


def refuse_other_model(config: Config, told: Told, backbone: Backbone, address: str) -> None:
    """Raise if the served model is of another size; a prompt alone does not tell."""
    served = {} if told.status is None else told.status.model or {}
    for name in ("hidden_size", "vocab_size"):
        here = getattr(backbone.config.get_text_config(), name)
        if served.get(name, here) != here:
            raise ModelError(f"{address} has another model than {config.model}: its {name} is {served[name]}, not {here}")


def refuse_unservable(config: Config, told: Told, address: str) -> None:
    """Raise if these servers cannot decode as a row of the run wants."""
    from mgap.serving.remote.chat_bodies import refuse_extras

    for plan in config.methods:
        if not told.is_vllm:
            refuse_extras(config.decode(plan), address)
        if told.status is not None and told.status.drafts and config.decode(plan).min_p:
            raise SettingError(f"{plan.label}: vLLM applies no min_p to drafted tokens, and {address} drafts: leave min_p out")
        if plan.method == MGAP.name and not told.has_mgap:
            raise ModelError(
                f"{plan.label}: {address} runs without MGAP, and can do vanilla and bias only: start it with `mgap serve`"
            )
        if plan.method == MGAP.name and told.status is not None and told.status.method != MGAP.name:
            raise ModelError(f"{plan.label}: {address} decodes with {told.status.method}, and not with {MGAP.name}")
        if plan.method == MGAP.name and told.status is None:
            raise ModelError(
                f"{plan.label}: {address} does not tell which prior and settings it has: start it with `mgap serve`, or with "
                "VLLM_PLUGINS=mgap in its environment"
            )


def served_methods(job: Job, fleet: Fleet, told: Told) -> dict[str, Method | None]:
    """The run's methods, by label, on the prior that the servers have. Raises if theirs is another, or has other settings."""
    folder, address = inside(job.out, "priors", SERVED), fleet.servers[0].address
    methods: dict[str, Method | None] = {}
    served: Subspace | None = None
    for plan in job.config.methods:
        if plan.prior is None:
            methods[plan.label] = build_method(plan, None, Priors())
            continue
        served = served or fleet.run(fleet.servers[0].prior(folder))
        named = plan.prior.folder
        if named not in (None, SERVED) and not Subspace.load(named).basis.equal(served.basis):
            raise ModelError(f"{plan.label}: {address} has another prior than {named}; leave prior out to use it")
        method = METHODS.get(plan.method).of(**plan.settings, prior=served)
        refuse_other_settings(plan, method, told, address)
        methods[plan.label] = method
    if served is not None:
        served.save(folder)
    return methods


def refuse_other_settings(plan: MethodPlan, method: MGAP, told: Told, address: str) -> None:
    """Raise if the servers decode with other settings than alpha, which a request sets."""
    assert told.status is not None
    ours = {**asdict(method.settings), "rank": method.subspace.rank, "exact": method.exact}
    theirs = {**(told.status.settings or {}), "exact": told.status.exact}
    for name, value in ours.items():
        if name != "alpha" and theirs.get(name) != value:
            raise ModelError(
                f"{plan.label}: {name} is {value} here and {theirs.get(name)} at {address}; give --set "
                f"{plan.label}.{name}={theirs.get(name)}, or start a server with the other"
            )


def described(config: Config, told: Told, backbone: Backbone) -> dict[str, Any]:
    """What is known of the served model, in the form of `run.job.describe`."""
    status = told.status
    if status is None:
        return {"name": config.model, "served_as": told.model, "family": backbone.config.model_type, "dtype": "the server's"}
    return {**(status.model or {}), "name": config.model, "family": status.family, "dtype": status.dtype}
