"""A request may set `mgap_alpha`, its own strength, in `custom_params`. What cannot be applied is refused."""

from __future__ import annotations

from typing import Any

from mgap.errors import SettingError
from mgap.serving.engine_settings import ALPHA, own_alpha
from mgap.serving.sglang.server_settings import serving_of


def check_tokenized_request(request: Any, args: Any) -> None:
    """Raise if an engine of these server arguments cannot apply MGAP to the request."""
    params = getattr(request, "sampling_params", None)
    custom = getattr(params, "custom_params", None)
    own = own_alpha(custom if isinstance(custom, dict) else None, "custom_params")
    if serving_of(args) is None:
        if own is not None:
            raise SettingError(f"{ALPHA} was given, but this engine runs without MGAP: leave it out, or start one with a prior")
        return
    if (getattr(params, "beam_width", None) or 1) > 1:
        raise SettingError("MGAP in SGLang has no beam search: leave out beam_width, or start an engine without mgap")
    for name in ("multi_item_delimiter_indices", "token_indices_to_pool"):
        if getattr(request, name, None) is not None:
            raise SettingError("MGAP in SGLang has no scores of labels: ask an engine without mgap for them")
