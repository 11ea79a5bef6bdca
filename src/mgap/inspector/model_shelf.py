"""The models of the page by name: each is loaded once, by whoever asks first, with its prior and a bank of its plain states."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from mgap.backbones.loading import check_device, load_config
from mgap.decoding.model import Model, load
from mgap.diagnosis.landscape import Landscape
from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.priors.prior_plan import Prior
from mgap.priors.subspace import Subspace
from mgap.registry import EMBEDDED, locate

RANK = 10  # of a prior that is fitted here: the default's five directions, and five more for the slider
NULL_IMAGE, AUTO = Prior().null_image, Prior().prompts
SCENES = 24  # of the pocket world, development ones, that questions of a bank are about
DESCRIBED = 2.5  # times as many are described
QUESTION_TOKENS, CAPTION_TOKENS, BATCH = 8, 40, 32


@dataclass(eq=False)
class Loaded:
    """A model that is ready, and what its answers are held against. Whoever runs it takes its turn."""

    name: str
    model: Model
    prior: Subspace
    manifold: Manifold | None = None
    bank: Bank | None = None
    why_no_bank: str = ""  # a sentence, where there is none
    prior_folder: str = ""  # where the prior was read from; "": it was fitted here
    turn: threading.Lock = field(default_factory=threading.Lock)  # not reentrant: a streamed answer changes threads
    _priors: dict[tuple[str, str], Subspace] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._priors[NULL_IMAGE, AUTO] = self.prior

    @cached_property
    def landscape(self) -> Landscape | None:
        """The bank as it is drawn; None without one."""
        return None if self.bank is None or self.manifold is None else Landscape.of(self.bank, self.manifold)

    def prior_of(self, null_image: str, prompts: str = AUTO, told: Progress | None = None) -> Subspace:
        """The prior of another null image or other prompts: fitted once, then kept. Call it inside `with loaded.turn`.

        The usual null image with the model's own prompts is the prior that the page began with, also where that was given.
        """
        key = null_image, prompts
        if key not in self._priors:
            if not self.turn.locked():
                raise RuntimeError(f"prior_of({null_image!r}) runs {self.name}: take its turn first")
            self._priors[key] = Prior(self.prior.rank, prompts=prompts, null_image=null_image).fitted(self.model, told)
        return self._priors[key]


class ModelShelf:
    """What may be asked for. Names, device, a given prior and bank are checked when it is made, before weights are loaded."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        device: str | None = None,
        dtype: str = "auto",
        trust_remote_code: bool = False,
        revision: str | None = None,
        prior: str | PathLike[str] | None = None,
        bank: str | PathLike[str] | None = None,
        scenes: int = SCENES,
    ) -> None:
        """`scenes` is how many make a pocket model's bank."""
        self.names = tuple(dict.fromkeys(names))
        if not self.names:
            raise SettingError("no model to inspect: give one, such as --model pocket/llava")
        for option, value in {"prior": prior, "bank": bank, "revision": revision}.items():
            if value is not None and len(self.names) > 1:
                raise SettingError(
                    f"--{option} {value} belongs to one model, and {len(self.names)} are given ({', '.join(self.names)}): "
                    "give one --model with it"
                )
        self._where: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        self._how: dict[str, Any] = {"device": device, "dtype": dtype, **self._where}
        check_device(device)
        for name in self.names:
            load_config(locate(name, revision), **self._where)
        self._prior = None if prior is None else self._read_prior(prior)
        self.prior_folder = "" if prior is None else str(prior)
        self._bank = None if bank is None else self._read_bank(bank)
        self._scenes = scenes
        self._loaded: dict[str, Loaded] = {}
        self._locks = {name: threading.Lock() for name in self.names}

    def _read_prior(self, folder: str | PathLike[str]) -> Subspace:
        from mgap.serving.launch import require_model  # a configuration tells most mistakes

        found = Subspace.load(folder)
        require_model(found, self.names[0], **self._where)
        return found

    def _read_bank(self, folder: str | PathLike[str]) -> Bank:
        found = Bank.load(folder)
        if not found.steps.any():
            raise SettingError(
                f"{folder}: a bank of first tokens only, and departure is shown for every token of an answer; "
                f"`{_collecting(self.names[0])}` writes one that suits"
            )
        return found

    def get(self, name: str, told: Progress | None = None) -> Loaded:
        """The model of this name, ready. The first to ask loads it, and hears how far that is; others wait for it."""
        if name not in self._locks:
            raise SettingError(f"{name!r} is not offered here: choose from {', '.join(self.names)}")
        if name in self._loaded:
            return self._loaded[name]
        tell = told or (lambda *_: None)
        if self._locks[name].locked():
            tell(f"waiting for {name}, which is being loaded", 0, 1)
        with self._locks[name]:
            if name not in self._loaded:  # else somebody was quicker
                self._loaded[name] = self._load(name, tell)
            return self._loaded[name]

    def _load(self, name: str, tell: Progress) -> Loaded:
        tell(f"loading {name}", 0, 1)
        model = load(name, **self._how)
        tell(f"loading {name}", 1, 1)
        if self._prior is not None:
            self._prior.require(model.backbone)
        if self._bank is not None:
            self._bank.require(model.backbone)
        prior = self._prior or Prior(RANK).fitted(model, tell)
        bank = pocket_bank(model, self._scenes, tell) if self._bank is None and name in EMBEDDED else self._bank
        if bank is None:
            return Loaded(name, model, prior, why_no_bank=how_to_get_a_bank(name), prior_folder=self.prior_folder)
        manifold = Manifold.of(bank, device=model.backbone.device, progress=tell)
        return Loaded(name, model, prior, manifold, bank, prior_folder=self.prior_folder)


def pocket_bank(model: Model, scenes: int = SCENES, told: Progress | None = None) -> Bank:
    """Every state of plain answers about development scenes: to yes/no questions, on colours and numbers, and descriptions.

    Descriptions are of more scenes, as their words vary more. A row is a picture: other answers about it would be too near.
    """
    from mgap.pocket.benchmark import DEVELOPMENT, pope
    from mgap.pocket.language import DESCRIBE, ask_colour, ask_count
    from mgap.pocket.scenes import render

    questions = list(pope("adversarial", DEVELOPMENT, round(scenes * DESCRIBED)))
    shown = {question.scene.seed: question.scene for question in questions}
    some = list(shown)[:scenes]
    yes_no = {(question.scene.seed, question.text) for question in questions if question.scene.seed in some}
    others = {(seed, ask(name)) for seed in some for name in shown[seed].names for ask in (ask_colour, ask_count)}
    asked = sorted(yes_no | others)  # a picture's together
    described = [(seed, wording) for seed in shown for wording in DESCRIBE[:2]]
    total = len(asked) + len(described)

    def collect(rows: Sequence[tuple[int, str]], max_new_tokens: int, before: int) -> tuple[Bank, Tensor]:
        """The states, and which picture each is of."""
        report = None if told is None else lambda done: told("states of plain answers", before + done, total)
        drawn = lru_cache(maxsize=1)(lambda seed: render(shown[seed]))
        images, prompts = (drawn(seed) for seed, _ in rows), [prompt for _, prompt in rows]
        bank = Bank.collect(model, images, prompts, batch_size=BATCH, max_new_tokens=max_new_tokens, progress=report)
        return bank, torch.tensor([list(shown).index(seed) for seed, _ in rows])[bank.rows.long()]

    (short, of_short), (long, of_long) = collect(asked, QUESTION_TOKENS, 0), collect(described, CAPTION_TOKENS, len(asked))
    return Bank.of(
        torch.cat([*short.parts, *long.parts]),
        rows=torch.cat([of_short, of_long]),
        steps=torch.cat([short.steps, long.steps]),
        tokens=torch.cat([short.tokens, long.tokens]),
        identity=short.identity,
        origin={"scenes": list(shown), "questions": short.origin, "descriptions": long.origin},
    )


def how_to_get_a_bank(name: str) -> str:
    """What to tell somebody who misses departures."""
    return (
        f"Departure is not shown: there is no bank of plain states of {name}. `{_collecting(name)}` writes one to "
        "runs/departure/bank; then start the inspector with --bank runs/departure/bank."
    )


def _collecting(name: str) -> str:
    return f"mgap run departure-captions --model {name} --images FOLDER --out runs/departure"
