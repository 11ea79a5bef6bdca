"""One answer, token by token as it is generated: what the method reported, and the states that the head read.

    for token in step_by_step(model, mgap.MGAP(prior), picture, "Is there a dog in the image?"):
        print(token.text, token.step.values["beta"], token.states.h.shape)

Leaving the loop stops the model. For plain decoding use MGAP at strength 0: it changes no bit and reports entropy and cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from transformers import StoppingCriteriaList

from mgap.backbones.asked_rows import Asked, asking
from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.prepared_pictures import Shown
from mgap.decoding.attach import refuse_modes, refuse_pictures
from mgap.decoding.effective_states import StepStates, watch
from mgap.decoding.generate import end_ids, generate
from mgap.decoding.streaming import StopFlag, TokenIds, from_thread
from mgap.decoding.trace import Recorder
from mgap.errors import ModelError
from mgap.methods.base import Method
from mgap.types import Decoding, Mode, Step


class MadeToken(NamedTuple):
    """One token of an answer."""

    text: str  # what it adds to the answer; "" for the end token and for a token that starts an incomplete character
    is_end: bool
    step: Step
    states: StepStates  # of one row


def step_by_step(
    model: Backbone | HasBackbone,
    method: Method,
    image: Shown,
    prompt: str,
    *,
    max_new_tokens: int = 512,
    top: int = 5,
) -> Iterator[MadeToken]:
    """Yield the tokens of the greedy answer under a method; refuses a method that cannot stream.

    Each token's trace has the `top` candidates before and after.
    """
    backbone = Backbone.of(model)
    refuse_modes(method, frozenset({Mode.GREEDY, Mode.STREAM}))
    decoding, stop = Decoding(max_new_tokens=max_new_tokens), StopFlag()
    spell = Spelling(backbone)
    with watch(backbone, method, top=top, needs_state=False) as take_steps:
        refuse_pictures(backbone.model, [image])
        inputs = backbone.encode([image], [prompt])

        def decode(emit: Callable[[tuple[int, list[StepStates]]], None]) -> None:
            streamer = TokenIds(lambda token: emit((token, take_steps())))
            with asking(backbone.model, [Asked.of(image, prompt)]):
                generate(backbone, inputs, decoding, streamer=streamer, stopping_criteria=StoppingCriteriaList([stop]))

        for token, steps in from_thread(decode, stop):
            if len(steps) != 1 or steps[0].traced is None:
                raise ModelError(f"the head read {len(steps)} states for one token of {method.name}: they cannot be told apart")
            yield spell(token, steps[0])


class Spelling:
    """Turns token ids into tokens with their text; what a token adds depends on the tokens before it."""

    def __init__(self, backbone: Backbone) -> None:
        self.tokenizer, self.end = backbone.tokenizer, end_ids(backbone)
        self.ids: list[int] = []
        self.text = ""

    def __call__(self, token: int, states: StepStates) -> MadeToken:
        self.ids.append(token)
        text = str(self.tokenizer.decode(self.ids, skip_special_tokens=True))
        added = "" if text.endswith("\ufffd") else text[len(self.text) :]  # a character may take several tokens
        self.text += added
        return MadeToken(added, token in self.end, step_of(self.tokenizer, token, states), states)


def step_of(tokenizer: object, token: int, states: StepStates) -> Step:
    """What the method reported for the single row, with its tokens decoded."""
    recorder = Recorder()
    recorder.steps = [states.traced] if states.traced else []
    (step,) = recorder.along([token], [0], lambda id_: str(tokenizer.decode([id_])))  # type: ignore[attr-defined]
    return step
