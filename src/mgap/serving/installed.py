"""Whether vLLM is installed and will load this package's plugin."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.util import find_spec

from mgap.errors import MissingExtra, SettingError

TESTED_MINORS = ("0.30", "0.31", "0.32")  # the extra `vllm` of pyproject.toml names the same
PLUGIN, GROUP, PLUGINS = "mgap", "vllm.general_plugins", "VLLM_PLUGINS"
GROUPS = (GROUP, "vllm.platform_plugins", "vllm.io_processor_plugins", "vllm.stat_logger_plugins")  # loaded unless filtered


def untested(version: str) -> str:
    """What to say of a vLLM on which this package's tests were not run; empty for the others."""
    minor = ".".join(version.split(".")[:2])
    return "" if minor in TESTED_MINORS else f"this is vLLM {version}, and mgap was tested with {', '.join(TESTED_MINORS)}"


def require_vllm(purpose: str) -> None:
    """Raise if vLLM is not installed or would not find the plugin. Does not import vLLM."""
    if find_spec("vllm") is None:
        raise MissingExtra("vllm", "vllm", purpose)
    if not any(point.name == PLUGIN for point in entry_points(group=GROUP)):
        raise SettingError(
            f"{purpose}: vLLM finds plugins of installed packages only; install mgap here, with pip install -e ."
        )


def all_plugins() -> str:
    """VLLM_PLUGINS for everything that vLLM loads without it, and our endpoint, which it loads by name only."""
    return ",".join(sorted({PLUGIN, *(point.name for group in GROUPS for point in entry_points(group=group))}))


def refuse_filtered() -> None:
    """Raise if VLLM_PLUGINS leaves the plugin out: vLLM would silently decode without MGAP."""
    listed = os.environ.get(PLUGINS)
    if listed is not None and PLUGIN not in listed.split(","):
        wanted = ",".join([*filter(None, [listed]), PLUGIN])
        raise SettingError(f"VLLM_PLUGINS={listed!r} keeps mgap out of vLLM: set VLLM_PLUGINS={wanted}, or unset it")
