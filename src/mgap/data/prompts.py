"""Calibration prompts: the default set that ships with the package, or a text file with one prompt a line."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from importlib.resources import files
from itertools import product
from os import PathLike
from pathlib import Path

from mgap.data.objects import Vocabulary
from mgap.errors import PromptError

EXISTENCE = (  # none is a benchmark's
    "Do you notice {} anywhere in this picture?",
    "Does this photo show {}?",
    "Would you say that {} can be seen here?",
    "Tell me whether the picture contains {}.",
)

COLOUR = (
    "Which color does the {} in the photo have?",
    "Say what color the {} is.",
    "What would you call the color of the {}?",
    "The {} in this picture: what is its color?",
)
REQUESTS = (  # {0} is the picture, {1} how to put it
    "Describe {0} {1}.",
    "Tell me {1} what {0} shows.",
    "Explain {1} what one can see in {0}.",
    "Write {1} about {0}.",
    "What is going on in {0}? Answer {1}.",
)
_SHOWN = ("this photo", "the picture", "the scene", "this photograph", "this view")
_PUT = ("in one sentence", "in a few words", "at length", "in plain words", "for a child", "like a reporter", "in short lines",
        "as exactly as you can", "for somebody who cannot see it", "in two sentences")  # fmt: skip


def check_prompt(prompt: str, where: str = "the prompt") -> str:
    if not prompt.strip():
        raise PromptError(f"{where} is empty: write a question or an instruction")
    return prompt


def default_prompts() -> list[str]:
    """Questions on existence, colour, count and relation, and requests to describe; none is a benchmark's."""
    return files("mgap.data").joinpath("calibration.txt").read_text(encoding="utf-8").splitlines()


def existence_prompts(words: str = "coco") -> Iterator[str]:
    """Questions after every thing of a vocabulary, in one wording after the other; for priors from many prompts."""
    for wording in EXISTENCE:
        for name in Vocabulary.of(words).names:
            yield wording.format(f"{'an' if name[0] in 'aeiou' else 'a'} {name}")


def colour_prompts(words: str = "coco") -> Iterator[str]:
    """Questions after the colour of every thing of a vocabulary, in one wording after the other."""
    for wording in COLOUR:
        for name in Vocabulary.of(words).names:
            yield wording.format(name)


def caption_prompts() -> Iterator[str]:
    """Requests to describe, mixed so that a few of them differ in every way; always the same."""
    mixed = list(product(REQUESTS, _SHOWN, _PUT))
    random.Random(0).shuffle(mixed)
    for wording, shown, put in mixed:
        yield wording.format(shown, put)


def read_prompts(path: str | PathLike[str]) -> Iterator[str]:
    """Yield the prompts of a UTF-8 text file, one a line, without holding the file in memory."""
    path = Path(path)
    if not os.path.isfile(path):  # unlike Path's, false for a name that is too long
        raise PromptError(f"{path}: no such file of prompts; write one prompt a line")
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                yield check_prompt(line.rstrip("\n"), f"{path} line {number}")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} line {number + 1}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    if number == 0:
        raise PromptError(f"{path} is empty: write one prompt a line")
