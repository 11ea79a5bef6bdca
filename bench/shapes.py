"""Models at the sizes of the papers, with random weights: step times do not depend on their values.

    model = build("llava-1.5-7b", "cuda")

The classes, processors and chat templates are the real ones; so is the tokenizer, but with a few hundred words. Weights are
drawn on the device, so that 8 billion of them take seconds. `tiny-llava` and `tiny-qwen3-vl` have the same parts at a size that
runs anywhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)

import mgap
from mgap.backbones.llava import Llava
from mgap.backbones.loading import images_only
from mgap.backbones.qwen_vl import QwenVL
from mgap.pocket.architecture import HALF, train_tokenizer
from mgap.pocket.tiny import build_tiny
from mgap.priors.prompts import default_prompts

WORDS = 512  # tokens of the tokenizer; the models' vocabularies have their real sizes


def build(name: str, device: str = "cuda", dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> mgap.Model:
    """A model with random weights at one of the sizes in `SHAPES`."""
    if name not in SHAPES:
        raise SystemExit(f"no shape {name!r}: choose from {', '.join(SHAPES)}")
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(seed)
        return SHAPES[name](name, device, dtype)


def _tiny(name: str, device: str, dtype: torch.dtype) -> mgap.Model:
    with tempfile.TemporaryDirectory() as folder:
        build_tiny(name.removeprefix("tiny-"), folder, heads=2)  # which vLLM on a CPU has a kernel for
        return mgap.load(folder, device=device, dtype=dtype)


def _full(model_class: Any, config: Any, processor: Any, name: str, device: str, dtype: torch.dtype) -> mgap.Model:
    with torch.device(device):
        model = model_class._from_config(config, dtype=dtype).eval()
    tokenizer = processor.tokenizer
    model.generation_config.update(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return mgap.wrap(model, processor, name=name)


def _llava(name: str, device: str, dtype: torch.dtype) -> mgap.Model:
    """LLaVA-1.5-7B: CLIP ViT-L/14 at 336 pixels, Llama-2-7B, 576 tokens a picture."""
    special = ["<pad>", "<s>", "</s>", "<image>"]
    tokenizer = train_tokenizer(default_prompts(), special, WORDS, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
            image_size=336, patch_size=14, projection_dim=768,
        ),
        text_config=LlamaConfig(
            vocab_size=32064, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
            max_position_embeddings=4096, rms_norm_eps=1e-5,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    square = {"height": 336, "width": 336}
    pictures = CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size=square)
    processor = LlavaProcessor(
        pictures, tokenizer, patch_size=14, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=Llava.fallback_template,
    )  # fmt: skip
    return _full(LlavaForConditionalGeneration, config, processor, name, device, dtype)


def _qwen3_vl(name: str, device: str, dtype: torch.dtype) -> mgap.Model:
    """Qwen3-VL-8B: 27 vision blocks with three deep taps, Qwen3-8B, a token for every 32 x 32 pixels."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
               "<|video_pad|>"]  # fmt: skip
    tokenizer = train_tokenizer(default_prompts(), special, WORDS, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    ids = {part: tokenizer.convert_tokens_to_ids(f"<|{part}|>") for part in
           ("image_pad", "video_pad", "vision_start", "vision_end")}  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True, "rope_theta": 5e6}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
            "rope_parameters": rope,
        },
        vision_config={
            "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 4096, "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        image_token_id=ids["image_pad"], video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"], vision_end_token_id=ids["vision_end"], tie_word_embeddings=False,
    )  # fmt: skip
    pictures = Qwen2VLImageProcessorPil(
        patch_size=16, merge_size=2, temporal_patch_size=2, image_mean=HALF, image_std=HALF,
        size={"shortest_edge": 65536, "longest_edge": 16777216},
    )  # fmt: skip
    processor = images_only(Qwen3VLProcessor)(pictures, tokenizer, chat_template=QwenVL.fallback_template)
    return _full(Qwen3VLForConditionalGeneration, config, processor, name, device, dtype)


SHAPES: dict[str, Callable[[str, str, torch.dtype], mgap.Model]] = {
    "llava-1.5-7b": _llava,
    "qwen3-vl-8b": _qwen3_vl,
    "tiny-llava": _tiny,
    "tiny-qwen3-vl": _tiny,
}


def picture(seed: int = 0, size: tuple[int, int] = (640, 480)) -> Image.Image:
    """Noise at the size of a photograph: 576 tokens in LLaVA-1.5, 300 in Qwen3-VL."""
    pixels = torch.randint(0, 256, (*reversed(size), 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())
