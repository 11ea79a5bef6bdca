"""Run VLMEvalKit's datasets under our methods: `register` models, then `run` VLMEvalKit's own program.

VLMEvalKit has no entry points, so a script registers (examples/vlmevalkit/run.py). `model.answers` makes the answers, as
everywhere; this module only translates messages.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mgap.decoding.attach import attach
from mgap.errors import SettingError, UnsupportedRequest
from mgap.integrations.harness_models import ModelArguments
from mgap.types import Decoding

_NO_VLLM = "answers are transformers' here, not vLLM's: leave out use_vllm and --use-vllm"
_NO_MODEL = "vlmeval is not installed: clone github.com/open-compass/VLMEvalKit and pip install -e it"


class VLMEvalKitModel:
    """A model under one method: what `ModelArguments` names, `decoding`, and settings of the method, such as alpha=0.5."""

    def __init__(
        self, pretrained: str, decoding: Mapping[str, Any] | None = None, use_vllm: bool = False, **given: Any
    ) -> None:
        super().__init__()  # VLMEvalKit's BaseModel, where `register` put it
        arguments, self.decoding = _checked(pretrained, decoding, use_vllm, given)
        self.model, method = arguments.load()
        if method is not None:
            attach(self.model, method)

    def generate_inner(self, message: Sequence[Mapping[str, Any]], dataset: str | None = None) -> str:
        """Answer one message: its pictures in their order, then its text."""
        pictures, text = _pictures_and_text(message, dataset or "the message")
        shown: Any = pictures[0] if len(pictures) == 1 else tuple(pictures) or None
        (answer,) = self.model.answers([shown], [text], batch_size=1, **asdict(self.decoding))
        return answer.text

    @property
    def chat_inner(self) -> Callable[..., str]:
        """VLMEvalKit asks for this before the first conversation, and catches whatever a conversation raises later."""
        raise UnsupportedRequest("several rounds are not done here (a question is answered on its own): choose another dataset")


def register(name: str, pretrained: str, **arguments: Any) -> None:
    """Add a model to VLMEvalKit's table for this process; arguments are those of `VLMEvalKitModel`, and are checked now."""
    _checked(pretrained, arguments.get("decoding"), arguments.get("use_vllm", False), arguments)
    if find_spec("vlmeval") is None:
        raise UnsupportedRequest(_NO_MODEL)
    from vlmeval.config import supported_VLM
    from vlmeval.vlm.base import BaseModel

    if name in supported_VLM:
        raise SettingError(f"VLMEvalKit has a model called {name!r} already: choose another name")
    supported_VLM[name] = partial(type("Mgap", (VLMEvalKitModel, BaseModel), {}), pretrained=pretrained, **arguments)


def run() -> None:
    """Run VLMEvalKit's run.py with this process's command line. It lies beside the package in a clone, not in a wheel."""
    if "--use-vllm" in sys.argv:  # VLMEvalKit would not tell our models
        raise SettingError(_NO_VLLM)
    spec = find_spec("vlmeval")
    if spec is None or spec.origin is None:
        raise UnsupportedRequest(_NO_MODEL)
    program = Path(spec.origin).parents[1] / "run.py"
    if not program.is_file():
        raise UnsupportedRequest(f"{program} is not there: install VLMEvalKit from a clone, with pip install -e")
    runpy.run_path(str(program), run_name="__main__")


def _checked(
    pretrained: str, decoding: Mapping[str, Any] | None, use_vllm: bool, given: Mapping[str, Any]
) -> tuple[ModelArguments, Decoding]:
    if use_vllm:  # VLMEvalKit passes False to models with some names
        raise SettingError(_NO_VLLM)
    how = Decoding.of(**(decoding or {}))
    if how.num_return_sequences > 1:
        raise SettingError(
            f"num_return_sequences={how.num_return_sequences}: VLMEvalKit reads one answer a question; leave it out"
        )
    others = {key: value for key, value in given.items() if key not in ("decoding", "use_vllm")}
    return ModelArguments.of(pretrained, others), how


def _pictures_and_text(message: Sequence[Mapping[str, Any]], where: str) -> tuple[list[str], str]:
    """Raises on anything but pictures followed by text. Several texts are joined by newlines, as BaseModel does."""
    pictures, texts = list[str](), list[str]()
    for part in message:
        others = sorted({*part} - {"type", "value", "role"})
        if others or part.get("role", "user") != "user":
            name = others[0] if others else "role"
            raise UnsupportedRequest(f"{where} sets {name}={part[name]!r:.40} in a message, which is not done here")
        if part["type"] not in ("image", "text"):
            raise UnsupportedRequest(
                f"{where} comes with {part['type']}: answers here are about pictures; choose another dataset"
            )
        if part["type"] == "image" and texts:
            raise UnsupportedRequest(
                f"{where} has a picture after text: pictures stand before the text here; choose another dataset"
            )
        if part["value"]:  # datasets that split their text at its pictures leave empty pieces
            (pictures if part["type"] == "image" else texts).append(part["value"])
    return pictures, "\n".join(texts)
