"""Build both paper backbones at small sizes, with the real classes, processors and chat templates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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

HALF = [0.5, 0.5, 0.5]  # mean and standard deviation that scale pixels to -1..1


@dataclass(frozen=True)
class Tower:
    """The shape of a transformer: the language model or the vision tower."""

    width: int
    layers: int
    heads: int
    inner: int
    key_value_heads: int | None = None
    side: int = 0  # of a picture, in pixels
    patch: int = 0  # side of a patch, in pixels
    spread: float = 0.02  # standard deviation of the initial weights


def train_tokenizer(texts: Iterable[str], special: list[str], vocabulary: int, **roles: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: common words are one token, and any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if bos := roles.get("bos_token"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=special, **roles)


def build(family: str, texts: Iterable[str], vocabulary: int, text: Tower, vision: Tower) -> tuple[Any, Any]:
    """A model with random weights, and its processor."""
    model, processor = {"llava": _llava, "qwen3-vl": _qwen3_vl}[family](texts, vocabulary, text, vision)
    model.generation_config.update(**_ids(processor.tokenizer))
    return model, processor


def _text(tokenizer: PreTrainedTokenizerFast, text: Tower, **extra: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": text.width,
        "intermediate_size": text.inner,
        "num_hidden_layers": text.layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.key_value_heads or text.heads,
        "initializer_range": text.spread,
        "max_position_embeddings": 1024,
        **_ids(tokenizer),
        **extra,
    }


def _ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int | None]:
    return {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad")}


def _llava(texts: Iterable[str], vocabulary: int, text: Tower, vision: Tower) -> tuple[Any, Any]:
    special = ["<pad>", "<s>", "</s>", "<image>"]
    tokenizer = train_tokenizer(texts, special, vocabulary, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=vision.width, intermediate_size=vision.inner, num_hidden_layers=vision.layers,
            num_attention_heads=vision.heads, image_size=vision.side, patch_size=vision.patch, projection_dim=vision.width,
        ),
        text_config=LlamaConfig(**_text(tokenizer, text)),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )  # fmt: skip
    square = {"height": vision.side, "width": vision.side}
    pictures = CLIPImageProcessorPil(size=square, crop_size=square, image_mean=HALF, image_std=HALF)
    processor = LlavaProcessor(
        pictures, tokenizer, patch_size=vision.patch, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=Llava.fallback_template,
    )  # fmt: skip
    return LlavaForConditionalGeneration(config), processor


def _qwen3_vl(texts: Iterable[str], vocabulary: int, text: Tower, vision: Tower) -> tuple[Any, Any]:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
               "<|video_pad|>"]  # fmt: skip
    tokenizer = train_tokenizer(texts, special, vocabulary, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in
           ("image_pad", "video_pad", "vision_start", "vision_end")}  # fmt: skip
    half = text.width // text.heads // 2  # M-RoPE splits half a head among time, height and width
    sections = [half - 2 * (half // 4), half // 4, half // 4]
    rope = {"rope_type": "default", "mrope_section": sections, "mrope_interleaved": True, "rope_theta": 10_000.0}
    config = Qwen3VLConfig(
        text_config=_text(tokenizer, text, head_dim=text.width // text.heads, rope_parameters=rope),
        vision_config={
            "depth": vision.layers, "hidden_size": vision.width, "intermediate_size": vision.inner,
            "num_heads": vision.heads, "patch_size": vision.patch, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "out_hidden_size": text.width, "num_position_embeddings": (vision.side // vision.patch) ** 2,
            "deepstack_visual_indexes": [vision.layers // 2], "initializer_range": vision.spread,
        },
        image_token_id=ids["image_pad"], video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"], vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=True,
    )  # fmt: skip
    pixels = vision.side**2
    pictures = Qwen2VLImageProcessorPil(
        patch_size=vision.patch, merge_size=2, temporal_patch_size=2, image_mean=HALF, image_std=HALF,
        size={"shortest_edge": pixels, "longest_edge": pixels},
    )  # fmt: skip
    processor = images_only(Qwen3VLProcessor)(pictures, tokenizer, chat_template=QwenVL.fallback_template)
    return Qwen3VLForConditionalGeneration(config), processor
