"""Convert checkpoints for vLLM: the pocket models, and folders written by transformers 5 or this package.

vLLM reads the hub's format. A folder of `save_pretrained` differs from it in three places; a copy corrects each:

- LLaVA's tower: transformers 5 writes `vision_tower.*`; vLLM wants `vision_tower.vision_model.*`. transformers reads both.
- Qwen3-VL's processor: this package writes it without the video part, which vLLM builds even for pictures only.
- The BOS token: in transformers the tokenizer adds it to a rendered prompt; vLLM's chat endpoint leaves it to the template.
  If the template lacks it, the copy's template writes it; `Backbone.tokenize` then adds no second one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from tokenizers import Tokenizer

import mgap
from mgap.errors import ModelError, one_line
from mgap.io.atomic_files import cache_folder
from mgap.io.regular_files import require_regular_files
from mgap.registry import locate

MARK = "served.json"  # in a copy: names its source
Edit = Callable[[Path], bytes]
_TOWER = re.compile(r"^((?:model\.)?vision_tower\.)(?!vision_model\.)")
_VIDEO = {"qwen3_vl": "Qwen3VLVideoProcessor", "qwen3_vl_moe": "Qwen3VLVideoProcessor"}
_IMAGE_KEYS = ("do_convert_rgb", "do_normalize", "do_rescale", "do_resize", "image_mean", "image_std", "merge_size",
               "patch_size", "resample", "rescale_factor", "size", "temporal_patch_size")  # fmt: skip


def servable(model: str, folder: Path | None = None, *, progress: Callable[[int], None] | None = None) -> Path:
    """The path or hub name to give vLLM: a converted copy if the model needs one, else the model as given.

    The copy is made once, in `folder` or in the user's cache, and appears complete or not at all. Its weights equal the
    source's bit for bit; weight files whose keys stay are links. `progress` gets the number of weight files done.
    """
    return readable(model, _edits, folder, kind="served", reader="vLLM", progress=progress)


def readable(
    model: str,
    edits_of: Callable[[Path], dict[str, Edit]],  # from a folder to the files that must differ, each with what writes it
    folder: Path | None = None,
    *,
    kind: str,
    reader: str,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """`servable` for any reader of the hub's format; `kind` is the folder of its copies in the user's cache."""
    source = Path(locate(model))
    if not source.is_dir():
        return source  # a name on the hub
    if not (source / "config.json").is_file():
        raise ModelError(f"{model}: a folder without config.json; name the folder that save_pretrained wrote")
    require_regular_files(source)
    try:
        edits = edits_of(source)
        if not edits:
            return source
        made_from = _fingerprint(source)
        target = folder or cache_folder() / kind / f"{re.sub(r'[^a-zA-Z0-9]+', '-', model).strip('-')[-80:]}-{made_from[:16]}"
        if not _exists(target, made_from, model):
            _write(source, target, edits, {"model": model, "made_from": made_from}, progress)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"{model}: no copy of it that {reader} could read can be made ({one_line(error)})") from error
    return target


# --- which files change ----------------------------------------------------------------------------------------------


def _edits(source: Path) -> dict[str, Edit]:
    """The files that differ in the copy, each with the function that converts it."""
    config = json.loads((source / "config.json").read_text())
    edits = tower_edits(source, config)
    processor = source / "processor_config.json"
    if config.get("model_type") in _VIDEO and processor.is_file() and not _has_video(source):
        edits[processor.name] = lambda path: _add_video(path, _VIDEO[config["model_type"]])
    template = source / "chat_template.jinja"
    if (
        template.is_file()
        and (bos := _added_bos(source))
        and bos not in (text := template.read_text())
        and "bos_token" not in text
    ):
        edits[template.name] = lambda path: b"{{ bos_token }}" + path.read_bytes()
    return edits


def tower_edits(source: Path, config: Mapping[str, Any]) -> dict[str, Edit]:
    """What gives the weights of LLaVA's tower the names that they have on the hub."""
    edits: dict[str, Edit] = {}
    if config.get("model_type") == "llava" and config.get("vision_config", {}).get("model_type") == "clip_vision_model":
        for path in source.glob("*.safetensors"):
            if any(_TOWER.match(key) for key in _keys(path)):
                edits[path.name] = _rename
        if edits and (source / "model.safetensors.index.json").is_file():
            edits["model.safetensors.index.json"] = _rename_index
    return edits


def _keys(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as tensors:
        return list(tensors.keys())


def _has_video(source: Path) -> bool:
    """Whether transformers would find a video processor's configuration."""
    if "video_processor" in json.loads((source / "processor_config.json").read_text()):
        return True
    return any((source / f"{name}.json").is_file() for name in ("video_preprocessor_config", "preprocessor_config"))


def _added_bos(source: Path) -> str | None:
    """The token that the tokenizer puts before every text; None if it adds none."""
    path = source / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no narrower one
        raise ValueError(f"tokenizer.json: {error}") from error
    special, plain = (tokenizer.encode("a", add_special_tokens=flag).tokens for flag in (True, False))
    return str(special[0]) if special[:1] != plain[:1] else None


# --- how they change -------------------------------------------------------------------------------------------------


def _rename(path: Path) -> bytes:
    return save({_renamed(key): tensor for key, tensor in load_file(path).items()}, metadata={"format": "pt"})


def _renamed(key: str) -> str:
    return _TOWER.sub(r"\1vision_model.", key)


def _rename_index(path: Path) -> bytes:
    index = json.loads(path.read_text())
    index["weight_map"] = {_renamed(key): name for key, name in index["weight_map"].items()}
    return json.dumps(index, indent=2).encode()


def _add_video(path: Path, kind: str) -> bytes:
    """Add a video processor that prepares frames like pictures."""
    settings = json.loads(path.read_text())
    image_settings = settings["image_processor"]
    shared = {name: image_settings[name] for name in _IMAGE_KEYS if name in image_settings}
    settings["video_processor"] = {**shared, "video_processor_type": kind}
    return json.dumps(settings, indent=2).encode()


def _write(
    source: Path, target: Path, edits: dict[str, Edit], mark: dict[str, str], progress: Callable[[int], None] | None
) -> None:
    """Write the copy to a temporary folder, then rename it to `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, done = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)), 0

    def transfer(old: str, new: str) -> None:
        nonlocal done
        path, is_weights = Path(old), old.endswith(".safetensors")
        if path.parent == source and path.name in edits:
            Path(new).write_bytes(edits[path.name](path))
        elif is_weights:
            _link(path, Path(new))
        else:
            shutil.copyfile(old, new)
        done += is_weights
        if is_weights and progress is not None:
            progress(done)

    try:
        shutil.copytree(source, temporary, copy_function=transfer, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        (temporary / MARK).write_text(json.dumps(mark))
        try:
            temporary.rename(target)
        except OSError:
            if not _exists(target, mark["made_from"], mark["model"]):  # else another process was quicker
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _link(path: Path, new: Path) -> None:
    try:
        os.link(path.resolve(), new)
    except OSError:  # another disk
        shutil.copyfile(path, new)


# --- finding a copy --------------------------------------------------------------------------------------------------


def _fingerprint(source: Path) -> str:
    """A hash that changes with any file of the folder, by its size and time."""
    files = sorted(path for path in source.rglob("*") if path.is_file() and not path.name.startswith("."))
    stats = [(str(path.relative_to(source)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([mgap.__version__, stats]).encode()).hexdigest()


def _exists(target: Path, made_from: str, model: str) -> bool:
    """Whether the copy exists already. Raises if the folder holds something else."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    mark = target / MARK
    if not mark.is_file() or json.loads(mark.read_text())["made_from"] != made_from:
        raise ModelError(f"{target}: it holds something else than a copy of {model}; name an empty folder, or remove it")
    return True
