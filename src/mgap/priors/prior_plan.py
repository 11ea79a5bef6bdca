"""How a method's prior subspace is made: from which prompts, with which null image, or from which folder.

`Prior()` is the default everywhere, and it belongs to the model: the first 50 prompts of the set "pocket" for an embedded
model, of the set "default" for any other; a black picture of 336 pixels; rank 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgap.errors import PromptError, SettingError
from mgap.io.progress import Progress
from mgap.io.prompt_files import read_prompts
from mgap.io.typed_json import typed
from mgap.registry import EMBEDDED, PROMPTS

if TYPE_CHECKING:
    from mgap.backbones.base import Backbone, HasBackbone
    from mgap.priors.subspace import Subspace

PROMPT_SETS = ("default", "questions", "captions", "colours")


@dataclass(frozen=True)
class Prior:
    """How a method's subspace is made: fitted on prompts with a null image, or taken from a folder."""

    rank: int | str = 5
    count: int = 50  # prompts
    prompts: str = "auto"  # a name of the registry's PROMPTS, or a file with one a line; auto: the model's own set
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

    def of_model(self, name: str) -> Prior:
        """With the prompts' set by its name, for the model of this name."""
        return replace(self, prompts=set_name(self.prompts, pocket=name in EMBEDDED))

    def fit(self, model: Backbone | HasBackbone, told: Progress | None = None, *, batch_size: int | None = None) -> Subspace:
        """Run the prompts; refuses a source with fewer than were asked for."""
        from mgap.backbones.base import Backbone
        from mgap.priors.subspace import Subspace

        backbone = Backbone.of(model)
        plan = self.of_model(backbone.name)
        prompts = calibration(plan, pocket=False)
        report = None if told is None else lambda done: told("fitting the prior", done, len(prompts))
        found = Subspace.fit(backbone, prompts, plan.rank, null_image=plan.null_image, batch_size=batch_size, progress=report)
        return replace(found, origin={**found.origin, "prompts": plan.prompts})

    def fitted(self, model: Backbone | HasBackbone, told: Progress | None = None) -> Subspace:
        """The same, or what an earlier call has left in the cache."""
        from mgap.backbones.base import Backbone
        from mgap.priors.learnt_cache import through_cache

        plan = self.of_model(Backbone.of(model).name)
        how = {**plan.to_json(), "prompts": calibration(plan, pocket=False)}
        found: Subspace = through_cache("subspace", how, model, lambda: plan.fit(model, told))
        return found


def describe_prior(prior: Subspace) -> str:
    """What it was fitted on, in a few words: 50 prompts of 'pocket', black336, rank 5."""
    named = f" of {prior.origin['prompts']!r}" if "prompts" in prior.origin else ""
    null = f", {prior.origin['null_image']}" if "null_image" in prior.origin else ""
    return f"{prior.count} prompts{named}{null}, rank {prior.rank}"


@dataclass(frozen=True)
class Priors:
    """The subspaces of a run, each fitted once and kept in its folder, so that a run that is taken up again uses the same."""

    folder: Path | None = None  # None: there is no run, and they are kept in the cache only

    def place(self, prior: Prior) -> str:
        """Where it is, or will be once it is fitted: a folder, or a hub repository."""
        if prior.folder is not None:
            return prior.folder
        words = (prior.prompts.replace("/", "-"), prior.count, prior.null_image, prior.rank)
        return str((self.folder or Path()) / "-".join(map(str, words)))

    def has(self, prior: Prior) -> bool:
        """Whether there is nothing to fit."""
        if prior.folder is not None:
            return True
        return self.folder is not None and (Path(self.place(prior)) / "subspace.json").is_file()

    def get(self, prior: Prior, model: HasBackbone | None, told: Progress | None = None) -> Subspace:
        """Read, or fitted with the model; without one, it must be there."""
        from mgap.priors.subspace import Subspace

        if model is None or self.has(prior):
            return Subspace.load(self.place(prior))
        found = prior.fitted(model, told)
        if self.folder is not None:
            found.save(self.place(prior))
        return found


def set_name(name: str, *, pocket: bool) -> str:
    """The set that a plan's word means: `auto` is the model's own, and so is `questions` for a pocket model."""
    if name == "auto":
        return "pocket" if pocket else "default"
    return "pocket" if name == "questions" and pocket else name


def prompt_set(name: str, count: int, *, pocket: bool) -> list[str]:
    """The first `count` prompts of a named set, or of a file; fewer where it has no more."""
    name = set_name(name, pocket=pocket)
    found = PROMPTS.get(name)() if name in PROMPTS else read_prompts(name)
    return list(islice(found, count))


def calibration(prior: Prior, *, pocket: bool) -> list[str]:
    """The prompts that a prior is fitted on; refuses a source with fewer than were asked for."""
    prompts = prompt_set(prior.prompts, prior.count, pocket=pocket)
    if len(prompts) < prior.count:
        raise PromptError(f"a prior from {prior.count} prompts: {prior.prompts} has {len(prompts)}; give a file with more")
    return prompts
