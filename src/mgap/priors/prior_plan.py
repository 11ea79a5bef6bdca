"""How a method's prior subspace is made: fitted on prompts with a null image, or read from a folder.

`Prior()` is the default everywhere. It depends on the model: the first 50 prompts of the set "pocket" for an embedded model, of
"default" for any other; a black picture of 336 pixels; rank 5.
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
from mgap.io.regular_files import inside
from mgap.io.typed_json import typed
from mgap.registry import POCKET_MODELS, PROMPTS

if TYPE_CHECKING:
    from mgap.backbones.base import Backbone, HasBackbone
    from mgap.priors.subspace import Subspace

SERVED = "served"  # in the place of a folder: the prior that the asked servers have
PROMPT_SETS = ("default", "questions", "captions", "colours")


@dataclass(frozen=True)
class Prior:
    """The recipe of a subspace: how to fit it, or the folder to read it from."""

    rank: int | str = 5
    count: int = 50  # prompts
    prompts: str = "auto"  # a set in the registry's PROMPTS, or a file with one per line; auto: the model's own set
    null_image: str = "black336"
    folder: str | None = None  # a saved subspace, a hub repository, or SERVED; then nothing is fitted

    @classmethod
    def of(cls, data: Any) -> Prior:
        """From the name of a folder, or from keys."""
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
        """Replace `auto` by the name of the model's prompt set."""
        return replace(self, prompts=set_name(self.prompts, pocket=name in POCKET_MODELS))

    def fit(
        self, model: Backbone | HasBackbone, progress: Progress | None = None, *, batch_size: int | None = None
    ) -> Subspace:
        """Fit the subspace. Refuses a source with fewer prompts than `count`."""
        from mgap.backbones.base import Backbone
        from mgap.priors.subspace import Subspace

        backbone = Backbone.of(model)
        plan = self.of_model(backbone.name)
        prompts = calibration(plan, pocket=False)
        report = None if progress is None else lambda done: progress("fitting the prior", done, len(prompts))
        subspace = Subspace.fit(
            backbone, prompts, plan.rank, null_image=plan.null_image, batch_size=batch_size, progress=report
        )
        return replace(subspace, origin={**subspace.origin, "prompts": plan.prompts})

    def fitted(self, model: Backbone | HasBackbone, progress: Progress | None = None) -> Subspace:
        """Like `fit`, but through the cache."""
        from mgap.backbones.base import Backbone
        from mgap.priors.learnt_cache import through_cache

        plan = self.of_model(Backbone.of(model).name)
        how = {**plan.to_json(), "prompts": calibration(plan, pocket=False)}
        subspace: Subspace = through_cache("subspace", how, model, lambda: plan.fit(model, progress))
        return subspace


def describe_prior(prior: Subspace) -> str:
    """How it was fitted, in a few words: 50 prompts of 'pocket', black336, rank 5."""
    named = f" of {prior.origin['prompts']!r}" if "prompts" in prior.origin else ""
    null = f", {prior.origin['null_image']}" if "null_image" in prior.origin else ""
    return f"{prior.count} prompts{named}{null}, rank {prior.rank}"


@dataclass(frozen=True)
class Priors:
    """The subspaces of a run. Each is fitted once and saved in its folder, so that a resumed run uses the same."""

    folder: Path | None = None  # None: no run; they are in the cache only

    def place(self, prior: Prior) -> str:
        """Where it is saved, or will be: a folder or a hub repository."""
        if prior.folder is not None:
            return prior.folder
        words = (prior.prompts.replace("/", "-"), prior.count, prior.null_image, prior.rank)
        return str((self.folder or Path()) / "-".join(map(str, words)))

    def has(self, prior: Prior) -> bool:
        """Whether it exists already."""
        if prior.folder is not None:
            return True
        return self.folder is not None and (Path(self.place(prior)) / "subspace.json").is_file()

    def get(self, prior: Prior, model: HasBackbone | None, progress: Progress | None = None) -> Subspace:
        """Read it, or fit it with the model. Without a model it must exist."""
        from mgap.priors.subspace import Subspace

        if model is None or self.has(prior):
            return Subspace.load(self.place(prior))
        subspace = prior.fitted(model, progress)
        if self.folder is not None:
            subspace.save(inside(self.folder, *Path(self.place(prior)).relative_to(self.folder).parts))
        return subspace


def set_name(name: str, *, pocket: bool) -> str:
    """The prompt set's real name: `auto` is the model's own set, and so is `questions` for a pocket model."""
    if name == "auto":
        return "pocket" if pocket else "default"
    return "pocket" if name == "questions" and pocket else name


def prompt_set(name: str, count: int, *, pocket: bool) -> list[str]:
    """The first `count` prompts of a named set or a file, or as many as it has."""
    name = set_name(name, pocket=pocket)
    prompts = PROMPTS.get(name)() if name in PROMPTS else read_prompts(name)
    return list(islice(prompts, count))


def calibration(prior: Prior, *, pocket: bool) -> list[str]:
    """The prompts to fit a prior on. Refuses a source with fewer than `count`."""
    prompts = prompt_set(prior.prompts, prior.count, pocket=pocket)
    if len(prompts) < prior.count:
        raise PromptError(f"a prior from {prior.count} prompts: {prior.prompts} has {len(prompts)}; give a file with more")
    return prompts
