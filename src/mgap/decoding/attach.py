"""Attach methods to a model and detach them: the only place that registers and removes a method's hooks.

No class is patched and no module is replaced. While a method acts, a 16-bit head has a `forward` of its own, which returns
float32, and a search method puts its own `generate` on the model object.

torch.compile does not guard hooks by default: a graph compiled before a hook was registered would skip it silently. Attaching
and detaching therefore discard compiled graphs.

Hooks belong to the model, not to a thread. Methods change between two answers, never during one (model_lock.py). One thread
must attach all methods of a stack; if two threads try at once, one is refused.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from mgap.backbones.base import Backbone
from mgap.backbones.checked_generate import PLAIN
from mgap.backbones.exact_product import make_exact, make_own
from mgap.backbones.head import find_head
from mgap.backbones.prepared_pictures import Shown, pictures_in
from mgap.decoding.model_lock import lock_of
from mgap.decoding.trace import Recorder
from mgap.errors import PromptError, SettingError, UnsupportedDecoding
from mgap.methods.base import Method, Seam, Tap, hooks_of
from mgap.methods.kinds.main_rows import row_split_of
from mgap.settings import check_switch
from mgap.types import Mode

_attached: WeakKeyDictionary[nn.Module, list[Attachment]] = WeakKeyDictionary()


class Attachment:
    """A method attached to a model. Call `detach()`, or use it as a context manager."""

    def __init__(self, backbone: Backbone, method: Method) -> None:
        self.method, self._model, self._tap = method, backbone.model, Tap()
        self._thread = threading.get_ident()
        check_switch("exact", method.exact)
        with lock_of(backbone.model):
            self._refuse_others()
            with row_split_of(backbone.model).paused():  # a method may run the model while it attaches
                self._handle = method.attach(backbone, self._tap)
            _attached.setdefault(self._model, []).append(self)
            _set_exactness(self._model)
            _discard_compiled()

    def _refuse_others(self) -> None:
        present = attached(self._model)
        if any(other._thread != self._thread for other in present):
            names = " and ".join(other.method.name for other in present)
            raise SettingError(
                f"{names} is on this model in another thread, and {self.method.name} would be mixed with it: let one thread at "
                "a time switch methods on, or load a model for each"
            )
        refuse_stack([other.method for other in present], self.method)

    def detach(self) -> None:
        """Detach the method and restore the model. Calling it twice does no harm."""
        with lock_of(self._model):
            if self in attached(self._model):
                self._handle.remove()
                _attached[self._model].remove(self)
                _set_exactness(self._model)
                _discard_compiled()

    @property
    def hooks(self) -> list[Callable[..., Any]]:
        """The hooks through which the method acts."""
        return hooks_of(self._handle)

    @contextmanager
    def record(self, top: int = 5) -> Iterator[Recorder]:
        """Record what the method reads and does in each forward, with the `top` tokens before and after."""
        if self._tap.listener is not None:
            raise SettingError("this attachment is being recorded already: leave the other record() first")
        recorder = Recorder(top)
        self._tap.listener = recorder
        try:
            yield recorder
        finally:
            self._tap.listener = None

    @contextmanager
    def hear(self, on_progress: Callable[[str], None]) -> Iterator[None]:
        """Get a line of text for each thing the method does before it can decode, such as describing a picture."""
        previous, self._tap.on_progress = self._tap.on_progress, on_progress
        try:
            yield
        finally:
            self._tap.on_progress = previous

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()


def attach(model: Any, method: Method) -> Attachment:
    """Attach a method to a model: your own transformers model, or one from `mgap.load`.

    From then on the model's own `generate(...)` uses it, in every mode that the method accepts.
    """
    if not isinstance(method, Method):
        raise SettingError(f"{method!r} is not a method: pass, for example, mgap.MGAP(prior)")
    return Attachment(Backbone.of(model), method)


def attached(model: nn.Module) -> list[Attachment]:
    return _attached.get(model, [])


def acting(model: nn.Module) -> str:
    """Who decodes, for an error: the methods that are attached, or the plain model."""
    return " and ".join(attachment.method.name for attachment in attached(model)) or PLAIN


@contextmanager
def answering(model: nn.Module, expected: Sequence[Attachment]) -> Iterator[None]:
    """Hold the model's lock; refuse if the attached methods are no longer those `expected`, from the time of asking."""
    with lock_of(model):
        if attached(model) != list(expected):
            were, are = (", ".join(one.method.name for one in which) or "no method" for which in (expected, attached(model)))
            raise SettingError(
                f"methods were switched after this was asked, with {were} on and {are} now: ask inside the `with` block and "
                "read all answers there, or load a model for each thread"
            )
        yield


def refuse_stack(present: Sequence[Method], method: Method) -> None:
    """Allow one method, or one at the head with one that has a second branch; the head method then acts on the main rows."""
    seams = [other.seam for other in (*present, method)]
    if present and sorted(seams) != [Seam.BRANCH, Seam.HEAD]:
        names = " and ".join(other.name for other in present)
        raise SettingError(
            f"{names} is already attached to this model, and {method.name} cannot be put on top: only a method at the head and "
            f"one with a second branch stack; detach {present[-1].name} first"
        )


def refuse_modes(method: Method | type[Method], modes: frozenset[Mode]) -> None:
    """Raise, before any token is generated, if a method (or its class) does not accept these decoding modes."""
    refused = sorted(mode.value for mode in modes - method.modes)
    if refused:
        accepted = ", ".join(sorted(mode.value for mode in method.modes))
        raise UnsupportedDecoding(f"{method.name} does not work with {', '.join(refused)} decoding; it accepts {accepted}")


def refuse_pictures(model: nn.Module, images: Sequence[Shown]) -> None:
    """Raise if rows show several pictures, or none beside others, where an attached method needs one a row.

    Rows that all show none are refused by the method itself.
    """
    counts = [len(pictures_in(image)) for image in images]
    wrong = max(counts) if max(counts) > 1 else min(counts)
    for method in (attachment.method for attachment in attached(model)):
        if method.needs_picture and wrong != 1 and any(counts):
            raise PromptError(
                f"{method.name} needs one picture in every row, and a prompt here shows {wrong or 'none'}: give one picture a "
                f"row, or leave {method.name} off"
            )


def _set_exactness(model: nn.Module) -> None:
    """A 16-bit head returns float32 while a method acts that wants it. At zero strength decoding is the model's own."""
    head = find_head(model)
    if any(attachment.method.exact and not attachment.method.is_zero for attachment in attached(model)):
        make_exact(head)
    else:
        make_own(head)


def _discard_compiled() -> None:
    if "torch._dynamo" in sys.modules:  # otherwise nothing has been compiled in this process
        sys.modules["torch._dynamo"].reset()
