"""From a call that blocks to a loop: what it says is handed out as it comes, and who leaves the loop ends the call."""

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
    """Ends generation once it is asked to."""

    is_set = False

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self.is_set, device=input_ids.device)


def from_thread(work: Callable[[Callable[[T], None]], None], stop: StopFlag) -> Iterator[T]:
    """What `work` says, while it works in a thread of its own; an error of it is raised here.

    Leaving the loop early asks it to stop, and waits until it has.
    """
    said, failure = SimpleQueue[T](), list[BaseException]()

    def run() -> None:
        try:
            work(said.put)
        except BaseException as error:  # carried to the consumer below
            failure.append(error)
        finally:
            said.put(_END)

    worker = threading.Thread(target=run, name="mgap-stream", daemon=True)
    worker.start()
    try:
        yield from iter(said.get, _END)
    finally:
        stop.is_set = True
        worker.join()
    if failure:
        raise failure[0]


class Pieces(TextStreamer):
    """Says an answer's text, a word or so at a time."""

    def __init__(self, tokenizer: Any, say: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.say = say

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:  # noqa: ARG002
        if text:
            self.say(text)


class Tokens(BaseStreamer):
    """Says each new token's id, the end token's too."""

    def __init__(self, say: Callable[[int], None]) -> None:
        self.say, self.is_prompt = say, True

    def put(self, value: torch.Tensor) -> None:
        if self.is_prompt:
            self.is_prompt = False
            return
        for token in value.flatten().tolist():
            self.say(token)

    def end(self) -> None:
        """Everything has been said."""
