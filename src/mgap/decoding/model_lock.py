"""One thread at a time has a model: who generates with it, or switches a method on or off, waits for who does."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from torch import nn

_turns: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_making = threading.Lock()


def turn_of(model: nn.Module) -> threading.RLock:
    """To be held while the model generates, by the thread that runs it. A thread that has it may take it again."""
    with _making:
        return _turns.setdefault(model, threading.RLock())
