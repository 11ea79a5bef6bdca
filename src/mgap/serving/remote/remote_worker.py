"""The worker that answers with servers: one request per question, many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from PIL import Image

from mgap.backbones.base import Backbone
from mgap.benchmarks.base import Benchmark
from mgap.errors import ModelError
from mgap.methods.base import Method
from mgap.methods.mgap import MGAP
from mgap.run.records import RunMethod
from mgap.run.worker import Work
from mgap.serving.engine_settings import ALPHA
from mgap.serving.read_sequences import read_sequences
from mgap.serving.remote.chat_bodies import chat_body, data_url, decoding_fields
from mgap.serving.remote.fleet import Body, Fleet
from mgap.serving.remote.remote_server import Told
from mgap.serving.weightless_worker import WeightlessWorker
from mgap.types import Answer, Decoding, Sample

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice

UNTOLD = -1  # the id of a token that a server counts and does not tell


class RemoteWorker(WeightlessWorker):
    """Answers samples under the methods of a run, by label. Every request sets its own strength, so all share the servers."""

    def __init__(
        self,
        fleet: Fleet,
        told: Told,
        backbone: Backbone,
        benchmark: Benchmark,
        decoding: Decoding,
        methods: Mapping[str, Method | None],
    ) -> None:
        super().__init__(backbone, benchmark, decoding, methods)
        self.fleet, self.told = fleet, told

    @contextmanager
    def using(self, method: RunMethod) -> Iterator[Work]:
        yield lambda samples: self.ask(samples, method)

    def close(self) -> None:
        self.fleet.close()

    def answers(self, pictures: Sequence[Any], rows: Sequence[Sample], method: RunMethod) -> list[Answer]:
        shows = self.told.shows_prompts  # else the prompts are the server's own, and not told
        texts = [self.backbone.render(row.prompt, pictures=int(bool(row.image))) if shows else "" for row in rows]
        urls: dict[str, asyncio.Future[str]] = {}
        bodies = [self._body(picture, sample, method, urls) for picture, sample in zip(pictures, rows, strict=True)]
        started = time.perf_counter()
        answers = self.fleet.ask(bodies)
        milliseconds = 1000 * (time.perf_counter() - started)
        decoding = self.decoding_of(method)
        return [self._read(answer, text, milliseconds, decoding) for answer, text in zip(answers, texts, strict=True)]

    def _body(
        self, picture: Image.Image | None, sample: Sample, method: RunMethod, urls: dict[str, asyncio.Future[str]]
    ) -> Body:
        """Makes the request for one sample. Each picture is encoded once, in a thread, when the first asks about it."""
        fields = decoding_fields(self.decoding_of(method), self.end, sample.id, is_vllm=self.told.is_vllm)
        fields |= self._method_fields(method.label)

        async def body() -> Mapping[str, Any]:
            if picture is None:
                return {**chat_body(sample.prompt, None), **fields}
            if sample.image not in urls:
                urls[sample.image] = asyncio.ensure_future(asyncio.to_thread(data_url, picture))
            return {**chat_body(sample.prompt, await asyncio.shield(urls[sample.image])), **fields}

        return body

    def _method_fields(self, label: str) -> dict[str, Any]:
        """What the labelled method and this server add to a request."""
        method = self.methods[label]
        fields: dict[str, Any] = {}
        if label in self.biases:
            fields["logit_bias"] = {str(token): shift for token, shift in self.biases[label].items()}
        if self.told.has_mgap:
            fields["vllm_xargs"] = {ALPHA: method.settings.alpha if isinstance(method, MGAP) else 0.0}
        if self.told.adds_special_tokens:
            fields["add_special_tokens"] = True
        return fields

    def _read(self, answer: ChatCompletion, prompt: str, milliseconds: float, decoding: Decoding) -> Answer:
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        if len(choices) != decoding.num_return_sequences:
            raise ModelError(f"a server gave {len(choices)} answers where {decoding.num_return_sequences} were asked for")
        if not self.told.is_vllm:
            return _untold(choices[0], 0 if answer.usage is None else answer.usage.completion_tokens, milliseconds)
        sequences: list[Any] = [(choice.model_extra or {}).get("token_ids") for choice in choices]
        if not all(isinstance(tokens, list) for tokens in sequences):
            raise ModelError("a server tells no token_ids: use vLLM 0.32 or later")
        return read_sequences(self.backbone, sequences, self.end, prompt, milliseconds, decoding.max_new_tokens)


def _untold(choice: Choice, tokens: int, milliseconds: float) -> Answer:
    """An answer of a server that tells a text and a number of tokens only; the prompt is the server's own, and not told."""
    text, stop = (choice.message.content or "").strip(), "length" if choice.finish_reason == "length" else "end"
    return Answer(text=text, token_ids=(UNTOLD,) * tokens, stop=stop, prompt="", milliseconds=milliseconds)
