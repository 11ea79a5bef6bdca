"""What an engine is asked for, by the key "mgap" of vLLM's `additional_config`, and what a request is, by `mgap_alpha`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from mgap.errors import SettingError
from mgap.methods.mgap import MGAP
from mgap.priors.subspace import Subspace
from mgap.settings import check_strength

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = "mgap"
ALPHA = "mgap_alpha"  # of a request
OURS = "mgap_"  # how names of ours begin there
LOG_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Serving:
    """A prior, MGAP's settings, and how often to say what it does."""

    prior: str  # a folder, or a hub repository; every worker reads it
    settings: Mapping[str, Any] = field(default_factory=dict)  # of MGAP, as given
    log_every: float = LOG_EVERY  # seconds; 0: never

    @classmethod
    def of(cls, given: Any) -> Serving:
        """From plain keys; unknown and missing ones are named."""
        known = [f.name for f in fields(MGAP)] + ["log_every"]
        if not isinstance(given, Mapping):
            raise SettingError(
                f'additional_config {KEY}={given!r:.60}: must hold keys and values, such as {{"prior": "priors/my"}}'
            )
        for key in given:
            if key not in known:
                raise SettingError(f"additional_config {KEY}: unknown key {key!r:.60}; choose from {', '.join(known)}")
        if not isinstance(given.get("prior"), str):
            raise SettingError(
                f"additional_config {KEY}: prior is missing; fit one with `mgap fit --model MODEL --out DIR` and name it"
            )
        settings = {key: value for key, value in given.items() if key not in ("prior", "log_every")}
        return cls(given["prior"], settings, check_strength("log_every", given.get("log_every", LOG_EVERY)))

    @classmethod
    def wanted(cls, config: VllmConfig) -> Serving | None:
        """What an engine asks for; None where it does not."""
        more = config.additional_config
        given = more.get(KEY) if isinstance(more, Mapping) else None
        return None if given is None else cls.of(given)

    def method(self) -> MGAP:
        """The method itself; refuses settings that it does not have."""
        method = MGAP.of(prior=Subspace.load(self.prior), **self.settings)
        assert isinstance(method, MGAP)
        return method


def own_alpha(extra: Mapping[str, Any] | None) -> float | None:
    """The strength that a request asks for; None where it asks for none. Refuses what is not one."""
    ours = {key: value for key, value in (extra or {}).items() if key.startswith(OURS)}
    if unknown := sorted(set(ours) - {ALPHA}):
        raise SettingError(f"unknown {unknown[0]!r} in vllm_xargs: of mgap's settings a request may set {ALPHA} only")
    return check_strength(ALPHA, ours[ALPHA]) if ours else None
