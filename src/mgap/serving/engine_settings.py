"""Settings of an engine (the key "mgap" of its configuration) and of a request (`mgap_alpha`), in vLLM and in SGLang."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from mgap.errors import SettingError
from mgap.methods.mgap import MGAP
from mgap.methods.predicted_prior import PredictedPrior
from mgap.registry import LEARNT
from mgap.settings import check_choice, check_strength, check_switch

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = "mgap"
ALPHA = "mgap_alpha"  # of a request: the method's strength
PAIR = "mgap_pair"  # of a request that shares its tokens with another (paired_requests.py)
PAIR_SCHEDULER = "mgap.serving.paired_requests.PairScheduler"  # an engine's scheduler_cls, which keeps pairs in step
PREFIX = "mgap_"  # of this package's keys in a request
EXTENSION = "mgap.serving.extension.Extension"  # vLLM's worker extension of runs and of `mgap serve`
LOG_EVERY = 60.0  # seconds
OF_ENGINE = ("method", "log_every", "reload")  # keys that are not the method's

Served: TypeAlias = MGAP | PredictedPrior  # what reads the head's input alone, and moves it inside a prior's subspace
SERVED_METHODS: dict[str, type[Served]] = {MGAP.name: MGAP, PredictedPrior.name: PredictedPrior}


def learnt_key(method: type[Served]) -> str:
    """The setting that holds what the method has learnt from the model: prior, or prior_map."""
    (name,) = method.needs
    return name


@dataclass(frozen=True)
class Serving:
    """A method, what it has learnt, its settings, how often to log its counts, and whether they may change."""

    prior: str  # a folder or a hub repository with what the method has learnt; every worker reads it
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method, unchecked
    log_every: float = LOG_EVERY  # seconds; 0: never
    reload: bool = False  # whether a running server may be given another prior over HTTP
    name: str = MGAP.name  # of the method

    @classmethod
    def of(cls, given: Any, where: str = "additional_config") -> Serving:
        """From plain keys. Raises on unknown and missing ones; `where` they were given, for the messages."""
        if not isinstance(given, Mapping):
            raise SettingError(f'{where} {KEY}={given!r:.60}: must hold keys and values, such as {{"prior": "priors/my"}}')
        name = given.get("method", MGAP.name)
        check_choice(f"{where} {KEY}: method", name, SERVED_METHODS)
        kind = SERVED_METHODS[name]
        learnt, allowed = learnt_key(kind), [*kind.setting_names(), *OF_ENGINE]
        for key in given:
            if key not in allowed:
                raise SettingError(f"{where} {KEY}: unknown key {key!r:.60}; choose from {', '.join(allowed)}")
        if not isinstance(given.get(learnt), str):
            fit = "mgap fit --model MODEL --out DIR" + ("" if kind is MGAP else f" --for {name}")
            raise SettingError(f"{where} {KEY}: {learnt} is missing; fit one with `{fit}` and name it")
        settings = {key: value for key, value in given.items() if key not in (learnt, *OF_ENGINE)}
        log_every = check_strength("log_every", given.get("log_every", LOG_EVERY))
        return cls(given[learnt], settings, log_every, check_switch("reload", given.get("reload", False)), name)

    @classmethod
    def of_engine(cls, config: VllmConfig) -> Serving | None:
        """The settings in an engine's configuration; None if it does not ask for MGAP."""
        additional = config.additional_config
        given = additional.get(KEY) if isinstance(additional, Mapping) else None
        return None if given is None else cls.of(given)

    def to_json(self) -> dict[str, Any]:
        """The keys that it was made of."""
        engine = {"method": self.name, "log_every": self.log_every, "reload": self.reload}
        return {learnt_key(SERVED_METHODS[self.name]): self.prior, **self.settings, **engine}

    def method(self) -> Served:
        """The method with these settings; raises on settings that it does not have."""
        kind = SERVED_METHODS[self.name]
        learnt = learnt_key(kind)
        method = kind.of(**{learnt: LEARNT.get(kind.needs[learnt].kind).load(self.prior)}, **self.settings)
        assert isinstance(method, Served)
        return method


def is_paired(config: VllmConfig) -> bool:
    """Whether an engine takes pairs of requests."""
    return bool(config.scheduler_config.scheduler_cls == PAIR_SCHEDULER)


def own_alpha(extra: Mapping[str, Any] | None, where: str = "vllm_xargs", *, others: Collection[str] = ()) -> float | None:
    """A request's own strength, or None if it sets none. Raises on invalid values and other keys with our prefix.

    `others` are such keys that are read elsewhere.
    """
    ours = {key: value for key, value in (extra or {}).items() if key.startswith(PREFIX) and key not in others}
    if unknown := sorted(set(ours) - {ALPHA}):
        raise SettingError(f"unknown {unknown[0]!r} in {where}: of mgap's settings a request may set {ALPHA} only")
    return check_strength(ALPHA, ours[ALPHA]) if ours else None
