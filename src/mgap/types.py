"""Small frozen dataclasses that every package shares."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from mgap.errors import SettingError, UnsupportedDecoding
from mgap.settings import LARGEST


class Mode(str, Enum):
    """A mode of decoding. A method declares which ones it supports."""

    GREEDY = "greedy"
    SAMPLE = "sample"
    BEAM = "beam"
    STREAM = "stream"
    BATCH = "batch"
    SEQUENCES = "sequences"  # num_return_sequences > 1
    ASSISTED = "assisted"  # a draft model, or n-gram lookup in the prompt
    STATIC = "static"  # preallocated cache
    COMPILE = "compile"  # torch.compile'd decoding steps


ALL_MODES = frozenset(Mode)
LEAST_DIVISOR = 1e-10  # far below any temperature in use, and far above what would make logits infinite


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen. The keys are the same on the command line, in YAML and in Python."""

    max_new_tokens: int = 512
    sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0  # least probability, as a share of the likeliest token's, after the temperature; 0: off
    seed: int = 0  # of the sampling
    num_beams: int = 1
    num_return_sequences: int = 1
    repetition_penalty: float = 1.0
    prompt_lookup: int = 0  # draft tokens per step, copied from the prompt; 0: off
    static_cache: bool = False
    compile: bool = False  # implies static_cache

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_beams", "num_return_sequences", "top_k", "prompt_lookup", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value >= 2**63:
                raise SettingError(f"{name}={value!r:.40} must be a whole number")
        for name in ("sample", "static_cache", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name}={getattr(self, name)!r:.40} must be true or false")
        for name in ("max_new_tokens", "num_beams", "num_return_sequences"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("top_k", "prompt_lookup", "seed"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name}={getattr(self, name)} must not be negative")
        for name in ("temperature", "repetition_penalty", "top_p"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
                raise SettingError(f"{name}={value!r:.40} must be a positive number")
        for name in ("temperature", "repetition_penalty"):  # scores are divided by them in float32
            if not LEAST_DIVISOR <= (value := getattr(self, name)) <= 1 / LEAST_DIVISOR:
                raise SettingError(f"{name}={value!r:.40} must be from {LEAST_DIVISOR:g} to {1 / LEAST_DIVISOR:g}")
        if self.top_p > 1:
            raise SettingError(f"top_p={self.top_p} must be in (0, 1]")
        if isinstance(self.min_p, bool) or not isinstance(self.min_p, int | float) or not 0 <= self.min_p < 1:
            raise SettingError(f"min_p={self.min_p!r:.40} must be a number of at least 0 and below 1")
        if not self.sample and (self.temperature, self.top_p, self.top_k, self.min_p) != (1.0, 1.0, 0, 0.0):
            raise SettingError("temperature, top_p, top_k and min_p act on sampling only: pass sample=True as well")
        if self.num_return_sequences > 1 and not self.sample and self.num_return_sequences > self.num_beams:
            raise SettingError(
                f"num_return_sequences={self.num_return_sequences} without sampling needs at least as many beams: "
                f"set num_beams={self.num_return_sequences} or sample=True"
            )

    @classmethod
    def of(cls, **options: Any) -> Decoding:
        names = {f.name for f in fields(cls)}
        unknown = sorted(set(options) - names)
        if unknown:
            raise SettingError(f"unknown decoding option {unknown[0]!r}: choose from {', '.join(sorted(names))}")
        return cls(**options)

    def modes(self, *, rows: int = 1, stream: bool = False, assistant: bool = False) -> frozenset[Mode]:
        """The modes of a call with these options and this many rows; refuses modes that cannot be combined."""
        enabled = {
            Mode.SAMPLE: self.sample,
            Mode.BEAM: self.num_beams > 1,
            Mode.STREAM: stream,
            Mode.BATCH: rows > 1,
            Mode.SEQUENCES: self.num_return_sequences > 1,
            Mode.ASSISTED: assistant or self.prompt_lookup > 0,
            Mode.STATIC: self.static_cache or self.compile,
            Mode.COMPILE: self.compile,
        }
        modes = {mode for mode, is_on in enabled.items() if is_on}
        if not modes & {Mode.SAMPLE, Mode.BEAM}:
            modes.add(Mode.GREEDY)
        for one, other in _EXCLUSIVE:
            if {one, other} <= modes:
                raise UnsupportedDecoding(f"{one.value} and {other.value} decoding cannot be combined: drop one of them")
        return frozenset(modes)


_EXCLUSIVE = (
    (Mode.ASSISTED, Mode.BEAM),
    (Mode.ASSISTED, Mode.BATCH),
    (Mode.ASSISTED, Mode.SEQUENCES),
    (Mode.ASSISTED, Mode.STATIC),
    (Mode.STREAM, Mode.BEAM),
    (Mode.STREAM, Mode.BATCH),
    (Mode.STREAM, Mode.SEQUENCES),
)


@dataclass(frozen=True)
class Sample:
    """One question about one picture, and its ground truth."""

    id: str  # unique in its benchmark, such as "adversarial/17"
    image: str  # the picture's name in the benchmark's folder of pictures; "": the question is asked without one
    prompt: str  # before any chat template
    group: str  # the split or kind that it is scored in, such as "adversarial"
    truth: Any  # plain JSON; its form depends on the task: a label, or the objects in the picture


@dataclass(frozen=True)
class Candidate:
    """One token of a distribution."""

    token_id: int
    token: str
    probability: float


@dataclass(frozen=True)
class Step:
    """What a method measured and changed when one token was chosen."""

    token_id: int
    token: str
    values: dict[str, float]  # the method's own names, e.g. entropy, cosine, delta, gamma, beta
    before: tuple[Candidate, ...]
    after: tuple[Candidate, ...]


@dataclass(frozen=True)
class Answer:
    """A generated text and how it was generated. Prints as the text."""

    text: str
    token_ids: tuple[int, ...]
    stop: str  # "end" (an end token) or "length" (max_new_tokens, or the model's last position)
    prompt: str  # as the model reads it, before image tokens are expanded
    milliseconds: float  # of the generate call (shared by the rows of a batch)
    alternatives: tuple[Answer, ...] = ()  # the other sequences of num_return_sequences
    trace: tuple[Step, ...] | None = field(default=None, repr=False)
    ties: int | None = None  # tokens that were chosen among equal best scores; None: not counted
    log_odds: float | None = None  # of yes against no at the first token, before anything is drawn; None: not read

    def __str__(self) -> str:
        return self.text
