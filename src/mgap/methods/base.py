"""What a method declares, and what it gets to act with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from os import PathLike
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.errors import SettingError, did_you_mean
from mgap.io.strict_json import lone_surrogate
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.settings import check_choice, check_switch
from mgap.types import Mode


class Loadable(Protocol):
    """Something that can be loaded from the folder it was saved in."""

    @classmethod
    def load(cls, _folder: str | PathLike[str], /) -> Any: ...


Saved = TypeVar("Saved", bound=Loadable)


class Seam(str, Enum):
    """Where a method acts."""

    HEAD = "head"  # the head's input and output, one branch
    BRANCH = "branch"  # a second branch's logits
    LAYERS = "layers"  # states of earlier layers
    ATTENTION = "attention"  # attention scores or weights
    SEARCH = "search"  # the choice among hypotheses


@dataclass(frozen=True)
class Observation:
    """What a method computed in one forward, with the values it used. Tensors stay on their device."""

    values: dict[str, Tensor]  # each [B, T]
    before: Tensor  # [B, T, vocab] logits that the plain model would give
    after: Tensor  # [B, T, vocab] logits that the method gives
    at: tuple[int, ...] | None = (
        None  # each row's position in its answer, for a search that goes back; None: one more each time
    )
    branches: tuple[Tensor, ...] | None = None  # [B, d] each, for a method that may have cached its branches' states


class Tap:
    """Where a method reports its observations and its progress before decoding; costs nothing without a listener."""

    def __init__(self) -> None:
        self.listener: Callable[[Observation], None] | None = None
        self.on_progress: Callable[[str], None] | None = None

    def report(self, text: str) -> None:
        """Report what the method does before the first token, such as describing a picture."""
        if self.on_progress is not None:
            self.on_progress(text)


class Removable(Protocol):
    """What attaching returns: torch's hook handle, or several as one."""

    def remove(self) -> None: ...


class Handles:
    """Several handles as one."""

    def __init__(self, *parts: Removable) -> None:
        self.parts = parts

    def remove(self) -> None:
        for part in self.parts:
            part.remove()


def hooks_of(handle: Removable) -> list[Callable[..., Any]]:
    """The hooks that a handle, or each of several, would remove."""
    if isinstance(handle, Handles):
        return [hook for part in handle.parts for hook in hooks_of(part)]
    if not isinstance(handle, RemovableHandle):
        return []
    hooks = handle.hooks_dict_ref() or {}
    return [hooks[handle.id]] if handle.id in hooks else []


@dataclass(frozen=True)
class Need:
    """What a setting of a method holds: something learnt from the model before decoding."""

    kind: str  # of the registry's LEARNT: subspace, prior_map, steering, bank or null_space
    only_with: str = ""  # a setting; while that is 0, nothing is needed


@dataclass(frozen=True)
class Method(ABC):
    """A decoding method: frozen settings, a declared seam and cost, and a removable hook.

    While it acts, a 16-bit head returns float32, and so does the method (docs/concepts.md); with `exact=False` the plain logits
    that it corrects stay rounded as the model rounds them.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    seam: ClassVar[Seam]
    forwards: ClassVar[float]  # passes through the model per token
    besides: ClassVar[str] = ""  # what else it costs, in a few words
    modes: ClassVar[frozenset[Mode]]  # what it accepts; anything else is refused before a token is generated
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})  # named sets of settings
    needs: ClassVar[Mapping[str, Need]] = MappingProxyType({})  # what must be learnt first, by the setting that holds it
    zero: ClassVar[Mapping[str, Any] | None] = None  # settings that give the plain answers; None: there are none
    shares_prefill: ClassVar[bool] = False  # acts the same if a row's prefix is already in the cache
    needs_picture: ClassVar[bool] = False  # refuses a prompt without one; a run then decodes plainly, and says so
    capturable: ClassVar[bool] = False  # its hooks inside the decoder do the same at every step: a captured step may hold them
    cut: ClassVar[str] = "beta"  # the setting of its plausibility cut, where it has such a setting
    moved_by: ClassVar[str] = ""  # what moves the state it decodes from: a setting or a traced number; "": no single state
    no_state: ClassVar[str] = "does not say which one state of the head's input it decodes from"  # the reason, if so

    exact: bool = field(default=True, kw_only=True)

    @classmethod
    def of(cls, **settings: Any) -> Method:
        """Build the method from named settings, as in YAML or on the command line."""
        cls.check_names(settings)
        cls.check_whole(settings)
        check_switch("exact", settings.get("exact", True))
        for name, value in settings.items():
            if why := lone_surrogate(value):
                raise SettingError(f"{name}: {why}; write the character itself")
        return cls(**settings)

    @classmethod
    def check_names(cls, settings: Collection[str]) -> None:
        """Refuse a setting that the method does not have; needs neither a prior nor a model."""
        known = cls.setting_names()
        for name in settings:
            if name not in known:
                hint = did_you_mean(name, known)
                raise SettingError(f"{cls.name} has no setting {name!r}: choose from {', '.join(known)}{hint}")

    @classmethod
    def setting_names(cls) -> list[str]:
        """Its own settings, then those of every method."""
        every = [f.name for f in fields(Method)]
        return [f.name for f in fields(cls) if f.name not in every] + every

    @classmethod
    def check_whole(cls, settings: Collection[str]) -> None:
        """Refuse if a setting without a default is missing."""
        for name in cls.needed():
            if name not in settings:
                raise SettingError(f"{cls.name} needs a setting {name!r}, which has no default: give {name}=...")

    @classmethod
    def check_values(cls, settings: Mapping[str, Any]) -> None:
        """Refuse values that `check_settings` refuses; needs nothing that is learnt, and no model."""
        draft = object.__new__(cls)  # never used: what it would have learnt is missing
        for each in fields(cls):
            object.__setattr__(draft, each.name, settings.get(each.name, each.default))
        check_switch("exact", draft.exact)
        draft.check_settings()

    def check_settings(self) -> None:  # noqa: B027  most methods check everything in __post_init__
        """Refuse values that no model can make right; reads nothing learnt, and settings left to a preset may be None.

        A method that needs something learnt checks the rest of its settings here, and calls this in __post_init__.
        """

    @classmethod
    def learnt_settings(cls, settings: Mapping[str, Any] | None = None) -> dict[str, Need]:
        """The settings that hold something learnt; given `settings`, only those that are needed with them.

        A setting called `prior` is a subspace, even if `needs` does not list it.
        """
        defaults = {f.name: f.default for f in fields(cls)}
        needs = dict(cls.needs)
        if "prior" in defaults:
            needs.setdefault("prior", Need("subspace"))
        if settings is None:
            return needs
        return {
            name: need
            for name, need in needs.items()
            if not need.only_with or settings.get(need.only_with, defaults[need.only_with]) not in (0, None, False)
        }

    @classmethod
    def takes_prior(cls) -> bool:
        """Whether a subspace of the model's prior is one of its settings."""
        return any(need.kind == "subspace" for need in cls.learnt_settings().values())

    @classmethod
    def needed(cls) -> list[str]:
        """The settings that have no default."""
        return [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]

    @classmethod
    def cut_off(cls, settings: Mapping[str, Any]) -> float:
        """The share of the likeliest token's probability below which it drops tokens; 0: it drops none by that."""
        defaults = {f.name: f.default for f in fields(cls)}
        preset = cls.presets.get(settings.get("preset", defaults.get("preset")), {})
        given = settings.get(cls.cut, defaults.get(cls.cut))
        return float((preset.get(cls.cut) if given is None else given) or 0.0)

    @classmethod
    def files_named(cls, settings: Mapping[str, Any]) -> dict[str, str]:  # noqa: ARG003
        """SHA-256 of the files that settings name, by path; a run notes them, and is not resumed with others."""
        return {}

    @property
    def is_zero(self) -> bool:
        """Whether its settings are those that give the plain answers."""
        return self.zero is not None and all(getattr(self, name) == value for name, value in self.zero.items())

    def fill_from_preset(self) -> None:
        """Fill settings that are None from the preset that `preset` names; for __post_init__."""
        name = check_choice("preset", self.preset, self.presets)  # type: ignore[attr-defined]  # a field of methods with presets
        self.fill_in(self.presets[name])

    def fill_in(self, values: Mapping[str, Any]) -> None:
        """Give settings that are None these values; for __post_init__."""
        for name, value in values.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @abstractmethod
    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        """Hook into the model, or raise and leave nothing behind."""

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:  # noqa: ARG002
        """The head inputs [B, d] from which the plain model would predict what this method decodes from at this strength.

        The strength replaces what `moved_by` names, at the token that `inputs` belong to. Other choices that the method made
        there, such as a layer, stay as they were. Tokens that the method drops afterwards are not considered.
        """
        raise SettingError(self._stateless)

    def own_strength(self, inputs: HeadInputs) -> Weight:
        """The strength it decoded this token with: a number, or one per row [B, 1]."""
        if self.moved_by in inputs.values:
            return inputs.values[self.moved_by].unsqueeze(-1)
        return float(getattr(self, self.moved_by))

    def require_state(self) -> None:
        """Refuse settings under which the method does not decode from a single head input moved by one number."""
        if not self.moved_by:
            raise SettingError(self._stateless)

    @property
    def has_state(self) -> bool:
        """Whether `require_state` passes."""
        try:
            self.require_state()
        except SettingError:
            return False
        return True

    @property
    def is_set_by_strength(self) -> bool:
        """Whether the strength is a setting; otherwise it is constant, or computed for every token."""
        return self.moved_by in {f.name for f in fields(self)}

    def with_strength(self, strength: float) -> Method:
        """The method at another strength; refuses a method whose strength is not a setting."""
        self.require_state()
        if not self.is_set_by_strength:
            raise SettingError(f"{self.name} has no setting for its {self.moved_by}: it cannot be set to {strength}")
        return replace(self, **{self.moved_by: strength})  # type: ignore[arg-type]  # a setting of the subclass

    @property
    def _stateless(self) -> str:
        return f"{self.name} {self.no_state}: leave {self.name} out"


def load_if_path(name: str, value: Saved | str | PathLike[str], kind: type[Saved]) -> Saved:
    """The object that a setting holds: given as such, or loaded from the folder it was saved in."""
    if isinstance(value, str | PathLike):
        value = kind.load(value)
    if not isinstance(value, kind):
        raise SettingError(f"{name} must be a {kind.__name__} or its folder, not {type(value).__name__}")
    return value
