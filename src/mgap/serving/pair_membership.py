"""What a request says of the pair that it belongs to: two contexts of one answer, decoded as two requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mgap.errors import SettingError
from mgap.serving.engine_settings import PAIR
from mgap.settings import check_share, check_strength


@dataclass(frozen=True)
class Membership:
    """What a request says of its pair: `extra_args={"mgap_pair": {"id": "7", "is_main": True, "alpha": 1.0, "beta": 0.1}}`."""

    id: str
    is_main: bool
    alpha: float
    beta: float

    @classmethod
    def of(cls, extra: Mapping[str, Any] | None) -> Membership | None:
        """None for a request that stands alone."""
        given = (extra or {}).get(PAIR)
        if given is None:
            return None
        if not isinstance(given, Mapping) or set(given) != {"id", "is_main", "alpha", "beta"}:
            raise SettingError(f"{PAIR}={given!r:.80}: give id, is_main, alpha and beta")
        check_strength(f"{PAIR} alpha", given["alpha"])
        check_share(f"{PAIR} beta", given["beta"])
        return cls(str(given["id"]), bool(given["is_main"]), given["alpha"], given["beta"])
