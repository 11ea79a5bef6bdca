"""vLLM's entry point. It imports almost nothing at the top: vLLM silently skips a plugin that fails to import."""

from __future__ import annotations

import logging

fault: str | None = "its plugin was not loaded"  # why MGAP cannot run in this process; None: it can


def register() -> None:
    """vLLM calls this in every process, perhaps more than once. Engines that do not ask for MGAP stay as they are.

    An unsuitable vLLM is not stopped here; `requests.PerRequest` stops an engine that asks for MGAP, with the reason.
    """
    global fault
    try:
        from mgap.serving.attaching import watch_loaders
        from mgap.serving.requests import watch_requests

        watch_loaders()
        watch_requests()
    except (ImportError, AttributeError) as error:
        from mgap.serving.installed import TESTED_MINORS

        fault = f"this vLLM is not one that mgap knows ({error}); tested: {', '.join(TESTED_MINORS)}"
        logging.getLogger("vllm.mgap").warning("MGAP cannot be used here: %s", fault)
    else:
        fault = None
