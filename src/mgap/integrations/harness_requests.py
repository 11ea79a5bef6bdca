"""Translate an evaluation harness's generation options to `Decoding`. Raises if an option cannot be honoured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mgap.errors import UnsupportedRequest
from mgap.types import Decoding

_INTEGERS = ("max_new_tokens", "num_beams", "top_k", "seed")  # a harness may write 16.0
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_KEYS = ("until", "do_sample", *_NUMBERS, *_INTEGERS)


@dataclass(frozen=True)
class Request:
    """The options for one answer."""

    decoding: Decoding
    until: tuple[str, ...] = ()  # stop words: the answer ends before the first of them

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Request:
        """From transformers' names, as lmms-eval's tasks write them. None means not given.

        A temperature of 0 is greedy decoding. top_p, top_k and min_p are then ignored: they never remove the likeliest token.
        """
        given = {key: value for key, value in options.items() if value is not None}
        for key in given:
            if key not in _KEYS:
                raise UnsupportedRequest(
                    f"the task sets {key!r:.40} to {given[key]!r:.60}, which is not done here: choose from {', '.join(_KEYS)}, "
                    "or copy the task without it"
                )
        decoding: dict[str, Any] = {key: _integer(key, given[key]) for key in _INTEGERS if key in given}
        decoding |= {key: _number(key, given[key]) for key in _NUMBERS if key in given}
        decoding["sample"] = _samples(given)
        if not decoding["sample"]:
            for key in ("temperature", "top_p", "top_k", "min_p"):
                decoding.pop(key, None)
        return cls(Decoding.of(**decoding), _until(given.get("until", ())))

    def cut(self, text: str) -> str:
        """The text before the first stop word, as if the model had stopped there."""
        return text[: min((index for word in self.until if (index := text.find(word)) >= 0), default=len(text))].rstrip()


def pictures_of(visuals: Any, where: str) -> list[Image.Image]:
    """The pictures of a request, in order. Raises on anything else."""
    flat: list[Any] = []
    for visual in visuals if isinstance(visuals, Sequence) and not isinstance(visuals, str) else [visuals]:
        flat += visual if isinstance(visual, list | tuple) else [visual]
    pictures = [visual for visual in flat if visual is not None]
    for visual in pictures:
        if not isinstance(visual, Image.Image):
            raise UnsupportedRequest(
                f"{where} comes with {_kind(visual)}: answers here are about pictures; choose another task"
            )
    return pictures


def _kind(visual: Any) -> str:
    if isinstance(visual, str):
        return f"the file {visual!r}, a video or sound"
    return f"{type(visual).__name__}, which is no picture,"


def _samples(given: Mapping[str, Any]) -> bool:
    """Whether to sample: do_sample and temperature both say so, and must agree."""
    is_warm = _number("temperature", given["temperature"]) > 0 if "temperature" in given else None
    if not isinstance(given.get("do_sample", True), bool):
        raise UnsupportedRequest(f"the task sets do_sample={given['do_sample']!r:.40}: give true or false")
    if "do_sample" not in given:
        return bool(is_warm)
    if is_warm is not None and is_warm != given["do_sample"]:
        raise UnsupportedRequest(
            f"the task sets do_sample={given['do_sample']} and temperature={given['temperature']}, a contradiction: "
            "say which is meant with --gen_kwargs temperature=0, or do_sample=True,temperature=..."
        )
    return bool(given["do_sample"])


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63 or value != int(value):
        raise UnsupportedRequest(f"the task sets {name}={value!r:.40}: give a whole number")
    return int(value)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)  # may be text, from a harness's command line
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedRequest(f"the task sets {name}={value!r:.40}: give a number") from None


def _until(words: Any) -> tuple[str, ...]:
    stops = (words,) if isinstance(words, str) else words
    if not isinstance(stops, list | tuple) or not all(isinstance(word, str) and word for word in stops):
        raise UnsupportedRequest(f"the task sets until={words!r:.60}: give words that end an answer")
    return tuple(stops)
