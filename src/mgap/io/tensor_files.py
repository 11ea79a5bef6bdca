"""Save and load tensors with a description, on disk and on the hub.

`<kind>.json` holds the description, and the name and checksum of one safetensors file. Nothing is unpickled. The JSON file is
replaced last and atomically, so a crash leaves either the old object or the new one. One process writes a folder at a time;
readers need no lock: where a writer has removed the old tensors meanwhile, they read the new index.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from mgap.errors import CorruptFile, MgapError, one_line
from mgap.io.atomic_files import replacing, written_alone
from mgap.io.hub_connection import hub_is_away
from mgap.io.regular_files import read_regular
from mgap.io.strict_json import load_json
from mgap.io.typed_json import BROKEN, typed

FORMAT = 1
T = TypeVar("T")
_TRIES = 20  # each but the last is spoilt only by a whole save between reading an index and opening its tensors
_HUB_ERRORS = (HfHubHTTPError, HFValidationError, OSError, ValueError)


def is_tensor_file(kind: str, name: str) -> bool:
    return re.fullmatch(rf"{kind}-[0-9a-f]{{12}}\.safetensors", name) is not None


def save(kind: str, folder: str | PathLike[str], tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write `<kind>.json` and its tensor file to a folder, and remove the tensor files of earlier versions."""
    folder = Path(folder)
    data = dump_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    name = f"{kind}-{digest[:12]}.safetensors"
    index = {"format": FORMAT, "tensors": name, "sha256": digest, **about}
    try:
        with written_alone(folder) as is_locked:
            replace_file(folder / name, data)
            replace_file(folder / f"{kind}.json", (json.dumps(index, indent=1) + "\n").encode())
            for old in folder.iterdir() if is_locked else ():
                if is_tensor_file(kind, old.name) and old.name != name:
                    old.unlink()
    except OSError as error:
        raise MgapError(f"{folder}: the {kind} cannot be written there ({error.strerror or error})") from error


def replace_file(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def read_index(path: Path, kind: str, newest: int = FORMAT) -> dict[str, Any]:
    """Read the description of a saved object; refuses a format newer than `newest`."""
    if not os.path.lexists(path):  # Path.exists raises on a name that is too long
        raise CorruptFile(f"{path.parent}: no {path.name} in it, so no saved {kind}; name the folder it was saved to")
    try:
        index: dict[str, Any] = load_json(path)
        version = typed(int, index["format"], "format")
    except (*BROKEN, KeyError) as error:
        raise CorruptFile(f"{path}: damaged ({one_line(error)}); make the {kind} again") from error
    if version > newest:
        raise CorruptFile(f"{path}: format {version} is newer than this mgap reads: upgrade mgap")
    return index


def load(kind: str, folder: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote, and verify its checksum."""
    return settled(lambda: _load(kind, folder))


def settled(read: Callable[[], T]) -> T:
    """Call `read`, and again if a file that its index named is gone: another process has just saved a new version."""
    for _ in range(_TRIES - 1):
        try:
            return read()
        except CorruptFile as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    return read()


def _load(kind: str, folder: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    index_path = Path(folder) / f"{kind}.json"
    index = read_index(index_path, kind)
    try:
        name, digest = str(index["tensors"]), index["sha256"]
    except KeyError as error:
        raise CorruptFile(f"{index_path}: damaged ({error!r}); make the {kind} again") from error
    if not is_tensor_file(kind, name):
        raise CorruptFile(f"{index_path}: {name!r:.60} is not the name of a tensor file; make the {kind} again")
    path = Path(folder) / name
    try:
        data = read_regular(path)
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptFile(f"{path}: damaged, its checksum is not the one in {kind}.json; make the {kind} again")
        return parse_tensors(data), index
    except (OSError, SafetensorError) as error:
        raise CorruptFile(f"{path}: cannot be read ({error}); make the {kind} again") from error


def find(kind: str, folder_or_repo: str | PathLike[str], revision: str | None = None) -> Path:
    """The folder itself if it exists; else downloads the hub repository to the cache and returns that folder."""
    folder = Path(folder_or_repo)
    if os.path.exists(folder):  # Path.exists raises on a name that is too long
        return folder
    repo = str(folder_or_repo)
    try:
        wanted = [f"{kind}.json", f"{kind}-*"]
        return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, local_files_only=bool(hub_is_away())))
    except _HUB_ERRORS as error:
        away = hub_is_away()
        why = f"the hub cannot be reached ({away})" if away else f"the hub did not give it ({one_line(error, 160)})"
        raise MgapError(f"no {kind} {repo!r}: it is no folder here, and {why}; check the spelling") from error


def push(kind: str, repo: str, folder: str | PathLike[str], *, private: bool = False) -> str:
    """Upload a saved folder to a hub repository, created if needed; returns the commit's URL."""
    try:
        api = HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo, folder_path=Path(folder), delete_patterns=[f"{kind}-*"], commit_message=f"mgap {kind}"
        )
    except _HUB_ERRORS as error:
        raise MgapError(
            f"the {kind} could not be pushed to {repo!r} ({one_line(error, 160)}): log in with hf auth login"
        ) from error
    return str(commit.commit_url)
