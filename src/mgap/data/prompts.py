"""Calibration prompts: the default set that ships with the package, or a text file with one prompt a line."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
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


def read_prompts(path: str | PathLike[str]) -> Iterator[str]:
    """Yield the prompts of a UTF-8 text file, one a line, without holding the file in memory."""
    path = Path(path)
    if not path.is_file():
        raise PromptError(f"{path}: no such file of prompts; write one prompt a line")
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                yield check_prompt(line.rstrip("\n"), f"{path} line {number}")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} line {number + 1}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    if number == 0:
        raise PromptError(f"{path} is empty: write one prompt a line")
