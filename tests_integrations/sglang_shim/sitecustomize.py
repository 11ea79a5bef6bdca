"""SGLang on a CPU, where two packages are absent that it imports at the top and that nothing here calls.

sgl_kernel has no CPU wheel on the package index, and torchvision none for the torch that is tested. In their place stand
modules whose names raise when they are called. A package that is there is not replaced.
"""

import importlib.abc
import importlib.machinery
import sys
import types

from transformers.utils import import_utils

ABSENT = ("sgl_kernel", "torchvision")


class Name(type):
    """A class of an absent package; so are its attributes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__name__}.{name}")


def absent(name):
    def refuse(self, *args, **kwargs):
        raise RuntimeError(f"{name} is absent here")

    return Name(name, (), {"__init__": refuse})


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        is_ours = fullname.partition(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


import_utils.is_torchvision_available()  # transformers remembers the answer, and does without it
import_utils.is_torchvision_greater_or_equal("0.27")
sys.meta_path.append(Finder())  # the last to be asked
