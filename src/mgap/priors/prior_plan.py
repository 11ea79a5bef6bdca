"""How a method's prior subspace is made: from which prompts, with which null image, or from which folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgap.errors import PromptError, SettingError
from mgap.io.progress import Progress
from mgap.io.prompt_files import read_prompts
from mgap.io.typed_json import typed
from mgap.registry import PROMPTS

if TYPE_CHECKING:
    from mgap.backbones.base import HasBackbone
    from mgap.priors.subspace import Subspace

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

    def get(self, prior: Prior, model: HasBackbone | None, told: Progress | None = None) -> Subspace:
        """Read, or fitted with the model; without one, it must be there."""
        from mgap.priors.subspace import Subspace

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
    if name == "auto":
        name = "pocket" if pocket else "default"
    elif name == "questions" and pocket:
        name = "pocket"
    found = PROMPTS.get(name)() if name in PROMPTS else read_prompts(name)
    return list(islice(found, count))


def calibration(prior: Prior, *, pocket: bool) -> list[str]:
    """The prompts that a prior is fitted on; refuses a source with fewer than were asked for."""
    prompts = prompt_set(prior.prompts, prior.count, pocket=pocket)
    if len(prompts) < prior.count:
        raise PromptError(f"a prior from {prior.count} prompts: {prior.prompts} has {len(prompts)}; give a file with more")
    return prompts
