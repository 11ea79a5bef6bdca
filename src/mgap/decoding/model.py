"""The object that `mgap.load` returns: a backbone that answers, with methods switched on and off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import StoppingCriteriaList

from mgap.backbones.base import Backbone, backbone_class
from mgap.backbones.clock import ANSWERS, FIRST, INPUTS
from mgap.backbones.loading import load_backbone
from mgap.backbones.prepared_pictures import Picture
from mgap.backbones.shared_prefill import SharedPrefill
from mgap.decoding.attach import Attachment, answering, attach, attached, refuse_modes
from mgap.decoding.fast.captured_loop import generate_captured, head_of, is_ours
from mgap.decoding.generate import Generated, end_ids, generate, until_end
from mgap.decoding.prefill_sharing import PREFILLS, refuse_unshared
from mgap.decoding.streaming import Pieces, StopFlag, from_thread
from mgap.decoding.trace import Recorder
from mgap.errors import SettingError, UnsupportedDecoding
from mgap.methods.base import Method
from mgap.registry import locate
from mgap.settings import check_choice
from mgap.types import Answer, Decoding, Mode, Step


def load(
    name: str,
    *,
    device: str | None = None,
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    attention: str | None = None,
    trust_remote_code: bool = False,
    device_map: Any = None,
) -> Model:
    """Load a multimodal model by hub id or folder: any AutoModelForImageTextToText with a chat template.

    `pocket/llava` and `pocket/qwen3-vl` come with the package. On a GPU when there is one. `attention` is transformers'
    attn_implementation; `device_map` needs accelerate.
    """
    return Model(
        load_backbone(
            locate(name, revision),
            called=name,
            device=device,
            dtype=dtype,
            revision=revision,
            attention=attention,
            trust_remote_code=trust_remote_code,
            device_map=device_map,
        )
    )


def wrap(model: Any, processor: Any, *, name: str | None = None) -> Model:
    """The same around a transformers model and processor that you have already."""
    return Model(backbone_class(model.config)(model, processor, name=name))


class Model:
    """Answers questions about pictures, plainly or under the methods that `using` switches on.

    Threads may share one: they are answered one after the other, each wholly under the methods that were on when it asked.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.hearer: Callable[[str], None] = _tell_terminal  # hears what keeps the first token waiting, such as compiling

    @contextmanager
    def using(self, method: Method, *others: Method) -> Iterator[Attachment]:
        """Decode with a method inside the `with` block; the model is as it was afterwards, also after an error.

        Two methods stack if one acts at the head and the other has a second branch: `using(VCD(), MGAP(prior))`. The first
        one's attachment is returned. A method is on for every thread that asks this model; another thread that would switch
        one on meanwhile is refused.
        """
        with ExitStack() as stack:
            attachments = [stack.enter_context(attach(self, each)) for each in (method, *others)]
            yield attachments[0]

    def answer(
        self, image: Picture | None, prompt: str, *, trace: bool = False, assistant: Any = None, **options: Any
    ) -> Answer:
        """Answer one prompt about one picture (None: about no picture).

        `options` are the fields of `Decoding`. `trace=True` keeps what the method saw and did at every token.
        `assistant` is a smaller model that drafts tokens (assisted decoding).
        """
        decoding = Decoding.of(**options)
        with answering(self.backbone.model, tuple(attached(self.backbone.model))):
            return self._answer_rows([image], [prompt], decoding, trace=trace, assistant=assistant)[0]

    def answers(
        self,
        images: Sequence[Picture | None],
        prompts: Sequence[str],
        *,
        batch_size: int = 8,
        trace: bool = False,
        prefill: str = "own",
        **options: Any,
    ) -> Iterator[Answer]:
        """Answer many prompts, in order, in left-padded batches; yields answers as batches finish.

        With `prefill="shared"` a picture is read once for all its prompts in a batch, and for those that go on with it in the
        next one: order prompts by picture. `mgap.decoding.prefill_sharing.can_share` tells beforehand what would refuse it.
        """
        decoding = Decoding.of(**options)
        if batch_size < 1:
            raise SettingError(f"batch_size={batch_size} must be at least 1")
        modes, on = decoding.modes(rows=min(batch_size, len(prompts))), tuple(attached(self.backbone.model))
        self._check(modes, trace)
        shared = None
        if check_choice("prefill", prefill, PREFILLS) == "shared":
            refuse_unshared(self.backbone, modes)
            shared = SharedPrefill(self.backbone)
        for start in range(0, len(prompts), batch_size):
            rows = slice(start, start + batch_size)
            with answering(self.backbone.model, on):
                made = self._answer_rows(images[rows], prompts[rows], decoding, trace=trace, shared=shared)
            yield from made

    def stream(self, image: Picture | None, prompt: str, *, assistant: Any = None, **options: Any) -> Iterator[str]:
        """Yield the answer's text as it is made. Leaving the loop early stops the model."""
        decoding = Decoding.of(**options)
        modes, on = decoding.modes(stream=True, assistant=assistant is not None), tuple(attached(self.backbone.model))
        with answering(self.backbone.model, on):
            self._check(modes, False)
            inputs = self.backbone.encode([image], [prompt])
            head = head_of(self.backbone) if is_ours(self.backbone, modes) else None
        stop = StopFlag()

        def decode(say: Callable[[str], None]) -> None:
            streamer = Pieces(self.backbone.tokenizer, say)
            with answering(self.backbone.model, on):
                if head is None:
                    how = {"streamer": streamer, "stopping_criteria": StoppingCriteriaList([stop]), **_draft(assistant)}
                    generate(self.backbone, inputs, decoding, **how)
                    return
                heard = {"say": streamer.put, "is_stopped": lambda: stop.is_set}
                streamer.put(inputs["input_ids"])
                generate_captured(self.backbone, inputs, decoding, head=head, notify=self.hearer, **heard)
                streamer.end()

        yield from from_thread(decode, stop)

    def _answer_rows(
        self,
        images: Sequence[Picture | None],
        prompts: Sequence[str],
        decoding: Decoding,
        *,
        trace: bool = False,
        assistant: Any = None,
        shared: SharedPrefill | None = None,
    ) -> list[Answer]:
        modes, clock = decoding.modes(rows=len(prompts), assistant=assistant is not None), self.backbone.clock
        self._check(modes, trace)
        # what runs the model comes before the recorder: neither a picture's own forward nor a look at the head is a step
        head = head_of(self.backbone) if is_ours(self.backbone, modes) else None
        with clock.stage(INPUTS):
            if shared is None:
                inputs, cache, before = self.backbone.encode(images, prompts), None, 0.0
            else:
                # generate repeats rows, but not a cache
                times = 1 if head is not None else max(decoding.num_beams, decoding.num_return_sequences)
                begun = shared.encode(images, prompts, times)
                inputs, cache, before = begun.inputs, begun.cache, begun.milliseconds
        with ExitStack() as stack:
            recorder = stack.enter_context(attached(self.backbone.model)[0].record()) if trace else None
            stack.enter_context(clock.stage(FIRST))
            if head is not None:
                made = generate_captured(self.backbone, inputs, decoding, head=head, notify=self.hearer, cache=cache)
            else:
                more = _draft(assistant) if cache is None else {"past_key_values": cache}
                if clock.is_on:
                    more["stopping_criteria"] = clock.after_first_token()
                made = generate(self.backbone, inputs, decoding, **more)
        with clock.stage(ANSWERS):
            texts = [self.backbone.render(p, has_image=i is not None) for i, p in zip(images, prompts, strict=True)]
            return self._read(replace(made, milliseconds=made.milliseconds + before), texts, decoding, recorder)

    def _check(self, modes: frozenset[Mode], trace: bool) -> None:
        active = attached(self.backbone.model)
        for attachment in active:
            refuse_modes(attachment.method, modes)
        if not trace:
            return
        if not active:
            raise SettingError("there is no method to trace: answer inside `with model.using(method)`")
        if len(active) > 1:
            raise SettingError(f"a trace shows one method, and {len(active)} are on: trace them one at a time")
        if Mode.ASSISTED in modes:  # one forward checks several tokens, and drops some of them
            raise UnsupportedDecoding("a trace cannot be kept in assisted decoding: leave one of them out")

    def _read(self, made: Generated, texts: list[str], decoding: Decoding, recorder: Recorder | None) -> list[Answer]:
        tokenizer, end = self.backbone.tokenizer, end_ids(self.backbone)
        each = decoding.num_return_sequences
        answers = []
        for index, row in enumerate(made.tokens.tolist()):
            tokens = until_end(row, end)
            trace = None
            if recorder is not None:
                rows = [index] * len(tokens) if made.beam_rows is None else made.beam_rows[index, : len(tokens)].tolist()
                trace = recorder.along(tokens, rows, lambda token: str(tokenizer.decode([token])))
            answers.append(read_answer(self.backbone, tokens, end, texts[index // each], made.milliseconds, trace))
        groups = [answers[start : start + each] for start in range(0, len(answers), each)]
        return [replace(first, alternatives=tuple(others)) for first, *others in groups]


def read_answer(
    backbone: Backbone,
    tokens: Sequence[int],
    end: set[int],
    prompt: str,
    milliseconds: float,
    trace: tuple[Step, ...] | None = None,
) -> Answer:
    """An answer from its tokens, with the one that ended it; `end` are those that do, `prompt` is the rendered one."""
    return Answer(
        text=backbone.tokenizer.decode(tokens, skip_special_tokens=True).strip(),
        token_ids=tuple(tokens),
        stop="end" if tokens and tokens[-1] in end else "length",
        prompt=prompt,
        milliseconds=milliseconds,
        trace=trace,
    )


def _tell_terminal(text: str) -> None:
    """To somebody who sits before a terminal; records and pipes are left alone."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def _draft(assistant: Any) -> dict[str, Any]:
    return {} if assistant is None else {"assistant_model": Backbone.of(assistant).model}
