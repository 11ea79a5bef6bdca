"""Checkpoints of random weights: the real classes, processors and chat templates of both paper backbones, tiny.

They say nothing sensible. They exist so that every code path runs anywhere in seconds with no download.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)

from mgap.backbones.llava import Llava
from mgap.backbones.loading import images_only
from mgap.backbones.qwen_vl import QwenVL
from mgap.data.prompts import default_prompts
from mgap.errors import SettingError

TINY_FAMILIES = ("llava", "qwen3-vl")
_VOCABULARY = 384  # 256 bytes, the special tokens, and the commonest pairs of the calibration prompts


def build_tiny(family: str, folder: str | PathLike[str], *, seed: int = 0) -> None:
    """Write a random checkpoint (about 0.2 M parameters) that `mgap.load(folder)` reads like any other."""
    builders = {"llava": _llava, "qwen3-vl": _qwen3_vl}
    if family not in builders:
        raise SettingError(f"unknown tiny family {family!r}: choose from {', '.join(builders)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, processor = builders[family]()
    model.generation_config.update(
        bos_token_id=processor.tokenizer.bos_token_id,
        eos_token_id=processor.tokenizer.eos_token_id,
        pad_token_id=processor.tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def train_tokenizer(special: list[str], **roles: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on the calibration prompts: it spells any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(default_prompts(), trainer)
    if bos := roles.get("bos_token"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=special, **roles)


def _text(**extra: Any) -> dict[str, Any]:
    return {
        "vocab_size": _VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.15,  # wide enough that tokens differ in probability
        "max_position_embeddings": 1024,
        **extra,
    }


def _ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int | None]:
    return {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id}  # fmt: skip


def _llava() -> tuple[Any, Any]:
    tokenizer = train_tokenizer(["<pad>", "<s>", "</s>", "<image>"], pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        image_size=28, patch_size=7, projection_dim=32,
    )  # fmt: skip
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    text = LlamaConfig(**_text(**_ids(tokenizer)))
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=image_token)
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=Llava.fallback_template,
    )
    return LlavaForConditionalGeneration(config), processor


def _qwen3_vl() -> tuple[Any, Any]:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
               "<|video_pad|>"]  # fmt: skip
    tokenizer = train_tokenizer(special, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in
           ("image_pad", "video_pad", "vision_start", "vision_end")}  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True, "rope_theta": 10_000.0}
    config = Qwen3VLConfig(
        text_config=_text(head_dim=16, rope_parameters=rope, **_ids(tokenizer)),
        vision_config={
            "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 8,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64,
            "num_position_embeddings": 64, "deepstack_visual_indexes": [1], "initializer_range": 0.15,
        },
        image_token_id=ids["image_pad"], video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"], vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=True,
    )  # fmt: skip
    image_processor = Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, temporal_patch_size=2,
        size={"shortest_edge": 32 * 32, "longest_edge": 64 * 64},
        image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5],
    )  # fmt: skip
    processor = images_only(Qwen3VLProcessor)(image_processor, tokenizer, chat_template=QwenVL.fallback_template)
    return Qwen3VLForConditionalGeneration(config), processor
