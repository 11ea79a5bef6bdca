"""The methods of a run: read from YAML or the command line, checked without a model, built once there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.priors.prior_plan import Prior, Priors
from mgap.registry import METHODS
from mgap.run.records import Arm

if TYPE_CHECKING:
    from mgap.decoding.model import Model
    from mgap.methods.base import Method

VANILLA = "vanilla"


@dataclass(frozen=True)
class MethodPlan:
    """One method of a run as it was asked for."""

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    prior: Prior | None = None
    x: float | None = None  # its place along the run's axis

    @classmethod
    def of(cls, entry: Any) -> MethodPlan:
        """From a method's name, or from keys: method, label, prior, x, and the method's own settings."""
        if isinstance(entry, cls):
            return entry
        if isinstance(entry, str):
            entry = {"method": entry}
        if not isinstance(entry, Mapping) or not isinstance(entry.get("method"), str):
            raise SettingError(f"{entry!r:.60} names no method: write its name, or keys such as method, label and alpha")
        own = {"method", "label", "prior", "x"}
        settings = {key: value for key, value in entry.items() if key not in own}
        prior = Prior.of(entry["prior"]) if "prior" in entry else None
        x = entry.get("x")
        if isinstance(x, bool) or not isinstance(x, int | float | None) or (x is not None and not abs(x) <= sys.float_info.max):
            raise SettingError(f"{entry['method']}: x={x!r:.40} must be a number, its place along the axis")
        arm = cls(str(entry.get("label", entry["method"])), entry["method"], settings, prior, None if x is None else float(x))
        return arm._checked()

    @property
    def folder(self) -> str:
        return Arm(self.label, self.method).folder

    def with_settings(self, more: Mapping[str, Any]) -> MethodPlan:
        kept = {key: value for key, value in more.items() if key != "prior"}
        prior = Prior.of(more["prior"]) if "prior" in more else self.prior
        return replace(self, settings={**self.settings, **kept}, prior=prior)._checked()

    def _checked(self) -> MethodPlan:
        """Names and settings are checked now, as far as that needs no model; a prior is added where one is needed."""
        if self.method == VANILLA:
            if self.settings or self.prior:
                raise SettingError(f"{self.label}: vanilla takes no settings and no prior; leave them out, or name a method")
            return self
        method = METHODS.get(self.method)
        method.check_names(self.settings)
        if method.takes_prior():
            return self if self.prior else replace(self, prior=Prior())
        if self.prior:
            raise SettingError(f"{self.label}: {self.method} uses no prior; leave it out")
        method.of(**self.settings)
        return self

    def arm(self, prefill: str) -> Arm:
        return Arm(self.label, self.method, dict(self.settings), self.prior.to_json() if self.prior else None, prefill, self.x)


def build_method(plan: MethodPlan, model: Model | None, priors: Priors, told: Progress | None = None) -> Method | None:
    """The method itself; None for plain decoding. Without a model, its prior must be there."""
    if plan.method == VANILLA:
        return None
    more = {} if plan.prior is None else {"prior": priors.get(plan.prior, model, told)}
    method: Method = METHODS.get(plan.method).of(**more, **plan.settings)
    return method
