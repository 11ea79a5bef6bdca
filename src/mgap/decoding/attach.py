"""Switch methods on and off: the only place that enters and leaves a method's hooks.

No class is patched and no module is replaced; a search puts its own `generate` on the model object for as long as it is on.
torch.compile does not guard hooks by default, so a graph compiled before a hook came would skip it silently: attaching and
detaching therefore drop what was compiled so far.

Hooks belong to the model, not to a thread. Methods are switched between two answers, never inside one (model_lock.py). Methods
that stack are put on by one thread: of two threads that enter at once, one is refused.
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
from mgap.decoding.model_lock import lock_of
from mgap.decoding.trace import Recorder
from mgap.errors import SettingError, UnsupportedDecoding
from mgap.methods.base import Method, Seam, Tap
from mgap.methods.kinds.main_rows import row_split_of
from mgap.types import Mode

_attached: WeakKeyDictionary[nn.Module, list[Attachment]] = WeakKeyDictionary()


class Attachment:
    """A method that is on. Leave it with `detach()`, or use it as a context manager."""

    def __init__(self, backbone: Backbone, method: Method) -> None:
        self.method, self._model, self._tap = method, backbone.model, Tap()
        self._thread = threading.get_ident()
        with lock_of(backbone.model):
            self._refuse_others()
            with row_split_of(backbone.model).paused():  # a method may run the model while it looks at it
                self._handle = method.attach(backbone, self._tap)
            _attached.setdefault(self._model, []).append(self)
            _forget_compiled()

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
        """Take the method off; the model is then as it was. Doing it twice does no harm."""
        with lock_of(self._model):
            if self in attached(self._model):
                self._handle.remove()
                _attached[self._model].remove(self)
                _forget_compiled()

    @contextmanager
    def record(self, top: int = 5) -> Iterator[Recorder]:
        """Keep what the method sees and does in each forward, with the `top` tokens before and after."""
        if self._tap.listener is not None:
            raise SettingError("this attachment is being recorded already: leave the other record() first")
        recorder = Recorder(top)
        self._tap.listener = recorder
        try:
            yield recorder
        finally:
            self._tap.listener = None

    @contextmanager
    def hear(self, hearer: Callable[[str], None]) -> Iterator[None]:
        """Be told, a line at a time, what the method does before it can decode, such as describing a picture."""
        before, self._tap.hearer = self._tap.hearer, hearer
        try:
            yield
        finally:
            self._tap.hearer = before

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()


def attach(model: Any, method: Method) -> Attachment:
    """Put a method on a model: your own transformers model, or one from `mgap.load`.

    Afterwards your own `generate(...)` uses it, in every mode that the method accepts.
    """
    if not isinstance(method, Method):
        raise SettingError(f"{method!r} is not a method: pass, for example, mgap.MGAP(prior)")
    return Attachment(Backbone.of(model), method)


def attached(model: nn.Module) -> list[Attachment]:
    return _attached.get(model, [])


@contextmanager
def answering(model: nn.Module, on: Sequence[Attachment]) -> Iterator[None]:
    """Inside the block no other thread has the model; refused unless what is on is still what was on when it was asked."""
    with lock_of(model):
        if attached(model) != list(on):
            were, are = (", ".join(each.method.name for each in some) or "no method" for some in (on, attached(model)))
            raise SettingError(
                f"methods were switched after this was asked, with {were} on and {are} now: ask inside the `with` block and "
                "read all answers there, or load a model for each thread"
            )
        yield


def refuse_stack(present: Sequence[Method], method: Method) -> None:
    """One method, or one at the head together with one that has a second branch: the head's acts on the main rows."""
    seams = [other.seam for other in (*present, method)]
    if present and sorted(seams) != [Seam.BRANCH, Seam.HEAD]:
        names = " and ".join(other.name for other in present)
        raise SettingError(
            f"{names} is already attached to this model, and {method.name} cannot be put on top: only a method at the head and "
            f"one with a second branch stack; detach {present[-1].name} first"
        )


def refuse_modes(method: Method | type[Method], modes: frozenset[Mode]) -> None:
    """Raise, before any token is made, if a method does not accept how it is to be decoded; its class knows as well."""
    refused = sorted(mode.value for mode in modes - method.modes)
    if refused:
        accepted = ", ".join(sorted(mode.value for mode in method.modes))
        raise UnsupportedDecoding(f"{method.name} does not work with {', '.join(refused)} decoding; it accepts {accepted}")


def _forget_compiled() -> None:
    if "torch._dynamo" in sys.modules:  # otherwise nothing has been compiled in this process
        sys.modules["torch._dynamo"].reset()
