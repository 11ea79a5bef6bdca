"""The work of bench/soak.py: everything that a long-lived process does, one kind at a time.

A kind is a call that asks a few questions and returns how many, including those that must be refused. Pictures come in several
sizes and no two are equal, so no cached picture is ever reused: a cache without a limit shows as growth.
"""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from cases import DESCRIPTION_TOKENS, build_method
from PIL import Image
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

import mgap
from mgap.backbones.base import Backbone
from mgap.decoding.fast.captured_step import forget
from mgap.decoding.prefill_sharing import can_share
from mgap.errors import ImageError, MgapError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.base import Method
from mgap.pocket.benchmark import DEVELOPMENT, scenes
from mgap.pocket.language import DESCRIBE, ask_colour, ask_count, ask_existence
from mgap.pocket.objects import NAMES
from mgap.pocket.scenes import render
from mgap.registry import METHODS
from mgap.types import Mode

SCENES = 30
SIZES = ((1, 1), (2, 1), (1, 2), (0.75, 1), (3, 3))  # times the drawn width and height
NEW = 6  # tokens of a short answer
LONG = 40  # tokens of a description
SLOWEST, TRAPS = "haltrapper", 2  # the slowest method, and how many words it looks for
BATCH, SHARED = 8, 60  # rows

Kind = Callable[[], int]  # does some work and returns the number of questions


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of an answer."""


class Interrupting(StoppingCriteria):
    """Raises at the third token."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _ids: Tensor, *_: object, **__: object) -> Tensor:
        self.count += 1
        if self.count == 3:
            raise Interrupted
        return torch.zeros(len(_ids), dtype=torch.bool, device=_ids.device)


class Album:
    """An endless supply of distinct pictures and questions about them."""

    def __init__(self) -> None:
        drawn = [render(scene) for scene in scenes(DEVELOPMENT, SCENES)]
        self.drawn = [_resized(picture, SIZES[number % len(SIZES)]) for number, picture in enumerate(drawn)]
        self.questions = itertools.cycle([ask(name) for name in NAMES for ask in (ask_existence, ask_colour, ask_count)])
        self.count = 0

    def picture(self) -> Image.Image:
        """The next picture, made distinct by a counter in a few pixels."""
        picture = self.drawn[self.count % len(self.drawn)].copy()
        for place, value in enumerate(self.count.to_bytes(4, "big")):  # blocks, to survive downscaling
            picture.paste((value, 255 - value, value), (8 * place, 0, 8 * place + 8, 8))
        self.count += 1
        return picture

    def rows(self, count: int, each: int = 1) -> tuple[list[Image.Image], list[str]]:
        """`count` questions, with `each` of them about the same picture."""
        pictures = [self.picture() for _ in range(-(-count // each))]
        return [pictures[row // each] for row in range(count)], list(itertools.islice(self.questions, count))

    def one(self) -> tuple[Image.Image, str]:
        (picture,), (question,) = self.rows(1)
        return picture, question


def _resized(picture: Image.Image, by: tuple[float, float]) -> Image.Image:
    return picture.resize((round(picture.width * by[0]), round(picture.height * by[1])))


class Work:
    """Every kind of work on one model."""

    def __init__(self, model: mgap.Model) -> None:
        self.model, self.album = model, Album()
        self.prior = mgap.Subspace.fit(model, mgap.default_prompts())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # random priors cause them
            built = {name: build_method(name, model, self.prior) for name in METHODS.names()}
        self.methods = {name: method for name, method in built.items() if method is not None}
        self.methods["haltrapper"] = mgap.HalTrapper(n=TRAPS, length=DESCRIPTION_TOKENS)

    def kinds(self) -> dict[str, Kind]:
        """Kinds of work by name; every registered method is one, here or in `seldom`."""
        kinds: dict[str, Kind] = {
            "single": self.single,
            "no picture": self.blind,
            "batch": self.batch,
            "shared prefill": self.shared,
            "stream": self.stream,
            "stream left": self.leave_stream,
            "sampling": self.sample,
            "beams": self.beams,
            "static": self.static,
            "stacks": self.stacks,
            "own generate": self.own_generate,
            "refused": self.refused,
            "interrupted": self.interrupted,
        }
        return kinds | {name: self._method(method) for name, method in self.methods.items() if name != SLOWEST}

    def seldom(self) -> dict[str, Kind]:
        """Kinds of work that take seconds, done in some rounds only."""
        slowest = self._method(self.methods[SLOWEST])
        return {"fitting": self.fit, "loading": self.load, "compiled": self.compiled, SLOWEST: slowest}

    def single(self) -> int:
        for _ in range(4):
            self.model.answer(*self.album.one(), max_new_tokens=NEW)
        self.model.answer(self.album.picture(), DESCRIBE[0], max_new_tokens=LONG)
        return 5

    def blind(self) -> int:
        self.model.answer(None, self.album.one()[1], max_new_tokens=NEW)
        return 1

    def batch(self) -> int:
        count = 2 * BATCH + 3  # the last batch is smaller
        return _count(self.model.answers(*self.album.rows(count), batch_size=BATCH, max_new_tokens=NEW))

    def shared(self) -> int:
        rows = self.album.rows(10 * SHARED, each=6)
        return _count(self.model.answers(*rows, batch_size=SHARED, prefill="shared", max_new_tokens=NEW))

    def stream(self) -> int:
        return _count(["".join(self.model.stream(*self.album.one(), max_new_tokens=NEW)) for _ in range(2)])

    def leave_stream(self) -> int:
        """Abandon streams half-way: closed, or dropped without closing."""
        for stream in (self._start_stream(), self._start_stream(mgap.VCD())):
            stream.close()  # type: ignore[attr-defined]  # a generator, as `stream` makes it
        next(iter(self._start_stream()))
        gc.collect()
        return 3

    def _start_stream(self, method: Method | None = None) -> Iterator[str]:
        def generate() -> Iterator[str]:
            if method is None:
                yield from self.model.stream(self.album.picture(), DESCRIBE[0], max_new_tokens=LONG)
                return
            with self.model.using(method):
                yield from self.model.stream(self.album.picture(), DESCRIBE[0], max_new_tokens=LONG)

        stream = generate()
        next(stream)
        return stream

    def sample(self) -> int:
        how = {"sample": True, "temperature": 0.8, "top_p": 0.9, "seed": self.album.count, "max_new_tokens": NEW}
        self.model.answer(*self.album.one(), **how)
        self.model.answer(*self.album.one(), num_return_sequences=3, **how)
        return 4

    def beams(self) -> int:
        self.model.answer(*self.album.one(), num_beams=3, max_new_tokens=NEW)
        with self.model.using(self.methods["mgap"]):
            self.model.answer(*self.album.one(), num_beams=3, num_return_sequences=2, trace=True, max_new_tokens=NEW)
        return 3

    def static(self) -> int:
        """Static steps in more shapes than the cache of captured steps holds."""
        count = 0
        for rows in (1, 2, 3, 5, 6, 7):
            answers = self.model.answers(*self.album.rows(rows), batch_size=rows, static_cache=True, max_new_tokens=NEW)
            count += _count(answers)
        with self.model.using(mgap.VCD(), self.methods["mgap"]):
            self.model.answer(*self.album.one(), static_cache=True, max_new_tokens=NEW)
        return count + 1

    def stacks(self) -> int:
        for branch in (mgap.VCD(), mgap.Blind()):
            with self.model.using(branch, self.methods["mgap"]):
                self.model.answer(*self.album.one(), max_new_tokens=NEW)
        return 2

    def own_generate(self) -> int:
        """Attach a method to a transformers model and call its own generate."""
        backbone = self.model.backbone
        for method in (self.methods["mgap"], mgap.M3ID()):
            with mgap.attach(backbone.model, method):
                for more in ({}, {"num_beams": 2}):
                    picture, question = self.album.one()
                    backbone.model.generate(
                        **backbone.encode([picture], [question]), max_new_tokens=NEW, do_sample=False, **more
                    )
        left = mgap.attach(backbone.model, self.methods["mgap"])
        left.detach()
        return 4

    def refused(self) -> int:
        """Calls that must raise, inside and outside a method."""
        picture, question = self.album.one()
        model = self.model
        with model.using(self.methods["vcd"]):
            _refuses(UnsupportedDecoding, lambda: model.answer(picture, question, prompt_lookup=2))
            _refuses(SettingError, lambda: mgap.attach(model, self.methods["icd"]))
            _refuses(UnsupportedDecoding, lambda: _count(model.answers([picture], [question], prefill="shared")))
        _refuses(UnsupportedDecoding, lambda: self._under("opera", lambda: next(model.stream(picture, question))))
        _refuses(SettingError, lambda: model.answer(picture, question, trace=True))
        _refuses(SettingError, lambda: model.answer(picture, question, temperature=2.0))
        _refuses(PromptError, lambda: model.answer(picture, " "))
        _refuses(ImageError, lambda: model.answer("no/such/picture.jpg", question))
        return 8

    def _under(self, name: str, call: Callable[[], object]) -> None:
        with self.model.using(self.methods[name]):
            call()

    def interrupted(self) -> int:
        """Ctrl-C at the third token, under methods of several kinds."""
        backbone = self.model.backbone
        for name in ("mgap", "vcd", "dola", "pai", "blind"):
            picture, question = self.album.one()
            inputs = backbone.encode([picture], [question])
            stop = StoppingCriteriaList([Interrupting()])
            try:
                with self.model.using(self.methods[name]):
                    backbone.model.generate(**inputs, max_new_tokens=NEW, do_sample=False, stopping_criteria=stop)
            except Interrupted:
                continue
            raise RuntimeError(f"an answer under {name} ended before it could be interrupted")
        return 5

    def _method(self, method: Method) -> Kind:
        """Enter and leave a method: a batch, an answer with its trace, and, where possible, a shared prefill."""

        def use() -> int:
            count, beams = 0, {} if Mode.GREEDY in method.modes else {"num_beams": getattr(method, "beams", 2)}
            with self.model.using(method):
                if Mode.BATCH in method.modes:
                    count += _count(self.model.answers(*self.album.rows(4), batch_size=4, max_new_tokens=NEW, **beams))
                self.model.answer(*self.album.one(), trace=True, max_new_tokens=NEW, **beams)
                if not can_share(self.model, method):
                    rows = self.album.rows(SHARED, each=6)
                    count += _count(self.model.answers(*rows, batch_size=SHARED, prefill="shared", max_new_tokens=NEW))
            return count + 1

        return use

    def fit(self) -> int:
        mgap.Subspace.fit(self.model, mgap.default_prompts()[:8], rank=2)
        return 8

    def load(self) -> int:
        """Load a second model, use it and drop it."""
        other = mgap.load(self.model.backbone.name)
        with other.using(self.methods["mgap"]):
            other.answer(*self.album.one(), static_cache=True, max_new_tokens=4)
        other.answer(*self.album.one(), max_new_tokens=4)
        return 2

    def compiled(self) -> int:
        """Compile once more. torch keeps the compiler's memory; this shows whether each compilation adds to it."""
        self.model.answer(*self.album.one(), compile=True, max_new_tokens=NEW)
        forget(self.model.backbone.model)
        torch.compiler.reset()
        return 1


def hooks_of(model: mgap.Model) -> int:
    """The number of hooks on all modules of the model, whoever set them."""
    parts = Backbone.of(model).model.modules()
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in parts)


def _refuses(kind: type[MgapError], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise RuntimeError(f"what should have been refused with {kind.__name__} was done")


def _count(items: Iterator[object] | Sequence[object]) -> int:
    return sum(1 for _ in items)
