"""`pocket/natural`: SmolLM2-135M-Instruct reads the pocket world's pictures. Nobody put its language prior in.

The package ships what was trained here: the vision tower, the projector and low-rank adapters of the language model
(`research/natural`). The language model itself is fetched once (`mgap.pocket.smollm2`). Both are merged into an ordinary LLaVA
checkpoint in the cache, so that everything that loads a checkpoint loads this one, vLLM included.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
from transformers.utils import logging

from mgap.backbones.identity import short_name
from mgap.backbones.loading import load_processor
from mgap.errors import ModelError
from mgap.io.atomic_files import cache_folder, file_sha256, written_alone
from mgap.pocket import smollm2
from mgap.registry import EMBEDDED, POCKET_MODELS

FOLDER = POCKET_MODELS["pocket/natural"]
ADAPTERS = "adapters.safetensors"
DOWN, UP = ".down", ".up"  # of an adapter: [rank, in] and [out, rank]; the weight becomes W + UP DOWN
PLACEHOLDER = "<image>"
ROWS = 64  # the vocabulary is filled up to a multiple of this, as LLaVA's is
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{{ '<image>\n' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def assemble() -> Path:
    """The folder of the whole checkpoint in the cache; made, and the language model fetched, on first use."""
    adapters = FOLDER / ADAPTERS
    if not adapters.is_file():
        raise ModelError("pocket/natural: its adapters are missing from this installation; install the package again")
    name = smollm2.named()
    other = f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if name else ""  # its answers differ: a folder of its own
    folder = cache_folder() / f"pocket-natural-{file_sha256(adapters)[:12]}{other}"
    if not _is_whole(folder):
        language_model = name or smollm2.fetch()
        try:
            with written_alone(folder, patience=600):
                if not _is_whole(folder):  # another process may have been faster
                    _write(language_model, load_file(adapters), folder)
        except OSError as error:
            raise ModelError(f"{folder}: pocket/natural cannot be written there ({error.strerror or error})") from error
    return folder


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file()  # is written last


def _write(language_model: str | Path, trained: Mapping[str, Tensor], folder: Path) -> None:
    model, processor = build(language_model)
    merge(model, trained)
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(partial)
    processor.save_pretrained(partial)
    for path in sorted(partial.iterdir(), key=lambda path: path.name == "config.json"):
        path.replace(folder / path.name)
    partial.rmdir()


def build(language_model: str | Path) -> tuple[Any, Any]:
    """LLaVA with SmolLM2 as its language model and the pocket tower's shape, in float32, and its processor.

    Tower and projector have random weights until `merge`.
    """
    tokenizer, text = smollm2.read(language_model)
    tokenizer.clean_up_tokenization_spaces = False  # would strip spaces before punctuation
    tokenizer.add_special_tokens({"additional_special_tokens": [PLACEHOLDER]})
    _add_rows(text, len(tokenizer))
    eye = AutoConfig.from_pretrained(EMBEDDED["pocket/llava"])
    config = LlavaConfig(
        vision_config=eye.vision_config,
        text_config=LlamaConfig(**{k: v for k, v in text.config.to_dict().items() if k not in _NOT_OURS}),
        image_token_index=tokenizer.convert_tokens_to_ids(PLACEHOLDER),
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.tie_weights()
    model.generation_config.update(
        **{f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad")}
    )
    pictures = load_processor(str(EMBEDDED["pocket/llava"]), eye).image_processor
    processor = LlavaProcessor(
        pictures, tokenizer, patch_size=eye.vision_config.patch_size, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=TEMPLATE,
    )  # fmt: skip
    return model.eval(), processor


_NOT_OURS = ("quantization_config", "_name_or_path", "_model_name_or_path", "architectures", "dtype", "transformers_version")


def _add_rows(text: Any, tokens: int) -> None:
    """Make room for added tokens. Their rows are the mean of the others, so that none is ever a likely next token."""
    known = text.get_input_embeddings().weight.detach().clone()
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # says how it would draw the rows that are set below
    try:
        text.resize_token_embeddings(tokens, pad_to_multiple_of=ROWS, mean_resizing=False)
    finally:
        logging.set_verbosity(level)
    with torch.no_grad():
        text.get_input_embeddings().weight[len(known) :] = known.mean(0)


def merge(model: Any, trained: Mapping[str, Tensor]) -> None:
    """Put the trained tensors in place: adapters are added to their weights, all else replaces what is there.

    Names are those of `short_name`, which are the same in all versions of transformers.
    """
    weights = {short_name(name): weight for name, weight in model.named_parameters()}
    with torch.no_grad():
        for name, tensor in trained.items():
            if name.endswith(UP):
                down = trained[name.removesuffix(UP) + DOWN]
                weights[name.removesuffix(UP) + ".weight"] += tensor.float() @ down.float()
            elif not name.endswith(DOWN):
                weights[name].copy_(tensor)
