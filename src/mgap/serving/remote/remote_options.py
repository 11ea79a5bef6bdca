"""The options of engine server: `engine_options` in YAML, `--url` and `--engine-option` on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from mgap.errors import SettingError, did_you_mean
from mgap.settings import check_count, check_strength


@dataclass(frozen=True)
class RemoteOptions:
    """Where the servers are, and how they are asked. None of this changes an answer."""

    url: tuple[str, ...]  # such as http://127.0.0.1:8000/v1
    served_model: str | None = None  # the model's name there; default: the only one that the server has
    parallel: int = 32  # requests that each server has at once
    retries: int = 8  # further attempts for a request that met a broken connection or an overloaded server
    timeout: float = 600.0  # seconds until a request counts as lost
    api_key: str = "OPENAI_API_KEY"  # the environment variable that holds the key, where servers want one

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RemoteOptions:
        """From plain keys; refuses unknown and impossible ones."""
        known = [f.name for f in fields(cls)]
        for key in given:
            if key not in known:
                raise SettingError(
                    f"engine server has no option {key!r:.60}: choose from {', '.join(known)}{did_you_mean(key, known)}"
                )
        urls = given.get("url", ())
        urls = [urls] if isinstance(urls, str) else urls
        if not isinstance(urls, list | tuple) or not urls:
            raise SettingError("engine server: give --url http://HOST:8000/v1, several times for several servers")
        for name in ("served_model", "api_key"):
            if not isinstance(given.get(name, ""), str):
                raise SettingError(f"{name}={given[name]!r:.60} must be a name")
        check_count("parallel", given.get("parallel", 1), least=1)
        check_count("retries", given.get("retries", 0), least=0)
        if check_strength("timeout", given.get("timeout", 1.0)) == 0:
            raise SettingError("timeout=0 would lose every request: give seconds")
        addresses = tuple(map(_address, urls))
        if len(set(addresses)) < len(addresses):
            raise SettingError(f"url names a server twice: {', '.join(addresses)}; give parallel to ask one for more at once")
        return cls(**{**given, "url": addresses})

    @property
    def key(self) -> str:
        """The key itself; servers that want none take any."""
        return os.environ.get(self.api_key) or "none"


def _address(url: Any) -> str:
    """The server's address without a slash at the end; /v1 where it has no path."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        parts.port  # noqa: B018  raises where it is no number
    except (ValueError, AttributeError, TypeError):
        is_good = False
    if not is_good:
        raise SettingError(f"url {url!r:.80} is no server's address: write it as http://HOST:8000/v1")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
