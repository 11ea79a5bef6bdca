"""Whether anybody answers at the model hub: asked before its client is, which tries for half a minute where nobody does.

Only what waiting does not mend counts: no name service, no route, a refused connection. A slow network is no reason, and behind
a proxy nothing is asked: the client decides there.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

_TIMEOUT = 3.0  # seconds for a connection; one that takes longer may still come about


def hub_is_away() -> str:
    """Why the hub cannot be reached; "" if it can, or might be."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    url = urlsplit(constants.ENDPOINT)
    if url.hostname is None or getproxies():
        return ""
    try:
        addresses = _look_up(url.hostname, url.port or (80 if url.scheme == "http" else 443))
    except OSError as error:
        return f"{url.hostname}: {error.strerror or error}"
    why = ""
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(_TIMEOUT)
                connection.connect(address)
        except TimeoutError:
            return ""
        except OSError as error:
            why = f"{url.hostname}: {error.strerror or error}"
        else:
            return ""
    return why


def _look_up(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno != socket.EAI_AGAIN:
            raise
    time.sleep(1)  # a failure that calls itself temporary gets a second chance
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def only_the_cache(name: str) -> dict[str, bool]:
    """The argument that keeps transformers and the hub's client to their cache, for a model's name, if the hub is away."""
    return {} if os.path.isdir(name) or not hub_is_away() else {"local_files_only": True}


def cached_models() -> list[str]:
    """The hub names of the models in the cache."""
    folders = Path(constants.HF_HUB_CACHE).glob("models--*--*")
    return sorted(folder.name.removeprefix("models--").replace("--", "/", 1) for folder in folders)
