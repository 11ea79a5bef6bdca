"""A lock a model: one thread generates with it, or switches a method on or off; others wait."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from torch import nn

_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_making = threading.Lock()


def lock_of(model: nn.Module) -> threading.RLock:
    """Held while the model generates, by the thread that runs it. A thread that has it may take it again."""
    with _making:
        return _locks.setdefault(model, threading.RLock())
