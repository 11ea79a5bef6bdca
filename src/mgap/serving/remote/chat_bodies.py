"""From a question and a decoding to the body of a chat request."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mgap.errors import UnsupportedDecoding
from mgap.serving.sampling import ALTERNATIVES, sampling_fields
from mgap.types import Decoding

if TYPE_CHECKING:
    from PIL import Image

STANDARD = ("max_tokens", "temperature", "top_p", "seed")  # fields that every server has; the others are vLLM's


def chat_body(question: str, picture: Image.Image | str | None) -> dict[str, Any]:
    """One turn of the user: a picture, if there is one (or its data URL), and a question."""
    content: list[dict[str, Any]] = [{"type": "text", "text": question}]
    if picture is not None:
        url = picture if isinstance(picture, str) else data_url(picture)
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return {"messages": [{"role": "user", "content": content}]}


def data_url(picture: Image.Image) -> str:
    """The picture's exact pixels."""
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def decoding_fields(decoding: Decoding, end: Collection[int], name: str, *, is_vllm: bool) -> dict[str, Any]:
    """The fields of a request for one sample. Every one is given, as a server may have defaults of its own."""
    fields = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, **sampling_fields(decoding, end, name)}
    del fields["detokenize"]  # a chat has a text
    if is_vllm:
        return {**fields, "return_token_ids": True}
    return {key: value for key, value in fields.items() if key in STANDARD}


def refuse_decoding(decoding: Decoding) -> None:
    """Raise if no server takes an option of the decoding from a request."""
    default = Decoding()
    for name in ALTERNATIVES:
        if getattr(decoding, name) != getattr(default, name):
            raise UnsupportedDecoding(
                f"engine server does not take {name}={getattr(decoding, name)}: that is decided where a server is started; "
                f"leave {name} out"
            )


def refuse_extras(decoding: Decoding, address: str) -> None:
    """Raise if the decoding needs what other servers than vLLM lack, or leave out without a word."""
    default = Decoding()
    for name in ("repetition_penalty", "top_k", "min_p", "num_return_sequences"):
        if getattr(decoding, name) != getattr(default, name):
            raise UnsupportedDecoding(
                f"{address} is not vLLM, and servers in general take no {name}: leave {name}={getattr(decoding, name)} out"
            )
