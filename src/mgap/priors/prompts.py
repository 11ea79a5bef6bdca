"""Calibration prompts: the default set that ships with the package, and longer sets of one kind each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.resources import files
from itertools import product

from mgap.priors.object_words import Vocabulary

EXISTENCE = (  # no benchmark uses these
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
REQUESTS = (  # {0} is the picture, {1} the manner
    "Describe {0} {1}.",
    "Tell me {1} what {0} shows.",
    "Explain {1} what one can see in {0}.",
    "Write {1} about {0}.",
    "What is going on in {0}? Answer {1}.",
)
_PICTURES = ("this photo", "the picture", "the scene", "this photograph", "this view")
_MANNERS = ("in one sentence", "in a few words", "at length", "in plain words", "for a child", "like a reporter",
            "in short lines", "as exactly as you can", "for somebody who cannot see it", "in two sentences")  # fmt: skip


def default_prompts() -> list[str]:
    """Questions on existence, colour, count and relation, and requests to describe; no benchmark uses them."""
    return files("mgap.priors").joinpath("calibration.txt").read_text(encoding="utf-8").splitlines()


def existence_prompts(words: str = "coco") -> Iterator[str]:
    """Existence questions for every object of a vocabulary, one wording after the other; for priors from many prompts."""
    for wording in EXISTENCE:
        for name in Vocabulary.of(words).names:
            yield wording.format(f"{'an' if name[0] in 'aeiou' else 'a'} {name}")


def colour_prompts(words: str = "coco") -> Iterator[str]:
    """Questions about the colour of every object of a vocabulary, one wording after the other."""
    for wording in COLOUR:
        for name in Vocabulary.of(words).names:
            yield wording.format(name)


def caption_prompts() -> Iterator[str]:
    """Requests to describe, shuffled with a fixed seed so that even the first few vary in every way."""
    combinations = list(product(REQUESTS, _PICTURES, _MANNERS))
    random.Random(0).shuffle(combinations)
    for wording, picture, manner in combinations:
        yield wording.format(picture, manner)
