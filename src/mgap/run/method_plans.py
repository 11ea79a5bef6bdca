"""The methods of a run: read from YAML or the command line, checked without a model, built once there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.priors.prior_plan import Prior, Priors
from mgap.registry import LEARNT, METHODS
from mgap.run.learning import called, describe, kinds_in, learnt, refuse_unlearnt
from mgap.run.records import Arm

if TYPE_CHECKING:
    from mgap.decoding.model import Model
    from mgap.methods.base import Method, Need

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
        """From a method's name, or from keys: method, label, prior, x, and the method's own settings.

        `prior` is how to fit a subspace, or where that lies which the method needs, whatever it is.
        """
        if isinstance(entry, cls):
            return entry
        if isinstance(entry, str):
            entry = {"method": entry}
        if not isinstance(entry, Mapping) or not isinstance(entry.get("method"), str):
            raise SettingError(f"{entry!r:.60} names no method: write its name, or keys such as method, label and alpha")
        own = {"method", "label", "prior", "x"}
        settings = {key: value for key, value in entry.items() if key not in own}
        x = entry.get("x")
        if isinstance(x, bool) or not isinstance(x, int | float | None) or (x is not None and not abs(x) <= sys.float_info.max):
            raise SettingError(f"{entry['method']}: x={x!r:.40} must be a number, its place along the axis")
        arm = cls(str(entry.get("label", entry["method"])), entry["method"], settings, None, None if x is None else float(x))
        return arm._with_prior(entry["prior"])._checked() if "prior" in entry else arm._checked()

    @property
    def folder(self) -> str:
        return Arm(self.label, self.method).folder

    def with_settings(self, more: Mapping[str, Any]) -> MethodPlan:
        kept = {key: value for key, value in more.items() if key != "prior"}
        plan = replace(self, settings={**self.settings, **kept})
        return (plan._with_prior(more["prior"]) if "prior" in more else plan)._checked()

    def takes(self, place: str) -> bool:
        """Whether a folder, or a hub repository, holds something of a kind that this method needs with its settings."""
        return self.method != VANILLA and bool(_held(METHODS.get(self.method).learnt_settings(self.settings), place))

    def _with_prior(self, given: Any) -> MethodPlan:
        """With what the key `prior` says: how to fit a subspace, or where something that was learnt lies."""
        prior = Prior.of(given)
        if self.method == VANILLA or prior.folder is None:
            return replace(self, prior=prior)
        needs = METHODS.get(self.method).learnt_settings()
        held = _held(needs, prior.folder)
        if needs and not held:
            inside = " and ".join(map(called, kinds_in(prior.folder) or ()))
            wanted = " or ".join(called(need.kind) for need in needs.values())
            raise SettingError(f"{self.label}: {prior.folder} holds {inside}, and {self.method} needs {wanted}")
        has_subspace = not needs or any(need.kind == "subspace" for need in held.values())
        others = {name: prior.folder for name, need in held.items() if need.kind != "subspace"}
        return replace(self, settings={**self.settings, **others}, prior=prior if has_subspace else self.prior)

    def _checked(self) -> MethodPlan:
        """Names and settings are checked now, as far as that needs no model; a prior is added where one is needed."""
        if self.method == VANILLA:
            if self.settings or self.prior:
                raise SettingError(f"{self.label}: vanilla takes no settings and no prior; leave them out, or name a method")
            return self
        method = METHODS.get(self.method)
        method.check_names(self.settings)
        if self.prior and not method.takes_prior():
            raise SettingError(f"{self.label}: {self.method} uses no prior; leave it out")
        missing = self.unlearnt()
        method.check_whole({*self.settings, *missing, *method.learnt_settings()})
        if self.prior is None and any(need.kind == "subspace" for need in missing.values()):
            return replace(self, prior=Prior())
        if self.prior is None and not missing:
            method.of(**read_learnt(method, self.settings))
        return self

    def unlearnt(self) -> dict[str, Need]:
        """What its settings must hold, and no folder is given for."""
        if self.method == VANILLA:
            return {}
        needs: dict[str, Need] = METHODS.get(self.method).learnt_settings(self.settings)
        return {name: need for name, need in needs.items() if name not in self.settings}

    @property
    def is_learnt(self) -> bool:
        """Whether everything that it needs lies in folders, so that it can be built without a model."""
        is_saved = self.prior is not None and self.prior.folder is not None
        return all(need.kind == "subspace" and is_saved for need in self.unlearnt().values())

    def refuse_unlearnt(self, model: str) -> None:
        """Raise if something that it needs is not given, and cannot be learnt from the model of this name alone."""
        for name, need in self.unlearnt().items():
            refuse_unlearnt(self.method, name, need.kind, model)

    def arm(self, prefill: str) -> Arm:
        return Arm(self.label, self.method, dict(self.settings), self.prior.to_json() if self.prior else None, prefill, self.x)


def build_method(plan: MethodPlan, model: Model | None, priors: Priors, told: Progress | None = None) -> Method | None:
    """The method itself; None for plain decoding. Without a model, what it must have learnt has to be there."""
    if plan.method == VANILLA:
        return None
    kind = METHODS.get(plan.method)
    settings = read_learnt(kind, plan.settings)
    for name, need in kind.learnt_settings().items():
        if need.kind == "subspace" and plan.prior is not None and name not in settings:
            settings[name] = priors.get(plan.prior, model, told)
    for name, need in plan.unlearnt().items():
        if name not in settings and model is not None:
            settings[name] = learnt(need.kind, model, priors.folder, told)
    method: Method = kind.of(**settings)
    return method


def about_learnt(method: Method | None) -> dict[str, str]:
    """What a method works with that was learnt, by setting, in words."""
    needs = {} if method is None else method.learnt_settings()
    held = {name: (need.kind, getattr(method, name)) for name, need in needs.items()}
    return {name: describe(kind, found) for name, (kind, found) in held.items() if isinstance(found, LEARNT.get(kind))}


def _held(needs: Mapping[str, Need], place: str) -> dict[str, Need]:
    """Those that a folder can fill. In a hub repository, or a folder with nothing in it, a subspace is looked for first."""
    if kinds := kinds_in(place):
        return {name: need for name, need in needs.items() if need.kind in kinds}
    return {name: need for name, need in needs.items() if need.kind == "subspace"} or dict(needs)


def read_learnt(method: type[Method], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what lies in folders read from there."""
    read = dict(settings)
    for name, need in method.learnt_settings().items():
        if isinstance(read.get(name), str | PathLike):
            read[name] = LEARNT.get(need.kind).load(read[name])
    return read
