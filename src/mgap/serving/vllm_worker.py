"""The worker that answers with vLLM: one call per batch; continuous batching and prefix caching are the engine's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mgap.backbones.base import Backbone
from mgap.benchmarks.base import Benchmark
from mgap.methods.base import Method
from mgap.run.records import RunMethod
from mgap.run.worker import Work
from mgap.serving.engine_settings import ALPHA, Served, learnt_key
from mgap.serving.offline import EngineRecipe, OfflineEngine
from mgap.serving.read_sequences import read_sequences
from mgap.serving.sampling import sampling_fields
from mgap.serving.weightless_worker import WeightlessWorker
from mgap.types import Answer, Decoding, Sample


class VllmWorker(WeightlessWorker):
    """Answers samples under the methods of a run. `methods` and `priors` (folders, for methods that have one) are by label.

    Plain decoding, biases and methods that differ only in their strength share an engine: each request sets its own. Any other
    difference needs a new engine; the old one is shut down first.
    """

    def __init__(
        self,
        recipe: EngineRecipe,
        backbone: Backbone,
        benchmark: Benchmark,
        decoding: Decoding,
        methods: Mapping[str, Method | None],
        priors: Mapping[str, str],
        report: Callable[[str], None],  # called with a line before and after slow work
    ) -> None:
        super().__init__(backbone, benchmark, decoding, methods)
        self.recipe, self.report = recipe, report
        self.is_shared = not recipe.options.get("speculative_config")  # with it, vLLM's older runner drops requests' strengths
        self.serving = {label: self._serving(method, priors.get(label, "")) for label, method in methods.items()}
        self.engine: OfflineEngine | None = None

    @contextmanager
    def using(self, method: RunMethod) -> Iterator[Work]:
        self.require(method.label)
        yield lambda samples: self.ask(samples, method)

    def require(self, label: str) -> OfflineEngine:
        """The engine for a method: the running one if it fits, else a new one."""
        serving = self.serving[label]
        if serving is None:  # any engine will do: the running one, or the one that a later method needs
            serving = self.engine.serving if self.engine else next(filter(None, self.serving.values()), {})
        if self.engine is not None and self.engine.serving != serving:
            self.close()
        if self.engine is None:
            self.report(f"starting vLLM with {self.recipe.model}, which takes 10 to 60 seconds or more")
            started = time.perf_counter()
            self.engine = self.recipe.start(serving)
            self.report(f"vLLM is ready after {time.perf_counter() - started:.0f} s")
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def answers(self, pictures: Sequence[Any], rows: Sequence[Sample], method: RunMethod) -> list[Answer]:
        engine = self.require(method.label)
        texts = [self.backbone.render(sample.prompt, pictures=int(bool(sample.image))) for sample in rows]
        requests: list[dict[str, Any]] = [
            {"prompt_token_ids": self.backbone.tokenize(text)}
            | ({} if picture is None else {"multi_modal_data": {"image": picture}})
            for text, picture in zip(texts, pictures, strict=True)
        ]
        method_fields = self._method_fields(method.label)
        decoding = self.decoding_of(method)
        fields = [{**sampling_fields(decoding, self.end, sample.id), **method_fields} for sample in rows]
        started = time.perf_counter()
        outputs = engine.generate(requests, fields)
        milliseconds = 1000 * (time.perf_counter() - started)
        longest = decoding.max_new_tokens
        return [
            read_sequences(self.backbone, sequences, self.end, text, milliseconds, longest)
            for sequences, text in zip(outputs, texts, strict=True)
        ]

    def _method_fields(self, label: str) -> dict[str, Any]:
        """The request fields that the labelled method adds."""
        method = self.methods[label]
        fields: dict[str, Any] = {"logit_bias": self.biases[label]} if label in self.biases else {}
        if self.is_shared and self.engine is not None and self.engine.serving:
            fields["extra_args"] = {ALPHA: method.settings.alpha if isinstance(method, Served) else 0.0}
        return fields

    def _serving(self, method: Method | None, prior: str) -> dict[str, Any] | None:
        """The engine settings for this method. Empty: no MGAP. None: any engine, as requests set alpha 0."""
        if not isinstance(method, Served):
            return None if self.is_shared else {}
        kind = type(method)
        names = [name for name in kind.setting_names() if name != "preset"]  # its numbers have been filled in
        settings = {name: value for name in names if (value := getattr(method, name)) is not None}
        settings |= {"method": kind.name, learnt_key(kind): prior}
        return {**settings, kind.moved_by: 1.0} if self.is_shared else settings  # every request overrides this strength
