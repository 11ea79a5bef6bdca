"""Run lmms-eval's tasks under our methods: `lmms-eval eval --model mgap --model_args pretrained=...,method=...`.

lmms-eval finds `manifest` through the entry point `lmms_eval.models`. `model.answers` makes the answers, as everywhere; this
module only translates requests and results.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.registry_v2 import ModelManifest
from tqdm import tqdm

from mgap.errors import SettingError, UnsupportedRequest
from mgap.integrations.harness_models import ModelArguments
from mgap.integrations.harness_requests import Request, pictures_of
from mgap.settings import check_choice


def manifest() -> ModelManifest:
    return ModelManifest(model_id="mgap", simple_class_path=f"{Mgap.__module__}.{Mgap.__name__}")


class Mgap(lmms):
    """A model under one method; further arguments are those of `ModelArguments`, or settings of the method."""

    is_simple = True  # lmms-eval then sends one question with one picture, not a conversation

    def __init__(
        self,
        pretrained: str,
        batch_size: int = 1,
        until: str = "task",  # "none": answers are not cut at the task's stop words
        **given: Any,
    ) -> None:
        super().__init__()
        if isinstance(batch_size, bool) or not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise SettingError(f"batch_size={batch_size!r}: give a whole number of at least 1; there is no automatic one")
        self.batch_size = int(batch_size)
        self.cuts_answers = check_choice("until", until, ("task", "none")) == "task"
        arguments = ModelArguments.of(pretrained, given)
        if arguments.device is None and arguments.device_map is None and "LOCAL_RANK" in os.environ:
            arguments = replace(arguments, device=_own_device(int(os.environ["LOCAL_RANK"])))
        self.model, self.method = arguments.load()  # before data are

    @property
    def device(self) -> Any:
        """The device on which lmms-eval gathers counts when several processes share a task."""
        return self.model.backbone.device

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answers in the order of the requests. Requests with equal options share batches."""
        groups: dict[Request, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(Request.of(request.args[1]), []).append(index)
        results: dict[int, GenerationResult] = {}
        with ExitStack() as stack:
            if self.method is not None:
                stack.enter_context(self.model.using(self.method))
            bar = stack.enter_context(tqdm(total=len(requests), desc="Model Responding", disable=self.rank != 0))
            for options, indices in groups.items():
                for start in range(0, len(indices), self.batch_size):
                    batch = indices[start : start + self.batch_size]
                    results |= zip(batch, self._answer([requests[index] for index in batch], options, start), strict=True)
                    bar.update(len(batch))
        return [results[index] for index in range(len(requests))]

    def _answer(self, batch: list[Instance], options: Request, start: int) -> list[GenerationResult]:
        images, prompts = list[Any](), list[str]()
        placeholder = self.model.backbone.tokenizer.decode([self.model.backbone.image_token_id])
        for request in batch:
            context, _, doc_to_visual, doc_id, task, split = request.args
            where = f"{task}, document {doc_id},"
            if placeholder in context:
                raise UnsupportedRequest(
                    f"{where} has {placeholder!r} in its text: pictures stand before the text here; choose another task"
                )
            pictures = pictures_of(doc_to_visual(self.task_dict[task][split][doc_id]), where)
            if len(pictures) != 1 and self.method is not None and self.method.needs_picture:
                raise UnsupportedRequest(
                    f"{where} comes with {len(pictures)} pictures, and {self.method.name} needs one: choose another task, "
                    "or a method that does not"
                )
            images.append(pictures[0] if len(pictures) == 1 else tuple(pictures) or None)
            prompts.append(context)
        decoding = asdict(options.decoding)
        if options.decoding.sample:
            decoding["seed"] += start  # otherwise every batch draws the same numbers, and repeats are copies
        answers = self.model.answers(images, prompts, batch_size=len(batch), **decoding)
        return [
            GenerationResult(
                text=options.cut(answer.text) if self.cuts_answers else answer.text,
                token_counts=TokenCounts(output_tokens=len(answer.token_ids)),
            )
            for answer in answers
        ]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise UnsupportedRequest(_refusal("loglikelihood", requests, "methods act on tokens as they are chosen"))

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        raise UnsupportedRequest(_refusal("several rounds", requests, "a question is answered on its own"))

    def clean(self) -> None:
        """Free the model; lmms-eval calls this when done with it."""
        del self.model, self.method
        super().clean()


def _own_device(rank: int) -> str | None:
    """The GPU with this process's number, if there are GPUs."""
    import torch

    return f"cuda:{rank}" if torch.cuda.is_available() else None


def _refusal(what: str, requests: list[Instance], reason: str) -> str:
    task = requests[0].task_name if requests else "the task"
    return f"{task} asks for {what}, which is not done here ({reason}): choose a task of output_type generate_until"
