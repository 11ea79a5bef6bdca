"""What an evaluation harness asks for, as the options of `Decoding`; refused where it cannot be done as it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mgap.errors import UnsupportedRequest
from mgap.types import Decoding

_WHOLE = ("max_new_tokens", "num_beams", "top_k", "seed")  # whole numbers, also where a harness writes 16.0
_KEYS = ("until", "do_sample", "temperature", "top_p", "repetition_penalty", *_WHOLE)


@dataclass(frozen=True)
class Request:
    """How one answer is to be made."""

    decoding: Decoding
    until: tuple[str, ...] = ()  # the answer ends before the first of these

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Request:
        """From transformers' names as lmms-eval's tasks write them; an option that is None was not given.

        A temperature of 0 is greedy decoding. There top_p and top_k are let pass: they never remove the likeliest token.
        """
        given = {key: value for key, value in options.items() if value is not None}
        for key in given:
            if key not in _KEYS:
                raise UnsupportedRequest(
                    f"the task sets {key!r:.40} to {given[key]!r:.60}, which is not done here: choose from {', '.join(_KEYS)}, "
                    "or copy the task without it"
                )
        decoding: dict[str, Any] = {key: _whole(key, given[key]) for key in _WHOLE if key in given}
        decoding |= {key: _number(key, given[key]) for key in ("temperature", "top_p", "repetition_penalty") if key in given}
        decoding["sample"] = _samples(given)
        if not decoding["sample"]:
            for key in ("temperature", "top_p", "top_k"):
                decoding.pop(key, None)
        return cls(Decoding.of(**decoding), _until(given.get("until", ())))

    def cut(self, text: str) -> str:
        """What comes before the first stop word, the same as if the model had stopped there."""
        return text[: min((place for word in self.until if (place := text.find(word)) >= 0), default=len(text))].rstrip()


def one_picture(visuals: Any, where: str) -> Image.Image | None:
    """The picture of a request, or None where it has none; anything else is refused."""
    found: list[Any] = []
    for visual in visuals if isinstance(visuals, Sequence) and not isinstance(visuals, str) else [visuals]:
        found += visual if isinstance(visual, list | tuple) else [visual]
    found = [visual for visual in found if visual is not None]
    for visual in found:
        if not isinstance(visual, Image.Image):
            raise UnsupportedRequest(
                f"{where} comes with {_kind(visual)}: methods here answer about one picture; choose another task"
            )
    if len(found) > 1:
        raise UnsupportedRequest(
            f"{where} comes with {len(found)} pictures: methods here answer about one; choose another task"
        )
    return found[0] if found else None


def _kind(visual: Any) -> str:
    if isinstance(visual, str):
        return f"the file {visual!r}, a video or sound"
    return f"{type(visual).__name__}, which is no picture,"


def _samples(given: Mapping[str, Any]) -> bool:
    """Whether tokens are drawn; a harness says it twice, and the two must agree."""
    warm = _number("temperature", given["temperature"]) > 0 if "temperature" in given else None
    if not isinstance(given.get("do_sample", True), bool):
        raise UnsupportedRequest(f"the task sets do_sample={given['do_sample']!r:.40}: give true or false")
    if "do_sample" not in given:
        return bool(warm)
    if warm is not None and warm != given["do_sample"]:
        raise UnsupportedRequest(
            f"the task sets do_sample={given['do_sample']} and temperature={given['temperature']}, a contradiction: "
            "say which is meant with --gen_kwargs temperature=0, or do_sample=True,temperature=..."
        )
    return bool(given["do_sample"])


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63 or value != int(value):
        raise UnsupportedRequest(f"the task sets {name}={value!r:.40}: give a whole number")
    return int(value)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)  # also of text, as command lines of harnesses give it
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedRequest(f"the task sets {name}={value!r:.40}: give a number") from None


def _until(words: Any) -> tuple[str, ...]:
    found = (words,) if isinstance(words, str) else words
    if not isinstance(found, list | tuple) or not all(isinstance(word, str) and word for word in found):
        raise UnsupportedRequest(f"the task sets until={words!r:.60}: give words that end an answer")
    return tuple(found)
