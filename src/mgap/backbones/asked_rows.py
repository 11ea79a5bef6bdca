"""What is being asked: the picture, its name and the prompt's text for each row that a model is answering.

Methods see encoded rows: tokens and normalised pixels. A method that needs the picture itself, or the text of the prompt, finds
them here while `Model.answer` and its like, or a run, generate. In a `generate` of one's own nobody has noted anything.

    with asking(model, [Asked(picture, "Is there a dog?")]):  # around the generation
        ...
    asked_rows(model, rows)                                   # inside a method's hook

A note belongs to the thread that generates, and to one model: a method may ask another model meanwhile, or the same one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial

from PIL import Image
from torch import nn

from mgap.backbones.prepared_pictures import Prepared, Shown
from mgap.errors import ImageError, PromptError, UnsupportedDecoding
from mgap.io.images import ImageSource, Opener, open_image


@dataclass(frozen=True, eq=False)
class Asked:
    """One row: a prompt, and the picture that it asks about."""

    source: ImageSource | Callable[[], ImageSource] | None  # the picture, or what returns it; None: the row shows none
    prompt: str  # before the chat template
    name: str | None = None  # of the picture: the benchmark's, or its file's without folders

    @classmethod
    def of(cls, image: Shown, prompt: str) -> Asked:
        """The row that `Model.answer(image, prompt)` answers."""
        if isinstance(image, Prepared):
            return cls(_refuse_prepared, prompt)
        if isinstance(image, list | tuple):
            return cls.of(image[0], prompt) if len(image) == 1 else cls(_refuse_several, prompt)
        return cls(image, prompt, os.path.basename(image) if isinstance(image, str | os.PathLike) else None)

    @classmethod
    def by_name(cls, name: Hashable, prompt: str, picture: Opener) -> Asked:
        """A benchmark's row: `picture` opens the picture of this name, once somebody wants to see it; "" shows none."""
        if name == "":
            return cls(None, prompt)
        return cls(partial(picture, name), prompt, name if isinstance(name, str) else None)

    @property
    def has_picture(self) -> bool:
        return self.source is not None

    @cached_property
    def picture(self) -> Image.Image:
        """The picture, upright and in RGB; opened here, and kept."""
        if self.source is None:
            raise PromptError(f"no picture is given with {self.prompt!r:.60}")
        source = self.source() if callable(self.source) else self.source
        return open_image(source, self.name if isinstance(source, Image.Image) else None)


_noted: ContextVar[tuple[nn.Module, tuple[Asked, ...]] | None] = ContextVar("mgap_asked", default=None)


@contextmanager
def asking(model: nn.Module, rows: Sequence[Asked]) -> Iterator[None]:
    """Inside the block the model generates answers to these rows, in their order."""
    token = _noted.set((model, tuple(rows)))
    try:
        yield
    finally:
        _noted.reset(token)


def asked_rows(model: nn.Module, count: int) -> tuple[Asked, ...]:
    """One for each of the `count` rows of the model's forward; empty if nobody has noted what is asked.

    Beams and several answers repeat each row in place.
    """
    noted = _noted.get()
    if noted is None or noted[0] is not model or not noted[1]:
        return ()
    rows = noted[1]
    times, rest = divmod(count, len(rows))
    if rest or not times:
        raise UnsupportedDecoding(f"{len(rows)} rows are asked, and the model reads {count}: they cannot be told apart")
    return tuple(row for row in rows for _ in range(times))


def _refuse_several() -> ImageSource:
    raise PromptError("this prompt shows several pictures, and one is meant: give one picture a row")


def _refuse_prepared() -> ImageSource:
    raise ImageError("this picture was prepared for the model, and its own pixels are gone: give the picture, or its file")
