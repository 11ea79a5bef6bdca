"""The workload of bench/decoding.py: encoded rows of pictures and a prompt, and the methods to answer them with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import measure
import shapes
import torch
from marks import StepTimer
from PIL import ImageOps
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import mgap
from mgap.backbones.asked_rows import Asked, asking
from mgap.decoding.attach import refuse_modes
from mgap.decoding.fast.captured_loop import generate_captured, head_of, uses_captured_loop
from mgap.decoding.generate import generate
from mgap.errors import MgapError
from mgap.methods.base import Method, Tap
from mgap.methods.kinds.main_rows import Hook, on_main_rows, row_split_of
from mgap.methods.mgap import Correction
from mgap.priors.prompts import default_prompts
from mgap.priors.steering import Steering
from mgap.registry import METHODS
from mgap.types import Decoding

VANILLA = "vanilla"
AGAIN = "vanilla-again"  # vanilla once more: how far from 1 a ratio is by chance
SEQUENTIAL = "-sequential"  # suffix of a method's name: its branch runs in separate forwards
LARGE = 50.0  # an alpha that changes every answer
PROMPT_TOKENS = 40  # without the picture's
COMPARED_TOKENS = 8  # at the beginning of an answer
DESCRIBES = ("code", "haltrapper")  # methods that let the model describe a new picture first, and cache the description
DESCRIPTION_TOKENS = 16


class NoEffect(MgapError):
    """The method changes no token, so its times would mean nothing."""


class Timing(NamedTuple):
    """The times of one answer under a method."""

    prompt_ms: float
    step_ms: float  # median
    plain_ms: float  # a plain step's, from the same answer or the one right after it
    peak_gib: float  # allocated


@dataclass(frozen=True)
class Case:
    """Encoded rows and how to decode them."""

    model: mgap.Model
    inputs: dict[str, Tensor]
    new_tokens: int
    options: dict[str, bool]  # of the decoding

    @property
    def rows(self) -> int:
        return len(self.inputs["input_ids"])

    def decoding(self, new: int) -> Decoding:
        return Decoding(max_new_tokens=new, **self.options)

    def answer(self, new: int) -> Tensor:
        """Tokens [B, new]. Raises if an answer ended early: its time would count as that of a longer one."""
        backbone, decoding = self.model.backbone, self.decoding(new)
        with asking(backbone.model, [Asked(partial(shapes.picture, row), "") for row in range(self.rows)]):
            if uses_captured_loop(backbone, decoding.modes(rows=self.rows)):
                tokens = generate_captured(backbone, self.inputs, decoding, head=head_of(backbone), notify=measure.say).tokens
            else:
                tokens = generate(backbone, self.inputs, decoding).tokens
        if tokens.shape != (self.rows, new):
            raise RuntimeError(f"asked for {self.rows} x {new} tokens and got {tuple(tokens.shape)}: times would mean nothing")
        return tokens

    def using(self, method: Method | None) -> Any:
        if method is None:
            return nullcontext()
        refuse_modes(method, self.decoding(1).modes(rows=self.rows))
        return self.model.using(method)

    def first_tokens(self, method: Method | None) -> Tensor:
        """The first tokens [B, n] under a method. Also warms up."""
        with self.using(method):
            return self.answer(self.new_tokens if self.options else min(self.new_tokens, COMPARED_TOKENS))[:, :COMPARED_TOKENS]

    def time_method(self, name: str, method: Method | None) -> dict[str, Timing]:
        """Time an answer under the method, then a plain one. Descriptions of new pictures are made before."""
        with self.using(method):
            if name.partition(SEQUENTIAL)[0] in DESCRIBES:
                self.answer(1)
            made = self._timed({name: None})
        if name == VANILLA:
            return made
        plain = self._timed({VANILLA: None})[VANILLA]
        return {name: made[name]._replace(plain_ms=plain.step_ms)}

    def time_alternating(self, method: mgap.MGAP) -> dict[str, Timing]:
        """Time an answer in which plain steps and MGAP's alternate."""
        backbone = self.model.backbone
        correction = Correction(method.subspace.basis, head_of(backbone), method.settings, Tap())
        return self._timed({VANILLA: None, method.name: on_main_rows(correction, row_split_of(backbone.model))})

    def _timed(self, ways: dict[str, Hook | None]) -> dict[str, Timing]:
        with StepTimer(self.model.backbone, ways) as timer:
            self.answer(self.new_tokens)
        peak = measure.peak_gib() if timer.peak is None else timer.peak / measure.GIB
        steps = timer.step_ms(self.new_tokens)
        return {name: Timing(timer.prompt_ms, ms, steps.get(VANILLA, ms), peak) for name, ms in steps.items()}

    def plain_choices(self, words: Tensor) -> Tensor:
        """The plain model's choice [B, n] at each step of an answer, given the answer's own tokens so far."""
        follow = ForcedTokens(words)
        eager = Decoding(max_new_tokens=words.shape[1])
        generate(self.model.backbone, self.inputs, eager, logits_processor=LogitsProcessorList([follow]))
        return torch.stack(follow.chosen, dim=1)


class ForcedTokens(LogitsProcessor):
    """Makes `generate` produce given tokens [B, n], and keeps its own choice at each step."""

    def __init__(self, words: Tensor) -> None:
        self.words, self.chosen = words, list[Tensor]()

    def __call__(self, _ids: Tensor, scores: Tensor) -> Tensor:
        tokens = self.words[:, len(self.chosen)]
        self.chosen.append(scores.argmax(-1).cpu())
        return torch.full_like(scores, -torch.inf).scatter(1, tokens.unsqueeze(1).to(scores.device), 0.0)


def make_endless(model: mgap.Model) -> None:
    """Make answers never end by themselves: the EOS id is set outside the head's vocabulary."""
    model.backbone.model.generation_config.eos_token_id = model.backbone.probe_head().vocab_size


def encode_rows(model: mgap.Model, rows: int) -> dict[str, Tensor]:
    """Encode rows with different pictures and one prompt of about PROMPT_TOKENS tokens."""
    backbone = model.backbone
    words = " ".join(default_prompts()).split()
    count = next(
        n for n in range(1, len(words)) if len(backbone.tokenize(backbone.render(" ".join(words[:n])))) > PROMPT_TOKENS
    )
    return backbone.encode([shapes.picture(row) for row in range(rows)], [" ".join(words[:count])] * rows)


BANK_STATES = 4096  # states of a tether's bank


def bring_mirrored(asked: Sequence[Asked]) -> list[mgap.Evidence]:
    """Evidence that costs next to nothing to bring: each picture, mirrored."""
    return [mgap.Evidence((ImageOps.mirror(row.picture),)) for row in asked]


def build_method(name: str, model: mgap.Model, prior: mgap.Subspace) -> Method | None:
    """A method with its usual settings, but short descriptions and random vectors or maps where it needs fitted ones."""
    if name in (VANILLA, AGAIN):
        return None
    backbone, generator = model.backbone, torch.Generator().manual_seed(0)
    name, is_sequential, _ = name.partition(SEQUENTIAL)
    settings: dict[str, Any] = {"branch_mode": "sequential"} if is_sequential else {}
    if name == "mgap":
        settings = {"prior": prior, "preset": "paper"}
    elif name == "predicted-prior":
        drawn = torch.randn(prior.rank, prior.hidden_size, generator=generator, dtype=torch.float64)
        settings = {"prior_map": mgap.PriorMap(drawn, drawn[:, 0].contiguous(), prior, count=0, r2=0.0, ridge=0.0)}
    elif name == "prompt-prior":
        settings["prior"] = prior
    elif name == "tether":
        settings["bank"] = mgap.Bank.of(torch.randn(BANK_STATES, prior.hidden_size, generator=generator))
    elif name == "asd":
        drawn = torch.randn(len(backbone.layers), prior.hidden_size, generator=generator, dtype=torch.float64)
        settings["steering"] = Steering(drawn, (1, 1), backbone.identity)
    elif name == "nullu":
        states = torch.randn(2, 8, len(backbone.layers), prior.hidden_size, generator=generator)
        settings["space"] = mgap.NullSpace.from_states(*states)
    elif name == "given":
        settings["evidence"] = bring_mirrored
    elif name == "bias":
        settings = {"shift": 1.0, "up": ("the",), "down": ("a",)}
    elif name == "yes-if-close":
        settings = {"up": ("the",), "down": ("a",)}
    elif name in DESCRIBES:
        settings["length"] = DESCRIPTION_TOKENS
    method: Method = METHODS.get(name).of(**settings)
    return method


def require_effect(case: Case, prior: mgap.Subspace) -> None:
    """Raise if the steps of this way of decoding bypass the hook, or if the prior changes nothing.

    The first token does not count: in compiled decoding it comes from another forward than the steps.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="alpha=")
        strong = mgap.MGAP(prior, alpha=LARGE)
    words = case.first_tokens(strong)
    same = float((words == case.plain_choices(words))[:, 1:].float().mean())
    if same > 0.5:
        raise NoEffect(
            f"mgap at alpha={LARGE:g} chooses what the plain model would in {same:.0%} of the steps: it does not act here, "
            "so it is not timed"
        )
