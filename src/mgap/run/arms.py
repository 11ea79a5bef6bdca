"""The methods of a run: read from YAML or the command line, checked without a model, built once there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgap.data.typed import typed
from mgap.errors import PromptError, SettingError
from mgap.registry import METHODS
from mgap.reports.records import Arm
from mgap.run.progress import Progress

if TYPE_CHECKING:
    from mgap.decoding.model import Model
    from mgap.methods.base import Method
    from mgap.states.subspace import Subspace

VANILLA = "vanilla"
PROMPT_SETS = ("default", "questions", "captions", "colours")


@dataclass(frozen=True)
class Prior:
    """How a method's subspace is made: fitted on prompts with a null image, or taken from a folder."""

    rank: int | str = 5
    count: int = 50  # prompts
    prompts: str = "auto"  # a name of PROMPT_SETS, or a file with one a line; auto: questions in the pocket world, else default
    null_image: str = "black336"
    folder: str | None = None  # a saved one, or a hub repository; nothing is fitted then

    @classmethod
    def of(cls, data: Any) -> Prior:
        """From a folder's name, or from keys."""
        if isinstance(data, str):
            return cls(folder=data)
        if not isinstance(data, Mapping):
            raise SettingError(f"prior={data!r}: give a folder, or keys such as rank and count")
        known = [f.name for f in fields(cls)]
        for key in data:
            if key not in known:
                raise SettingError(f"a prior has no key {key!r}: choose from {', '.join(known)}")
        if "folder" in data and len(data) > 1:
            raise SettingError("a prior comes from a folder or is fitted: give folder alone, or leave it out")
        try:
            prior: Prior = typed(cls, data, "prior")
        except TypeError as error:
            raise SettingError(str(error)) from None
        return prior

    def to_json(self) -> dict[str, Any]:
        if self.folder is not None:
            return {"folder": self.folder}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "folder"}


@dataclass(frozen=True)
class ArmPlan:
    """One method of a run as it was asked for."""

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    prior: Prior | None = None
    x: float | None = None  # its place along the run's axis

    @classmethod
    def of(cls, entry: Any) -> ArmPlan:
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

    def with_settings(self, more: Mapping[str, Any]) -> ArmPlan:
        kept = {key: value for key, value in more.items() if key != "prior"}
        prior = Prior.of(more["prior"]) if "prior" in more else self.prior
        return replace(self, settings={**self.settings, **kept}, prior=prior)._checked()

    def _checked(self) -> ArmPlan:
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


def build_method(plan: ArmPlan, model: Model | None, priors: Priors, told: Progress | None = None) -> Method | None:
    """The method itself; None for plain decoding. Without a model, its prior must be there."""
    if plan.method == VANILLA:
        return None
    more = {} if plan.prior is None else {"prior": priors.get(plan.prior, model, told)}
    method: Method = METHODS.get(plan.method).of(**more, **plan.settings)
    return method


@dataclass(frozen=True)
class Priors:
    """The subspaces of a run, each fitted once and kept in its folder, so that a run that is taken up again uses the same."""

    folder: Path
    pocket: bool  # whether the run is on the pocket world

    def place(self, prior: Prior) -> str:
        """Where it is, or will be once it is fitted: a folder, or a hub repository."""
        if prior.folder is not None:
            return prior.folder
        words = (prior.prompts.replace("/", "-"), prior.count, prior.null_image, prior.rank)
        return str(self.folder / "-".join(map(str, words)))

    def has(self, prior: Prior) -> bool:
        """Whether there is nothing to fit."""
        return prior.folder is not None or (Path(self.place(prior)) / "subspace.json").is_file()

    def get(self, prior: Prior, model: Model | None, told: Progress | None = None) -> Subspace:
        """Read, or fitted with the model; without one, it must be there."""
        from mgap.states.subspace import Subspace

        kept = self.place(prior)
        if model is None or self.has(prior):
            return Subspace.load(kept)
        prompts = calibration(prior, pocket=self.pocket)
        report = None if told is None else lambda done: told("prompts for the prior", done, len(prompts))
        found = Subspace.fit(model, prompts, prior.rank, null_image=prior.null_image, progress=report)
        found.save(kept)
        return found


def prompt_set(name: str, count: int, *, pocket: bool) -> list[str]:
    """The first `count` prompts of a named set, or of a file; fewer where it has no more."""
    from mgap.data import prompts

    if name == "questions" or (name == "auto" and pocket):
        if pocket:
            from mgap.pocket.benchmark import CALIBRATION, calibration_prompts

            return calibration_prompts(min(count, CALIBRATION))
        found = prompts.existence_prompts()
    elif name in ("default", "auto"):
        found = iter(prompts.default_prompts())
    elif name in ("captions", "colours"):
        found = prompts.caption_prompts() if name == "captions" else prompts.colour_prompts()
    else:
        found = prompts.read_prompts(name)
    return list(islice(found, count))


def calibration(prior: Prior, *, pocket: bool) -> list[str]:
    """The prompts that a prior is fitted on; refuses a source with fewer than were asked for."""
    prompts = prompt_set(prior.prompts, prior.count, pocket=pocket)
    if len(prompts) < prior.count:
        raise PromptError(f"a prior from {prior.count} prompts: {prior.prompts} has {len(prompts)}; give a file with more")
    return prompts
