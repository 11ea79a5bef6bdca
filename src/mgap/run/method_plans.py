"""The methods of a run: read from YAML or the command line, checked without a model, then built with one."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.io.typed_json import typed
from mgap.priors.prior_plan import SERVED, Prior, Priors
from mgap.registry import LEARNT, METHODS
from mgap.run.learning import called, describe, kinds_in, learnt, refuse_unlearnt
from mgap.run.records import RunMethod

if TYPE_CHECKING:
    from mgap.decoding.model import Model
    from mgap.methods.base import Method, Need

VANILLA = "vanilla"
ROW_KEYS: dict[str, Any] = {"decoding": Mapping[str, Any], "suffix": str, "control": bool}  # of a row, whatever its method


@dataclass(frozen=True)
class MethodPlan:
    """One method as the config describes it."""

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    prior: Prior | None = None
    x: float | None = None  # its position on the run's axis
    decoding: Mapping[str, Any] = field(default_factory=dict)  # where it differs from the run's
    suffix: str = ""  # words after every question, behind the benchmark's own
    control: bool = False  # a row that the others are held against

    @classmethod
    def of(cls, entry: Any) -> MethodPlan:
        """From a method's name, or from keys: method, label, prior, x, those of `ROW_KEYS`, and the method's own settings.

        `prior` says how to fit a subspace, or names the folder of whatever the method needs.
        """
        if isinstance(entry, cls):
            return entry
        if isinstance(entry, str):
            entry = {"method": entry}
        if not isinstance(entry, Mapping) or not isinstance(entry.get("method"), str):
            raise SettingError(f"{entry!r:.60} names no method: write its name, or keys such as method, label and alpha")
        reserved = {"method", "label", "prior", "x", *ROW_KEYS}
        settings = {key: value for key, value in entry.items() if key not in reserved}
        x = entry.get("x")
        if isinstance(x, bool) or not isinstance(x, int | float | None) or (x is not None and not abs(x) <= sys.float_info.max):
            raise SettingError(f"{entry['method']}: x={x!r:.40} must be a number, its place along the axis")
        try:
            row = {key: typed(kind, entry[key], f"{entry['method']}: {key}") for key, kind in ROW_KEYS.items() if key in entry}
        except TypeError as error:
            raise SettingError(str(error)) from None
        label = str(entry.get("label", entry["method"]))
        plan = cls(label, entry["method"], settings, None, None if x is None else float(x), **row)
        return plan._with_prior(entry["prior"])._checked() if "prior" in entry else plan._checked()

    @property
    def folder(self) -> str:
        return RunMethod(self.label, self.method).folder

    def with_settings(self, more: Mapping[str, Any]) -> MethodPlan:
        others = {key: value for key, value in more.items() if key != "prior"}
        plan = replace(self, settings={**self.settings, **others})
        return (plan._with_prior(more["prior"]) if "prior" in more else plan)._checked()

    def takes(self, place: str) -> bool:
        """Whether a folder or hub repository holds a kind that this method needs with its settings."""
        return self.method != VANILLA and bool(_needs_filled_by(METHODS.get(self.method).learnt_settings(self.settings), place))

    def _with_prior(self, given: Any) -> MethodPlan:
        """Apply the key `prior`: how to fit a subspace, or the folder of something learnt."""
        prior = Prior.of(given)
        if self.method == VANILLA or prior.folder is None:
            return replace(self, prior=prior)
        needs = METHODS.get(self.method).learnt_settings()
        held = _needs_filled_by(needs, prior.folder)
        if needs and not held:
            inside = " and ".join(map(called, kinds_in(prior.folder) or ()))
            wanted = " or ".join(called(need.kind) for need in needs.values())
            raise SettingError(f"{self.label}: {prior.folder} holds {inside}, and {self.method} needs {wanted}")
        has_subspace = not needs or any(need.kind == "subspace" for need in held.values())
        others = {name: prior.folder for name, need in held.items() if need.kind != "subspace"}
        return replace(self, settings={**self.settings, **others}, prior=prior if has_subspace else self.prior)

    def _checked(self) -> MethodPlan:
        """Check what needs no model, and add a default prior if one is needed."""
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
        method.check_values(self.settings)
        if self.prior is None and any(need.kind == "subspace" for need in missing.values()):
            return replace(self, prior=Prior())
        if self.prior is None and not missing:
            method.of(**read_learnt(method, self.settings))
        return self

    def unlearnt(self) -> dict[str, Need]:
        """The needs for which no folder is given, by setting."""
        if self.method == VANILLA:
            return {}
        needs: dict[str, Need] = METHODS.get(self.method).learnt_settings(self.settings)
        return {name: need for name, need in needs.items() if name not in self.settings}

    @property
    def is_learnt(self) -> bool:
        """Whether everything it needs is saved in folders, so that it can be built without a model."""
        is_saved = self.prior is not None and self.prior.folder not in (None, SERVED)
        return all(need.kind == "subspace" and is_saved for need in self.unlearnt().values())

    def refuse_unlearnt(self, model: str) -> None:
        """Raise if a need is not given and cannot be learnt from the named model alone."""
        for name, need in self.unlearnt().items():
            refuse_unlearnt(self.method, name, need.kind, model)

    def run_method(self, prefill: str) -> RunMethod:
        files = {} if self.method == VANILLA else METHODS.get(self.method).files_named(self.settings)
        prior = self.prior.to_json() if self.prior else None
        settings, decoding = dict(self.settings), dict(self.decoding)
        return RunMethod(self.label, self.method, settings, prior, prefill, self.x, files, decoding, self.suffix, self.control)


def build_method(plan: MethodPlan, model: Model | None, priors: Priors, progress: Progress | None = None) -> Method | None:
    """Build the method; None is plain decoding. Without a model, everything it needs must be saved already."""
    if plan.method == VANILLA:
        return None
    kind = METHODS.get(plan.method)
    settings = read_learnt(kind, plan.settings)
    for name, need in kind.learnt_settings().items():
        if need.kind == "subspace" and plan.prior is not None and name not in settings:
            settings[name] = priors.get(plan.prior, model, progress)
    for name, need in plan.unlearnt().items():
        if name not in settings and model is not None:
            settings[name] = learnt(need.kind, model, priors.folder, progress)
    method: Method = kind.of(**settings)
    return method


def about_learnt(method: Method | None) -> dict[str, str]:
    """What a method has learnt, in words, by setting."""
    needs = {} if method is None else method.learnt_settings()
    held = {name: (need.kind, getattr(method, name)) for name, need in needs.items()}
    return {name: describe(kind, value) for name, (kind, value) in held.items() if isinstance(value, LEARNT.get(kind))}


def about_settings(method: Method | None) -> dict[str, Any]:
    """Every plain setting that a method works with, given or not; what it has learnt is told by `about_learnt`."""
    every = {} if method is None else {f.name: getattr(method, f.name) for f in fields(method)}
    plain = {name: value for name, value in every.items() if isinstance(value, bool | int | float | str)}
    told = {
        name: str(value) if value in (math.inf, -math.inf) else value for name, value in plain.items()
    }  # as JSON has no inf
    return {name: value for name, value in told.items() if (name, value) != ("exact", True)}


def _needs_filled_by(needs: Mapping[str, Need], place: str) -> dict[str, Need]:
    """The needs that a folder can fill. In a hub repository or an empty folder, a subspace is assumed first."""
    if kinds := kinds_in(place):
        return {name: need for name, need in needs.items() if need.kind in kinds}
    return {name: need for name, need in needs.items() if need.kind == "subspace"} or dict(needs)


def read_learnt(method: type[Method], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with folders replaced by what is saved in them."""
    read = dict(settings)
    for name, need in method.learnt_settings().items():
        if isinstance(read.get(name), str | PathLike):
            read[name] = LEARNT.get(need.kind).load(read[name])
    return read
