"""What a method declares, and what it is given to act with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from os import PathLike
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.settings import check_choice
from mgap.types import Mode


class Saves(Protocol):
    """What can be read from the folder that it was saved in."""

    @classmethod
    def load(cls, _folder: str | PathLike[str], /) -> Any: ...


Saved = TypeVar("Saved", bound=Saves)


class Seam(str, Enum):
    """Where a method acts."""

    HEAD = "head"  # the head's input and output, one branch
    BRANCH = "branch"  # a second branch's logits
    LAYERS = "layers"  # states of earlier layers
    ATTENTION = "attention"  # attention scores or weights
    SEARCH = "search"  # the choice among hypotheses


@dataclass(frozen=True)
class Observation:
    """What a method computed in one forward, as it used it. Tensors stay on their device."""

    values: dict[str, Tensor]  # each [B, T]
    before: Tensor  # [B, T, vocab] logits that the plain model would give
    after: Tensor  # [B, T, vocab] logits that the method gives
    at: tuple[int, ...] | None = (
        None  # each row's place in its answer, of a search that goes back; None: one further every time
    )
    branches: tuple[Tensor, ...] | None = None  # [B, d] each, of a method that may know its branches' states from before


class Tap:
    """Where a method reports its observations, and what keeps it from decoding; costs nothing while nobody listens."""

    def __init__(self) -> None:
        self.listener: Callable[[Observation], None] | None = None
        self.on_progress: Callable[[str], None] | None = None

    def tell(self, text: str) -> None:
        """Say what is being done before the first token, such as describing a picture."""
        if self.on_progress is not None:
            self.on_progress(text)


class Removable(Protocol):
    """What attaching gives back: torch's handle of a hook, or several as one."""

    def remove(self) -> None: ...


class Handles:
    """Several hooks as one."""

    def __init__(self, *parts: Removable) -> None:
        self.parts = parts

    def remove(self) -> None:
        for part in self.parts:
            part.remove()


@dataclass(frozen=True)
class Need:
    """What one of a method's settings holds: something that is learnt from the model before it decodes."""

    kind: str  # of the registry's LEARNT: subspace, prior_map, steering or bank
    only_with: str = ""  # a setting; while that is 0, nothing is needed


class Method(ABC):
    """A decoding method: frozen settings, a declared seam and cost, and a hook that can be taken away again."""

    name: ClassVar[str]
    summary: ClassVar[str]
    seam: ClassVar[Seam]
    forwards: ClassVar[float]  # passes through the model per token
    besides: ClassVar[str] = ""  # what else it costs, in a few words
    modes: ClassVar[frozenset[Mode]]  # what it accepts; anything else is refused before a token is made
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})  # named settings, where there are several
    needs: ClassVar[Mapping[str, Need]] = MappingProxyType({})  # what must be learnt first, by the setting that holds it
    zero: ClassVar[Mapping[str, Any] | None] = None  # settings at which it says what plain decoding says; None: there are none
    shares_prefill: ClassVar[bool] = False  # acts in the same way where the beginning of a row is in the cache already
    moved_by: ClassVar[str] = (
        ""  # what moves the state it decodes from: a setting, or a number that it traces; "": there is no one state
    )
    no_state: ClassVar[str] = "does not say which one state of the head's input it decodes from"  # why, where there is none

    @classmethod
    def of(cls, **settings: Any) -> Method:
        """Build it from named settings, as they stand in YAML or on the command line."""
        cls.check_names(settings)
        cls.check_whole(settings)
        return cls(**settings)

    @classmethod
    def check_names(cls, settings: Collection[str]) -> None:
        """Refuse a setting that the method does not have; needs neither a prior nor a model."""
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]  # every method is a dataclass
        for name in settings:
            if name not in known:
                raise SettingError(f"{cls.name} has no setting {name!r}: choose from {', '.join(known)}")

    @classmethod
    def check_whole(cls, settings: Collection[str]) -> None:
        """Refuse to do without a setting that has no default."""
        for name in cls.needed():
            if name not in settings:
                raise SettingError(f"{cls.name} needs a setting {name!r}, which has no default: give {name}=...")

    @classmethod
    def learnt_settings(cls, settings: Mapping[str, Any] | None = None) -> dict[str, Need]:
        """The settings that hold something learnt; with `settings`, only those that these make it need.

        A setting called `prior` is a subspace, whether `needs` says so or not.
        """
        of = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]  # every method is a dataclass
        found = {**cls.needs, **({"prior": Need("subspace")} if "prior" in of and "prior" not in cls.needs else {})}
        if settings is None:
            return found
        return {
            name: need
            for name, need in found.items()
            if not need.only_with or settings.get(need.only_with, of[need.only_with].default) not in (0, None, False)
        }

    @classmethod
    def takes_prior(cls) -> bool:
        """Whether a subspace of the model's prior is one of its settings."""
        return any(need.kind == "subspace" for need in cls.learnt_settings().values())

    @classmethod
    def needed(cls) -> list[str]:
        """The settings that have no default."""
        return [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]

    def fill_from_preset(self) -> None:
        """Settings that were not given (None) take the values of the preset that `preset` names; for __post_init__."""
        chosen = check_choice("preset", self.preset, self.presets)  # type: ignore[attr-defined]  # a field of methods with presets
        self.fill_in(self.presets[chosen])

    def fill_in(self, values: Mapping[str, Any]) -> None:
        """Give settings that are None these values; for __post_init__."""
        for name, value in values.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @abstractmethod
    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        """Hook into the model, or raise; leaves nothing behind when it raises."""

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:  # noqa: ARG002
        """The head inputs [B, d] that would make the plain model predict what this method decodes from at a strength.

        The strength stands for what `moved_by` names, at the token that `inputs` belong to: a choice that the method made
        there, such as of a layer, is the one used. That a method drops unlikely tokens afterwards is another matter.
        """
        raise SettingError(self._stateless)

    def own_strength(self, inputs: HeadInputs) -> Weight:
        """The strength that it decoded this token with: a number, or one a row [B, 1]."""
        if self.moved_by in inputs.values:
            return inputs.values[self.moved_by].unsqueeze(-1)
        return float(getattr(self, self.moved_by))

    def require_state(self) -> None:
        """Refuse settings under which no one head input, moved by one number, says what is decoded from."""
        if not self.moved_by:
            raise SettingError(self._stateless)

    @property
    def has_state(self) -> bool:
        """Whether `require_state` lets it pass."""
        try:
            self.require_state()
        except SettingError:
            return False
        return True

    @property
    def is_set_by_strength(self) -> bool:
        """Whether the strength is a setting; otherwise it is one and the same, or found anew for every token."""
        return self.moved_by in {f.name for f in fields(self)}  # type: ignore[arg-type]  # every method is a dataclass

    def with_strength(self, strength: float) -> Method:
        """The same at another strength; refuses a method whose strength is no setting."""
        self.require_state()
        if not self.is_set_by_strength:
            raise SettingError(f"{self.name} has no setting for its {self.moved_by}: it cannot be set to {strength}")
        return replace(self, **{self.moved_by: strength})  # type: ignore[type-var]  # every method is a dataclass

    @property
    def _stateless(self) -> str:
        return f"{self.name} {self.no_state}: leave {self.name} out"


def loaded(name: str, value: Saved | str | PathLike[str], kind: type[Saved]) -> Saved:
    """What a setting holds: an object of this kind as it is, or read from the folder that it was saved in."""
    if isinstance(value, str | PathLike):
        value = kind.load(value)
    if not isinstance(value, kind):
        raise SettingError(f"{name} must be a {kind.__name__} or its folder, not {type(value).__name__}")
    return value
