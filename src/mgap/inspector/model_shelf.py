"""The page's models by name. Each is loaded once, on first use, with its prior and a bank of its plain states."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import torch

from mgap.backbones.loading import check_device, load_config
from mgap.decoding.model import Model, load
from mgap.diagnosis.landscape import Landscape
from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.priors.prior_plan import Prior
from mgap.priors.subspace import Subspace
from mgap.registry import POCKET_MODELS, locate

RANK = 10  # of a prior fitted here: the default's five directions, and five more for the slider
NULL_IMAGE, AUTO = Prior().null_image, Prior().prompts
SCENES = 24  # development scenes of the pocket world that a bank's questions are about
CAPTION_SCENES_FACTOR = 2.5  # times as many scenes are described
QUESTION_TOKENS, CAPTION_TOKENS, BATCH = 8, 40, 32


@dataclass(eq=False)
class Loaded:
    """A loaded model with its prior and bank. Hold `lock` while running it."""

    name: str
    model: Model
    prior: Subspace
    manifold: Manifold | None = None
    bank: Bank | None = None
    why_no_bank: str = ""  # a sentence, if there is none
    prior_folder: str = ""  # the prior's folder; "": it was fitted here
    lock: threading.Lock = field(default_factory=threading.Lock)  # not reentrant: a streamed answer changes threads
    _priors: dict[tuple[str, str], Subspace] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._priors[NULL_IMAGE, AUTO] = self.prior

    @cached_property
    def landscape(self) -> Landscape | None:
        """The bank as plots show it; None without one."""
        return None if self.bank is None or self.manifold is None else Landscape.of(self.bank, self.manifold)

    def prior_of(self, null_image: str, prompts: str = AUTO, progress: Progress | None = None) -> Subspace:
        """The prior of another null image or other prompts, fitted once and cached. Call it inside `with loaded.lock`.

        The default null image with the model's own prompts gives the page's first prior, even if that was loaded.
        """
        key = null_image, prompts
        if key not in self._priors:
            if not self.lock.locked():
                raise RuntimeError(f"prior_of({null_image!r}) runs {self.name}: acquire its lock first")
            self._priors[key] = Prior(self.prior.rank, prompts=prompts, null_image=null_image).fitted(self.model, progress)
        return self._priors[key]


class ModelShelf:
    """The models on offer. Names, device, prior and bank are checked on construction, before weights are loaded."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        device: str | None = None,
        dtype: str = "auto",
        trust_remote_code: bool = False,
        revision: str | None = None,
        template: str | None = None,
        prior: str | PathLike[str] | None = None,
        bank: str | PathLike[str] | None = None,
        scenes: int = SCENES,
    ) -> None:
        """`scenes`: how many make up a pocket model's bank."""
        self.names = tuple(dict.fromkeys(names))
        if not self.names:
            raise SettingError("no model to inspect: give one, such as --model pocket/llava")
        for option, value in {"prior": prior, "bank": bank, "revision": revision, "template": template}.items():
            if value is not None and len(self.names) > 1:
                raise SettingError(
                    f"--{option} {value} belongs to one model, and {len(self.names)} are given ({', '.join(self.names)}): "
                    "give one --model with it"
                )
        self._source: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        self._load_options: dict[str, Any] = {"device": device, "dtype": dtype, "template": template, **self._source}
        check_device(device)
        for name in self.names:
            load_config(locate(name, revision), **self._source)
        self._prior = None if prior is None else self._read_prior(prior)
        self.prior_folder = "" if prior is None else str(prior)
        self._bank = None if bank is None else self._read_bank(bank)
        self._scenes = scenes
        self._loaded: dict[str, Loaded] = {}
        self._locks = {name: threading.Lock() for name in self.names}

    def _read_prior(self, folder: str | PathLike[str]) -> Subspace:
        from mgap.serving.launch import require_model  # the configuration reveals most mistakes

        prior = Subspace.load(folder)
        require_model(prior, self.names[0], **self._source)
        return prior

    def _read_bank(self, folder: str | PathLike[str]) -> Bank:
        bank = Bank.load(folder)
        if not bank.steps.any():
            raise SettingError(
                f"{folder}: a bank of first tokens only, and departure is shown for every token of an answer; "
                f"`{_bank_command(self.names[0])}` writes one that suits"
            )
        return bank

    def get(self, name: str, progress: Progress | None = None) -> Loaded:
        """The model of this name, loaded. The first caller loads it and gets the progress; others wait."""
        if name not in self._locks:
            raise SettingError(f"{name!r} is not offered here: choose from {', '.join(self.names)}")
        if name in self._loaded:
            return self._loaded[name]
        progress = progress or (lambda *_: None)
        if self._locks[name].locked():
            progress(f"waiting for {name}, which is being loaded", 0, 1)
        with self._locks[name]:
            if name not in self._loaded:  # else another thread loaded it
                self._loaded[name] = self._load(name, progress)
            return self._loaded[name]

    def _load(self, name: str, progress: Progress) -> Loaded:
        progress(f"loading {name}", 0, 1)
        model = load(name, **self._load_options)
        progress(f"loading {name}", 1, 1)
        if self._prior is not None:
            self._prior.require(model.backbone)
        if self._bank is not None:
            self._bank.require(model.backbone)
        prior = self._prior or Prior(RANK).fitted(model, progress)
        bank = pocket_bank(model, self._scenes, progress) if self._bank is None and name in POCKET_MODELS else self._bank
        if bank is None:
            return Loaded(name, model, prior, why_no_bank=missing_bank_hint(name), prior_folder=self.prior_folder)
        manifold = Manifold.of(bank, device=model.backbone.device, progress=progress)
        return Loaded(name, model, prior, manifold, bank, prior_folder=self.prior_folder)


def pocket_bank(model: Model, scenes: int = SCENES, progress: Progress | None = None) -> Bank:
    """A bank of all states of plain answers about development scenes: yes/no, colours, numbers and descriptions.

    Descriptions cover more scenes, because their words vary more. A row is a picture: other answers about it would be too near.
    """
    from mgap.pocket.benchmark import DEVELOPMENT, pope
    from mgap.pocket.language import DESCRIBE, ask_colour, ask_count
    from mgap.pocket.scenes import render

    questions = list(pope("adversarial", DEVELOPMENT, round(scenes * CAPTION_SCENES_FACTOR)))
    by_seed = {question.scene.seed: question.scene for question in questions}
    asked_about = list(by_seed)[:scenes]
    yes_no = {(question.scene.seed, question.text) for question in questions if question.scene.seed in asked_about}
    others = {(seed, ask(name)) for seed in asked_about for name in by_seed[seed].names for ask in (ask_colour, ask_count)}
    short_rows = sorted(yes_no | others)  # by picture
    caption_rows = [(seed, wording) for seed in by_seed for wording in DESCRIBE[:2]]
    total = len(short_rows) + len(caption_rows)

    def collect(rows: Sequence[tuple[int, str]], max_new_tokens: int, before: int) -> Bank:
        report = None if progress is None else lambda done: progress("states of plain answers", before + done, total)
        how: dict[str, Any] = {"batch_size": BATCH, "max_new_tokens": max_new_tokens, "progress": report}
        return Bank.collect_by_picture(model, rows, lambda seed: render(by_seed[seed]), **how)

    short, long = collect(short_rows, QUESTION_TOKENS, 0), collect(caption_rows, CAPTION_TOKENS, len(short_rows))
    return Bank.of(
        torch.cat([*short.parts, *long.parts]),
        rows=torch.cat([short.rows, long.rows]),  # both begin with the same pictures, in the same order
        steps=torch.cat([short.steps, long.steps]),
        tokens=torch.cat([short.tokens, long.tokens]),
        identity=short.identity,
        origin={"scenes": list(by_seed), "questions": short.origin, "descriptions": long.origin},
    )


def missing_bank_hint(name: str) -> str:
    """How to get departures for a model without a bank."""
    return (
        f"Departure is not shown: there is no bank of plain states of {name}. `{_bank_command(name)}` writes one to "
        "runs/departure/bank; then start the inspector with --bank runs/departure/bank."
    )


def _bank_command(name: str) -> str:
    return f"mgap run departure-captions --model {name} --images FOLDER --out runs/departure"
