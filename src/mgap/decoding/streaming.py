"""Turn a blocking call into an iterator: yield what it emits as it runs; leaving the loop stops the call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from transformers import StoppingCriteria, TextStreamer
from transformers.generation.streamers import BaseStreamer

T = TypeVar("T")
_END: Any = object()


class StopFlag(StoppingCriteria):
    """Stops generation once it is set."""

    is_set = False

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self.is_set, device=input_ids.device)


def from_thread(work: Callable[[Callable[[T], None]], None], stop: StopFlag) -> Iterator[T]:
    """Run `work` in its own thread, yield what it emits, and raise its error here.

    Leaving the loop early sets `stop` and waits until the thread has ended.
    """
    emitted, failure = SimpleQueue[T](), list[BaseException]()

    def run() -> None:
        try:
            work(emitted.put)
        except BaseException as error:  # raised in the consumer's thread below
            failure.append(error)
        finally:
            emitted.put(_END)

    worker = threading.Thread(target=run, name="mgap-stream", daemon=True)
    worker.start()
    try:
        yield from iter(emitted.get, _END)
    finally:
        stop.is_set = True
        worker.join()
    if failure:
        raise failure[0]


class TextPieces(TextStreamer):
    """Emits an answer's text, about a word at a time."""

    def __init__(self, tokenizer: Any, emit: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.emit = emit

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:  # noqa: ARG002
        if text:
            self.emit(text)


class TokenIds(BaseStreamer):
    """Emits the id of each new token, including the end token."""

    def __init__(self, emit: Callable[[int], None]) -> None:
        self.emit, self.is_prompt = emit, True

    def put(self, value: torch.Tensor) -> None:
        if self.is_prompt:
            self.is_prompt = False
            return
        for token in value.flatten().tolist():
            self.emit(token)

    def end(self) -> None:
        """Nothing is buffered."""
