"""Prompts from users: never empty; in a text file, one per line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from mgap.errors import PromptError
from mgap.io.regular_files import NotRegular, regular
from mgap.io.strict_json import lone_surrogate


def check_prompt(prompt: str, where: str = "the prompt") -> str:
    if not prompt.strip():
        raise PromptError(f"{where} is empty: write a question or an instruction")
    if why := lone_surrogate(prompt):
        raise PromptError(f"{where}: {why}; write the character itself")
    return prompt


def read_prompts(path: str | PathLike[str]) -> Iterator[str]:
    """Yield the prompts of a UTF-8 text file, one per line, without loading the whole file."""
    path = Path(path)
    if not os.path.exists(path):  # Path.exists raises on a name that is too long
        raise PromptError(f"{path}: no such file of prompts; write one prompt a line")
    number = 0
    try:
        with open(path, encoding="utf-8-sig", opener=regular) as lines:
            for number, line in enumerate(lines, start=1):
                yield check_prompt(line.rstrip("\n"), f"{path} line {number}")
    except NotRegular as error:
        raise PromptError(str(error)) from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} line {number + 1}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    if number == 0:
        raise PromptError(f"{path} is empty: write one prompt a line")
