"""What workers share whose model is an engine's or a server's: they open pictures, render prompts and read answers here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch

from mgap.backbones.base import Backbone
from mgap.benchmarks.base import Benchmark
from mgap.decoding.generate import end_ids
from mgap.methods.base import Method
from mgap.methods.bias import Bias
from mgap.run.answer_worker import AnsweringWorker
from mgap.run.picture_workers import PictureOpening, Pictures
from mgap.serving.sampling import logit_bias
from mgap.types import Decoding


class WeightlessWorker(AnsweringWorker):
    """`backbone` renders, tokenises and reads answers, without weights; `methods` are by label."""

    def __init__(
        self, backbone: Backbone, benchmark: Benchmark, decoding: Decoding, methods: Mapping[str, Method | None]
    ) -> None:
        self.backbone, self.benchmark, self.decoding, self.methods = backbone, benchmark, decoding, methods
        self.end = end_ids(backbone) - {None}  # a checkpoint may name none
        self.biases = {
            label: logit_bias(method, backbone.tokenizer) for label, method in methods.items() if isinstance(method, Bias)
        }

    @cached_property
    def pictures(self) -> Pictures:
        """Opens pictures only; the engine prepares them."""
        return Pictures(PictureOpening(self.benchmark.picture, None), 0, torch.device("cpu"))
