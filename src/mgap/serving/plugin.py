"""vLLM's entry point. Nearly nothing is imported at the top: vLLM goes on without one that fails to import."""

from __future__ import annotations

import logging

fault: str | None = "its plugin was not loaded"  # what keeps MGAP out of this process; None: nothing


def register() -> None:
    """Called in every process of vLLM, perhaps more than once. Engines that do not ask for MGAP stay as they are.

    A vLLM that lacks what is needed is not stopped: an engine that asks for MGAP is, with the reason (`requests.PerRequest`).
    """
    global fault
    try:
        from mgap.serving.attaching import watch_loaders
        from mgap.serving.requests import watch_requests

        watch_loaders()
        watch_requests()
    except (ImportError, AttributeError) as error:
        fault = f"this vLLM is not one that mgap knows ({error})"
        logging.getLogger("vllm.mgap").warning("MGAP cannot be used here: %s", fault)
    else:
        fault = None
