"""What vLLM's CPU build lacks on a machine without a GPU, put right just before the import that stumbles over it.

Python runs this file by itself when its folder is on PYTHONPATH, also in the workers that vLLM starts. It costs nothing until
`torchvision` or `vllm` is imported. The `vllm-*.dist-info` beside it is for `vllm serve`, which asks for the version of a
distribution called vllm.
"""

import importlib.abc
import os
import sys

KEPT = []  # a torch library takes its operators along when it goes


def _torchvision():
    """The index's torchvision is built for CUDA: on CPU torch its operators do not load, and it describes two at import."""
    import torch

    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)


def _vllm():
    """Under Triton's interpreter no driver is needed; vLLM looks for one and puts Triton away, and with it the V2 runner."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.backends import Backend, backends
    from triton.backends.compiler import BaseBackend
    from triton.backends.driver import DriverBase

    driver = type("Interpreted", (DriverBase,), {"is_active": staticmethod(lambda: True)})
    backends["cpu"] = Backend(compiler=BaseBackend, driver=driver)


class BeforeVLLM(importlib.abc.MetaPathFinder):
    """Finds nothing: it acts once, before somebody else finds the module."""

    def __init__(self):
        self.acts = {"torchvision": _torchvision, "vllm": _vllm}

    def find_spec(self, name, path=None, target=None):
        act = self.acts.pop(name, None)
        if act is not None:
            act()


if not any(type(finder).__name__ == BeforeVLLM.__name__ for finder in sys.meta_path):  # tests run this file by its path too
    sys.meta_path.insert(0, BeforeVLLM())
