"""Give a running engine another prior or other settings, between two of its steps.

Every rank reads, then every rank checks, then every rank changes: whatever is refused, is refused before anything has changed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mgap.errors import MgapError, SettingError
from mgap.serving.attaching import MODEL_ATTRIBUTE, SERVING_ATTRIBUTE, identity_of
from mgap.serving.engine_settings import Served, Serving

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import ModelConfig

    from mgap.serving.correcting import CorrectedLogits

NEXT_ATTRIBUTE = "_mgap_next"  # of a model: what `read_next` has read
logger = logging.getLogger("vllm.mgap")


def read_next(model: nn.Module, given: Mapping[str, Any]) -> dict[str, str]:
    """Read what is to come: keys of `additional_config` that replace the present ones. Tells an error, or which prior it is."""
    now: Serving = model.__dict__[SERVING_ATTRIBUTE]
    try:
        if given.get("method", now.name) != now.name:
            raise SettingError(f"this server decodes with {now.name}, as it was started: leave method out")
        serving = Serving.of({**now.to_json(), **given})
        if (serving.log_every, serving.reload) != (now.log_every, now.reload):
            raise SettingError("log_every and reload are set when a server starts: leave them out")
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            method = serving.method()
        corrected: CorrectedLogits | None = model.__dict__.get(MODEL_ATTRIBUTE)
        if corrected is not None and method.exact != corrected.method.exact:
            raise SettingError("exact is decided when a server starts: leave it out")
    except MgapError as error:
        return {"error": str(error)}
    model.__dict__[NEXT_ATTRIBUTE] = (serving, method)
    return {"sha256": method.learnt.digest}


def check_next(model: nn.Module, config: ModelConfig) -> str:
    """Hold what was read against the model: an error, or "". All ranks must do so together."""
    from vllm.distributed.parallel_state import get_pp_group

    method: Served = model.__dict__[NEXT_ATTRIBUTE][1]
    if not get_pp_group().is_first_rank:
        return ""
    try:
        method.learnt.require_identity(identity_of(model, config), "the prior")
    except MgapError as error:
        return str(error)
    return ""


def take_next(model: nn.Module) -> None:
    """Decode with what was read and checked, from the next step on. All ranks must do so together."""
    serving, method = model.__dict__.pop(NEXT_ATTRIBUTE)
    model.__dict__[SERVING_ATTRIBUTE] = serving
    corrected: CorrectedLogits | None = model.__dict__.get(MODEL_ATTRIBUTE)
    if corrected is None:
        return
    corrected.use(method)
    s = method.settings
    logger.info("MGAP now: K=%d of %s, alpha=%g, lambda=%g", method.subspace.rank, serving.prior, s.alpha, s.lam)
