"""A lock per model: one thread at a time generates with it, or attaches or detaches a method; others wait."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from torch import nn

_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_registry_lock = threading.Lock()


def lock_of(model: nn.Module) -> threading.RLock:
    """The model's reentrant lock; the generating thread holds it until the answer is done."""
    with _registry_lock:
        return _locks.setdefault(model, threading.RLock())
