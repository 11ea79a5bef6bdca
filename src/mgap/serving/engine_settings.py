"""Settings of an engine (the key "mgap" of its configuration) and of a request (`mgap_alpha`), in vLLM and in SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mgap.errors import SettingError
from mgap.methods.mgap import MGAP
from mgap.priors.subspace import Subspace
from mgap.settings import check_strength, check_switch

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = "mgap"
ALPHA = "mgap_alpha"  # of a request
PREFIX = "mgap_"  # of this package's keys in a request
EXTENSION = "mgap.serving.extension.Extension"  # vLLM's worker extension of runs and of `mgap serve`
LOG_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Serving:
    """A prior, MGAP's settings, how often to log its counts, and whether they may change."""

    prior: str  # a folder or a hub repository; every worker reads it
    settings: Mapping[str, Any] = field(default_factory=dict)  # of MGAP, unchecked
    log_every: float = LOG_EVERY  # seconds; 0: never
    reload: bool = False  # whether a running server may be given another prior over HTTP

    @classmethod
    def of(cls, given: Any, where: str = "additional_config") -> Serving:
        """From plain keys. Raises on unknown and missing ones; `where` they were given, for the messages."""
        allowed = [*MGAP.setting_names(), "log_every", "reload"]
        if not isinstance(given, Mapping):
            raise SettingError(f'{where} {KEY}={given!r:.60}: must hold keys and values, such as {{"prior": "priors/my"}}')
        for key in given:
            if key not in allowed:
                raise SettingError(f"{where} {KEY}: unknown key {key!r:.60}; choose from {', '.join(allowed)}")
        if not isinstance(given.get("prior"), str):
            raise SettingError(f"{where} {KEY}: prior is missing; fit one with `mgap fit --model MODEL --out DIR` and name it")
        settings = {key: value for key, value in given.items() if key not in ("prior", "log_every", "reload")}
        log_every = check_strength("log_every", given.get("log_every", LOG_EVERY))
        return cls(given["prior"], settings, log_every, check_switch("reload", given.get("reload", False)))

    @classmethod
    def of_engine(cls, config: VllmConfig) -> Serving | None:
        """The settings in an engine's configuration; None if it does not ask for MGAP."""
        additional = config.additional_config
        given = additional.get(KEY) if isinstance(additional, Mapping) else None
        return None if given is None else cls.of(given)

    def method(self) -> MGAP:
        """The method with these settings; raises on settings that it does not have."""
        method = MGAP.of(prior=Subspace.load(self.prior), **self.settings)
        assert isinstance(method, MGAP)
        return method


def own_alpha(extra: Mapping[str, Any] | None, where: str = "vllm_xargs") -> float | None:
    """A request's own strength, or None if it sets none. Raises on invalid values and other keys with our prefix."""
    ours = {key: value for key, value in (extra or {}).items() if key.startswith(PREFIX)}
    if unknown := sorted(set(ours) - {ALPHA}):
        raise SettingError(f"unknown {unknown[0]!r} in {where}: of mgap's settings a request may set {ALPHA} only")
    return check_strength(ALPHA, ours[ALPHA]) if ours else None
