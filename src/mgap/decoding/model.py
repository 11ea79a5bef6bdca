"""The object that `mgap.load` returns: a backbone that answers, with methods switched on and off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from mgap.backbones.asked_rows import Asked, asking
from mgap.backbones.base import Backbone, backbone_class
from mgap.backbones.clock import ANSWERS, FIRST, INPUTS
from mgap.backbones.loading import load_backbone
from mgap.backbones.prepared_pictures import Shown, pictures_in
from mgap.backbones.shared_prefill import SharedPrefill
from mgap.decoding.attach import Attachment, answering, attach, attached, refuse_modes, refuse_pictures
from mgap.decoding.fast.captured_loop import generate_captured, head_of, uses_captured_loop
from mgap.decoding.first_log_odds import FirstLogOdds, refuse_unreadable
from mgap.decoding.generate import Generated, end_ids, generate, until_end
from mgap.decoding.prefill_sharing import PREFILLS, refuse_unshared
from mgap.decoding.streaming import StopFlag, TextPieces, from_thread
from mgap.decoding.ties import TieCounter, refuse_uncountable
from mgap.decoding.trace import Recorder
from mgap.errors import PromptError, SettingError, UnsupportedDecoding
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
    template: str | None = None,
) -> Model:
    """Load a multimodal model by hub id or folder: any AutoModelForImageTextToText with a chat template, or a stated one.

    `pocket/llava` and `pocket/qwen3-vl` come with the package; `pocket/natural` fetches a part of itself once. On a GPU when
    there is one. `attention` is transformers' attn_implementation; `device_map` needs accelerate. `template` says how prompts
    are written, such as "USER: {image}\\n{question} ASSISTANT:"; it takes the place of the checkpoint's own template, if any.
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
            template=template,
        )
    )


def wrap(model: Any, processor: Any, *, name: str | None = None, template: str | None = None) -> Model:
    """Make a `Model` from a transformers model and processor that you have already loaded; `template`, which the processor
    gets as its chat template, is that of `load`."""
    backbone = backbone_class(model.config)(model, processor, name=name)
    if template is not None:
        backbone.state_template(template)
    return Model(backbone)


class Model:
    """Answers questions about pictures, with plain decoding or under the methods that `using` attaches.

    Threads may share a model: it answers one at a time, each under the methods that were attached when the thread asked.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.on_progress: Callable[[str], None] = _print_to_terminal  # called with what delays the first token

    @contextmanager
    def using(self, method: Method, *others: Method) -> Iterator[Attachment]:
        """Decode with a method inside the `with` block; afterwards, also after an error, the model is restored.

        Two methods stack if one acts at the head and the other has a second branch: `using(VCD(), MGAP(prior))`. Yields the
        first method's attachment. The method applies to every thread that uses this model; meanwhile another thread that tries
        to attach one is refused.
        """
        with ExitStack() as stack:
            attachments = [stack.enter_context(attach(self, one)) for one in (method, *others)]
            yield attachments[0]

    def answer(
        self,
        image: Shown,
        prompt: str,
        *,
        trace: bool = False,
        count_ties: bool = False,
        log_odds: bool = False,
        assistant: Any = None,
        **options: Any,
    ) -> Answer:
        """Answer one prompt about one picture (None: no picture; a list: several, which stand before the prompt in its order).

        `options` are the fields of `Decoding`. `trace=True` records what the method read and did at every token.
        `count_ties=True` counts the tokens that were chosen among equal best scores (greedy decoding only): `Answer.ties`.
        `log_odds=True` reads those of yes against no at the first token (plain decoding only): `Answer.log_odds`.
        `assistant` is a smaller model that drafts tokens (assisted decoding).
        """
        decoding = Decoding.of(**options)
        with answering(self.backbone.model, tuple(attached(self.backbone.model))):
            rows = self._answer_rows(
                [image], [prompt], decoding, trace=trace, count_ties=count_ties, log_odds=log_odds, assistant=assistant
            )
        return rows[0]

    def answers(
        self,
        images: Sequence[Shown],
        prompts: Sequence[str],
        *,
        batch_size: int = 8,
        trace: bool = False,
        count_ties: bool = False,
        log_odds: bool = False,
        prefill: str = "own",
        asked: Sequence[Asked] | None = None,
        **options: Any,
    ) -> Iterator[Answer]:
        """Answer many prompts, in order, in left-padded batches; yields answers as batches finish.

        With `prefill="shared"` the model reads a picture once for all its prompts in a batch, and for those that continue with
        it in the next batch: order prompts by picture. `mgap.decoding.prefill_sharing.can_share` says whether that is possible.
        `asked` tells methods more of the rows than `images` do, such as a benchmark's names of pictures. `trace`, `count_ties`,
        `log_odds` and `options` are those of `answer`.
        """
        decoding = Decoding.of(**options)
        if batch_size < 1:
            raise SettingError(f"batch_size={batch_size} must be at least 1")
        if asked is not None and len(asked) != len(prompts):
            raise PromptError(f"asked has {len(asked)} rows, and there are {len(prompts)} prompts: give one a prompt")
        modes, active = decoding.modes(rows=min(batch_size, len(prompts))), tuple(attached(self.backbone.model))
        how = {"trace": trace, "count_ties": count_ties, "log_odds": log_odds}
        self._check(modes, **how)
        shared = None
        if check_choice("prefill", prefill, PREFILLS) == "shared":
            refuse_unshared(self.backbone, modes, is_traced=trace)
            shared = SharedPrefill(self.backbone)
        for start in range(0, len(prompts), batch_size):
            rows = slice(start, start + batch_size)
            known = None if asked is None else asked[rows]
            with answering(self.backbone.model, active):
                batch = self._answer_rows(images[rows], prompts[rows], decoding, shared=shared, asked=known, **how)
            yield from batch

    def stream(self, image: Shown, prompt: str, *, assistant: Any = None, **options: Any) -> Iterator[str]:
        """Yield the answer's text as it is generated. Leaving the loop early stops the model."""
        decoding = Decoding.of(**options)
        modes, active = decoding.modes(stream=True, assistant=assistant is not None), tuple(attached(self.backbone.model))
        with answering(self.backbone.model, active):
            self._check(modes)
            refuse_pictures(self.backbone.model, [image])
            inputs = self.backbone.encode([image], [prompt])
            head = head_of(self.backbone) if uses_captured_loop(self.backbone, modes) else None
        stop = StopFlag()

        def decode(emit: Callable[[str], None]) -> None:
            streamer = TextPieces(self.backbone.tokenizer, emit)
            with answering(self.backbone.model, active), asking(self.backbone.model, [Asked.of(image, prompt)]):
                if head is None:
                    more = {"streamer": streamer, "stopping_criteria": StoppingCriteriaList([stop]), **_draft(assistant)}
                    generate(self.backbone, inputs, decoding, **more)
                    return
                callbacks = {"on_tokens": streamer.put, "is_stopped": lambda: stop.is_set}
                streamer.put(inputs["input_ids"])
                generate_captured(self.backbone, inputs, decoding, head=head, notify=self.on_progress, **callbacks)
                streamer.end()

        yield from from_thread(decode, stop)

    def _answer_rows(
        self,
        images: Sequence[Shown],
        prompts: Sequence[str],
        decoding: Decoding,
        *,
        trace: bool = False,
        count_ties: bool = False,
        log_odds: bool = False,
        assistant: Any = None,
        shared: SharedPrefill | None = None,
        asked: Sequence[Asked] | None = None,
    ) -> list[Answer]:
        modes, clock = decoding.modes(rows=len(prompts), assistant=assistant is not None), self.backbone.clock
        self._check(modes, trace, count_ties, log_odds)
        refuse_pictures(self.backbone.model, images)
        ties = TieCounter() if count_ties else None
        odds = FirstLogOdds(self.backbone) if log_odds else None
        # probing the head and prefilling run the model, and are no decoding steps: both come before the recorder starts
        head = head_of(self.backbone) if uses_captured_loop(self.backbone, modes, is_traced=trace) else None
        with clock.stage(INPUTS):
            if shared is None:
                inputs, cache, prefill_ms = self.backbone.encode(images, prompts), None, 0.0
            else:
                # generate repeats rows, but not a cache
                times = 1 if head is not None else max(decoding.num_beams, decoding.num_return_sequences)
                prefilled = shared.encode(images, prompts, times)
                inputs, cache, prefill_ms = prefilled.inputs, prefilled.cache, prefilled.milliseconds
        rows = asked or [Asked.of(image, prompt) for image, prompt in zip(images, prompts, strict=True)]
        with ExitStack() as stack:
            stack.enter_context(asking(self.backbone.model, rows))
            recorder = stack.enter_context(attached(self.backbone.model)[0].record()) if trace else None
            if odds is not None:
                stack.enter_context(odds)
            stack.enter_context(clock.stage(FIRST))
            if head is not None:
                generated = generate_captured(
                    self.backbone, inputs, decoding, head=head, notify=self.on_progress, cache=cache, ties=ties
                )
            else:
                more = _draft(assistant) if cache is None else {"past_key_values": cache}
                if clock.is_on:
                    more["stopping_criteria"] = clock.after_first_token()
                if ties is not None:
                    more["logits_processor"] = LogitsProcessorList([ties])  # transformers puts it behind its own
                generated = generate(self.backbone, inputs, decoding, **more)
        with clock.stage(ANSWERS):
            texts = [self.backbone.render(p, pictures=len(pictures_in(i))) for i, p in zip(images, prompts, strict=True)]
            generated = replace(generated, milliseconds=generated.milliseconds + prefill_ms)
            answers = self._read(generated, texts, decoding, recorder, ties)
        if odds is None:
            return answers
        return [replace(answer, log_odds=read) for answer, read in zip(answers, odds.rows(len(answers)), strict=True)]

    def _check(self, modes: frozenset[Mode], trace: bool = False, count_ties: bool = False, log_odds: bool = False) -> None:
        active = attached(self.backbone.model)
        for attachment in active:
            refuse_modes(attachment.method, modes)
        if count_ties:
            refuse_uncountable(modes, [attachment.method for attachment in active])
        if log_odds:
            refuse_unreadable(self.backbone, modes, [attachment.method for attachment in active])
        if not trace:
            return
        if not active:
            raise SettingError("there is no method to trace: answer inside `with model.using(method)`")
        if len(active) > 1:
            raise SettingError(f"a trace shows one method, and {len(active)} are on: trace them one at a time")
        if Mode.ASSISTED in modes:  # one forward checks several tokens, and drops some of them
            raise UnsupportedDecoding("a trace cannot be kept in assisted decoding: leave one of them out")

    def _read(
        self,
        generated: Generated,
        texts: list[str],
        decoding: Decoding,
        recorder: Recorder | None,
        ties: TieCounter | None,
    ) -> list[Answer]:
        tokenizer, end = self.backbone.tokenizer, end_ids(self.backbone)
        per_row, beams = decoding.num_return_sequences, generated.beam_rows
        tied = None if ties is None else ties.rows()
        answers = []
        for index, row in enumerate(generated.tokens.tolist()):
            tokens = until_end(row, end)
            trace = None
            if recorder is not None:
                rows = [index] * len(tokens) if beams is None else beams[index, : len(tokens)].tolist()
                trace = recorder.along(tokens, rows, lambda token: str(tokenizer.decode([token])))
            answer = read_answer(self.backbone, tokens, end, texts[index // per_row], generated.milliseconds, trace)
            answers.append(answer if tied is None else replace(answer, ties=sum(tied[index][: len(tokens)])))
        groups = [answers[start : start + per_row] for start in range(0, len(answers), per_row)]
        return [replace(first, alternatives=tuple(others)) for first, *others in groups]


def read_answer(
    backbone: Backbone,
    tokens: Sequence[int],
    end: set[int],
    prompt: str,
    milliseconds: float,
    trace: tuple[Step, ...] | None = None,
) -> Answer:
    """Build an answer from its tokens, end token included; `end` is the set of end tokens, `prompt` the rendered prompt."""
    return Answer(
        text=backbone.tokenizer.decode(tokens, skip_special_tokens=True).strip(),
        token_ids=tuple(tokens),
        stop="end" if tokens and tokens[-1] in end else "length",
        prompt=prompt,
        milliseconds=milliseconds,
        trace=trace,
    )


def _print_to_terminal(text: str) -> None:
    """Print to stderr if it is a terminal; logs and pipes stay clean."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def _draft(assistant: Any) -> dict[str, Any]:
    return {} if assistant is None else {"assistant_model": Backbone.of(assistant).model}
