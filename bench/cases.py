"""What bench/decoding.py times: rows of pictures and a prompt, ready to be answered, and the methods to answer them with."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import measure
import shapes
import torch
from marks import Marks
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import mgap
from mgap.decoding.attach import refuse_modes
from mgap.decoding.fast.captured_loop import generate_captured, head_of, is_ours
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
AGAIN = "vanilla-again"  # the same once more: how far from 1 a ratio is by chance
SEQUENTIAL = "-sequential"  # behind a method's name: its branch has forwards of its own
LARGE = 50.0  # an alpha that no answer survives
WORDS = 40  # tokens of the prompt besides the picture's
BEGINNING = 8  # tokens of an answer that are looked at
DESCRIBES = ("code", "haltrapper")  # ask the model about a picture first, and remember it
DESCRIBED = 16  # tokens of what it says then


class NoEffect(MgapError):
    """A method that leaves every token as it is: its times would say nothing."""


class Turn(NamedTuple):
    """One answer of a method."""

    prompt_ms: float
    step_ms: float  # the median
    plain_ms: float  # a plain step's, of the same answer or of one right behind it
    peak_gib: float  # at most allocated


@dataclass(frozen=True)
class Case:
    """Rows that are ready to be answered, and how."""

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
        """Tokens [B, new]; refuses an answer that ended by itself, which would be timed as a longer one."""
        backbone, decoding = self.model.backbone, self.decoding(new)
        if is_ours(backbone, decoding.modes(rows=self.rows)):
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

    def beginning(self, method: Method | None) -> Tensor:
        """The first words under a method, [B, n]; also warms up whatever is slow the first time."""
        with self.using(method):
            return self.answer(self.new_tokens if self.options else min(self.new_tokens, BEGINNING))[:, :BEGINNING]

    def turn(self, name: str, method: Method | None) -> dict[str, Turn]:
        """An answer of its own, and a plain one at once; what a method asks about a picture it sees first is asked before."""
        with self.using(method):
            if name.partition(SEQUENTIAL)[0] in DESCRIBES:
                self.answer(1)
            made = self._timed({name: None})
        if name == VANILLA:
            return made
        plain = self._timed({VANILLA: None})[VANILLA]
        return {name: made[name]._replace(plain_ms=plain.step_ms)}

    def beside(self, method: mgap.MGAP) -> dict[str, Turn]:
        """An answer in which plain steps and those of MGAP take turns."""
        backbone = self.model.backbone
        correction = Correction(method.subspace.basis, head_of(backbone), method.settings, Tap())
        return self._timed({VANILLA: None, method.name: on_main_rows(correction, row_split_of(backbone.model))})

    def _timed(self, ways: dict[str, Hook | None]) -> dict[str, Turn]:
        with Marks(self.model.backbone, ways) as marks:
            self.answer(self.new_tokens)
        peak = measure.peak_gib() if marks.peak is None else marks.peak / measure.GIB
        steps = marks.step_ms(self.new_tokens)
        return {name: Turn(marks.prompt_ms, ms, steps.get(VANILLA, ms), peak) for name, ms in steps.items()}

    def plainly(self, words: Tensor) -> Tensor:
        """What the plain model would choose at each step of an answer [B, n], after the answer's own words."""
        follow = Follow(words)
        eager = Decoding(max_new_tokens=words.shape[1])
        generate(self.model.backbone, self.inputs, eager, logits_processor=LogitsProcessorList([follow]))
        return torch.stack(follow.chosen, dim=1)


class Follow(LogitsProcessor):
    """Makes generate say given words [B, n], and keeps what it would have said at each step."""

    def __init__(self, words: Tensor) -> None:
        self.words, self.chosen = words, list[Tensor]()

    def __call__(self, _ids: Tensor, scores: Tensor) -> Tensor:
        said = self.words[:, len(self.chosen)]
        self.chosen.append(scores.argmax(-1).cpu())
        return scores.scatter(1, said.unsqueeze(1).to(scores.device), torch.inf)


def make_endless(model: mgap.Model) -> None:
    """No answer ends by itself: the token that would end it is one that the head does not have."""
    model.backbone.model.generation_config.eos_token_id = model.backbone.probe_head().vocab_size


def ask(model: mgap.Model, rows: int) -> dict[str, Tensor]:
    """A picture of its own for every row, and one prompt of about so many tokens."""
    backbone = model.backbone
    words = " ".join(default_prompts()).split()
    count = next(n for n in range(1, len(words)) if len(backbone.tokenize(backbone.render(" ".join(words[:n])))) > WORDS)
    return backbone.encode([shapes.picture(row) for row in range(rows)], [" ".join(words[:count])] * rows)


BANKED = 4096  # states of a tether's bank


def build_method(name: str, model: mgap.Model, prior: mgap.Subspace) -> Method | None:
    """A method with its usual settings; descriptions are short, and what needs fitted vectors, or a map, gets random ones."""
    if name in (VANILLA, AGAIN):
        return None
    backbone, generator = model.backbone, torch.Generator().manual_seed(0)
    name, apart, _ = name.partition(SEQUENTIAL)
    settings: dict[str, Any] = {"branch_mode": "sequential"} if apart else {}
    if name == "mgap":
        settings = {"prior": prior, "preset": "paper"}
    elif name == "predicted-prior":
        drawn = torch.randn(prior.rank, prior.hidden_size, generator=generator, dtype=torch.float64)
        settings = {"prior_map": mgap.PriorMap(drawn, drawn[:, 0].contiguous(), prior, count=0, r2=0.0, ridge=0.0)}
    elif name == "prompt-prior":
        settings["prior"] = prior
    elif name == "tether":
        settings["bank"] = mgap.Bank.of(torch.randn(BANKED, prior.hidden_size, generator=generator))
    elif name == "asd":
        drawn = torch.randn(len(backbone.layers), prior.hidden_size, generator=generator, dtype=torch.float64)
        settings["steering"] = Steering(drawn, (1, 1), backbone.identity)
    elif name == "bias":
        settings = {"shift": 1.0, "up": ("the",), "down": ("a",)}
    elif name in DESCRIBES:
        settings["length"] = DESCRIBED
    method: Method = METHODS.get(name).of(**settings)
    return method


def require_effect(case: Case, prior: mgap.Subspace) -> None:
    """Refuse a way of decoding whose steps pass over the hook, and a prior that moves nothing.

    The prompt's own token does not count: in compiled decoding it comes from another forward than the steps.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="alpha=")
        strong = mgap.MGAP(prior, alpha=LARGE)
    words = case.beginning(strong)
    same = float((words == case.plainly(words))[:, 1:].float().mean())
    if same > 0.5:
        raise NoEffect(
            f"mgap at alpha={LARGE:g} chooses what the plain model would in {same:.0%} of the steps: it does not act here, "
            "so it is not timed"
        )
