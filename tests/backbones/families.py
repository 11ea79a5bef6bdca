"""Tiny random checkpoints of the other families: real model and processor classes, chat templates in their style.

Each builder writes a folder that `mgap.load` reads. Pictures become a handful of tokens, also where a family cuts
them into tiles, so that a whole answer takes milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    BlipImageProcessorPil,
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    GotOcr2ImageProcessorPil,
    Granite4VisionConfig,
    Granite4VisionForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
    InstructBlipProcessor,
    InstructBlipQFormerConfig,
    InstructBlipVisionConfig,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionProcessor,
    MuseGlimmerConfig,
    MuseGlimmerForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessorPil,
)

from mgap.backbones.instructblip import OLDEST
from mgap.backbones.loading import images_only
from mgap.backbones.qwen_vl import QwenVL
from mgap.pocket.architecture import train_tokenizer as train_tokenizer_on
from mgap.priors.prompts import default_prompts

LAYERS, VOCABULARY, WIDTH = 2, 384, 64
SIDE, PATCH = 28, 7  # pixels: a tower's picture and patch
TILES = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
SPREAD = 0.15  # of the weights; wide enough that tokens differ in probability
IDEFICS_PICTURES = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}


def text(tokenizer: PreTrainedTokenizerFast | None = None, **extra: Any) -> dict[str, Any]:
    """The settings that every language model here shares."""
    ids = [f"{role}_token_id" for role in ("bos", "eos", "pad")]
    return {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "initializer_range": SPREAD, **{name: getattr(tokenizer, name, None) for name in ids}, **extra,
    }  # fmt: skip


def tower(**extra: Any) -> dict[str, Any]:
    """The settings that the ViT-like vision towers share."""
    return {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": SIDE, "patch_size": PATCH, "initializer_range": SPREAD, **extra,
    }  # fmt: skip


def template(before: str, picture: str, after: str, answer: str, start: str = "") -> str:
    """A chat template of one form: `start`, then turns of `before` + parts + `after`, then `answer`."""
    return (
        f"{{{{ {start!r} }}}}{{% for message in messages %}}{{{{ {before!r} }}}}{{% for part in message['content'] %}}"
        f"{{% if part['type'] == 'image' %}}{{{{ {picture!r} }}}}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}"
        f"{{% endfor %}}{{{{ {after!r} }}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {answer!r} }}}}{{% endif %}}"
    )


def chatml(picture: str) -> str:
    return template("<|im_start|>user\n", picture, "<|im_end|>\n", "<|im_start|>assistant\n")


def train_tokenizer(special: list[str], **roles: str) -> PreTrainedTokenizerFast:
    return train_tokenizer_on(default_prompts(), special, VOCABULARY, **roles)


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(token))


def random_model(model_class: Any, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model_class(config).eval()


def save(folder: Path, model: Any, processor: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config.update(**ids)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def llava_next(folder: Path) -> None:
    tokenizer = train_tokenizer(["<pad>", "<s>", "</s>", "<image>"], pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**tower(projection_dim=32)), text_config=LlamaConfig(**text(tokenizer)),
        image_token_index=token_id(tokenizer, "<image>"), image_grid_pinpoints=TILES,
    )  # fmt: skip
    pictures = LlavaNextImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=TILES
    )
    processor = LlavaNextProcessor(
        pictures, tokenizer, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=template("[INST] ", "<image>\n", " [/INST]", ""),
    )  # fmt: skip
    save(folder, random_model(LlavaNextForConditionalGeneration, config), processor, tokenizer)


def llava_onevision(folder: Path) -> None:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"]
    tokenizer = train_tokenizer(special, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(**tower(vision_use_head=False)), text_config=Qwen2Config(**text(tokenizer)),
        image_token_index=token_id(tokenizer, "<image>"), video_token_index=token_id(tokenizer, "<video>"),
        image_grid_pinpoints=TILES,
    )  # fmt: skip
    pictures = LlavaOnevisionImageProcessorPil(size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=TILES)
    processor = images_only(LlavaOnevisionProcessor)(
        pictures, tokenizer, num_image_tokens=(SIDE // PATCH) ** 2, vision_feature_select_strategy="full",
        chat_template=chatml("<image>\n"),
    )  # fmt: skip
    save(folder, random_model(LlavaOnevisionForConditionalGeneration, config), processor, tokenizer)


def qwen_vl(folder: Path, model_class: Any, config_class: Any, processor_class: Any, vision: dict[str, Any]) -> None:
    names = ("image_pad", "video_pad", "vision_start", "vision_end")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|{name}|>" for name in names)]
    tokenizer = train_tokenizer(special, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    image, video, start, end = (token_id(tokenizer, f"<|{name}|>") for name in names)
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
    config = config_class(
        text_config=text(tokenizer, rope_parameters=rope),
        vision_config={"depth": 2, "num_heads": 4, "patch_size": 8, "initializer_range": SPREAD, **vision},
        image_token_id=image, video_token_id=video, vision_start_token_id=start, vision_end_token_id=end,
    )  # fmt: skip
    pictures = Qwen2VLImageProcessorPil(patch_size=8, size={"shortest_edge": 32 * 32, "longest_edge": 64 * 64})
    processor = images_only(processor_class)(pictures, tokenizer, chat_template=QwenVL.fallback_template)
    save(folder, random_model(model_class, config), processor, tokenizer)


def qwen2_vl(folder: Path) -> None:
    vision = {"embed_dim": 32, "hidden_size": WIDTH, "mlp_ratio": 2}
    qwen_vl(folder, Qwen2VLForConditionalGeneration, Qwen2VLConfig, Qwen2VLProcessor, vision)


def qwen2_5_vl(folder: Path) -> None:
    vision = {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": WIDTH,
              "window_size": 32, "fullatt_block_indexes": [1]}  # fmt: skip
    qwen_vl(folder, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig, Qwen2_5_VLProcessor, vision)


def gemma3(folder: Path) -> None:
    start, end, image = "<start_of_image>", "<end_of_image>", "<image_soft_token>"
    special = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", start, end, image]
    tokenizer = train_tokenizer(
        special, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", boi_token=start, eoi_token=end, image_token=image
    )
    config = Gemma3Config(
        text_config=text(
            tokenizer, head_dim=16, query_pre_attn_scalar=16, sliding_window=16, initializer_range=0.05,
            layer_types=["sliding_attention", "full_attention"],
        ),
        vision_config=tower(vision_use_head=False), mm_tokens_per_image=4, initializer_range=SPREAD,
        boi_token_index=token_id(tokenizer, start), eoi_token_index=token_id(tokenizer, end),
        image_token_index=token_id(tokenizer, image),
    )  # fmt: skip
    turns = template("<start_of_turn>user\n", start, "<end_of_turn>\n", "<start_of_turn>model\n", start="<bos>")
    pictures = Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE})
    processor = Gemma3Processor(pictures, tokenizer, chat_template=turns, image_seq_length=4)
    model = random_model(Gemma3ForConditionalGeneration, config)
    torch.nn.init.eye_(model.model.multi_modal_projector.mm_input_projection_weight)  # zero at birth: it would be blind
    save(folder, model, processor, tokenizer)


def idefics_tokenizer(bos: str) -> PreTrainedTokenizerFast:
    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    special = ["<pad>", bos, "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>", *tiles]
    return train_tokenizer(special, pad_token="<pad>", bos_token=bos, eos_token="<end_of_utterance>")


def on_pillow(processor_class: Any, **settings: Any) -> Any:
    try:
        return processor_class(**settings)
    except ImportError:  # transformers 5.16 and 5.17
        pytest.skip(f"{processor_class.__name__} needs torchvision in transformers {transformers.__version__}")


def idefics_config(config_class: Any, tokenizer: PreTrainedTokenizerFast) -> Any:
    return config_class(
        text_config=text(tokenizer), vision_config=tower(), scale_factor=2,
        image_token_id=token_id(tokenizer, "<image>"), pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip


def idefics3(folder: Path) -> None:
    tokenizer = idefics_tokenizer("<|begin_of_text|>")
    turns = template("User:", "<image>", "<end_of_utterance>\n", "Assistant:", start="<|begin_of_text|>")
    processor = Idefics3Processor(
        on_pillow(Idefics3ImageProcessorPil, **IDEFICS_PICTURES), tokenizer, image_seq_len=4, chat_template=turns
    )
    config = idefics_config(Idefics3Config, tokenizer)
    save(folder, random_model(Idefics3ForConditionalGeneration, config), processor, tokenizer)


def smolvlm(folder: Path) -> None:
    """Files laid out as on the hub: its processor class cannot be built without torchvision and num2words."""
    tokenizer = idefics_tokenizer("<|im_start|>")
    config = idefics_config(SmolVLMConfig, tokenizer)
    tokenizer.chat_template = template("User:", "<image>", "<end_of_utterance>\n", "Assistant:", start="<|im_start|>")
    pictures = on_pillow(SmolVLMImageProcessorPil, **IDEFICS_PICTURES)
    save(folder, random_model(SmolVLMForConditionalGeneration, config), pictures, tokenizer)
    tokenizer.save_pretrained(folder)
    about = {"processor_class": "SmolVLMProcessor", "image_seq_len": 4}
    (folder / "processor_config.json").write_text(json.dumps(about))


def internvl(folder: Path) -> None:
    start, end, image, video = "<img>", "</img>", "<IMG_CONTEXT>", "<video>"
    tokenizer = train_tokenizer(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", start, end, image, video],
        pad_token="<|endoftext|>", eos_token="<|im_end|>", start_image_token=start, end_image_token=end,
        context_image_token=image, video_token=video,
    )  # fmt: skip
    config = InternVLConfig(
        text_config=Qwen2Config(**text(tokenizer)), vision_config=tower(), image_token_id=token_id(tokenizer, image),
        image_seq_length=4,
    )  # fmt: skip
    pictures = GotOcr2ImageProcessorPil(size={"height": SIDE, "width": SIDE}, max_patches=4)
    processor = images_only(InternVLProcessor)(pictures, tokenizer, image_seq_length=4, chat_template=chatml(f"{image}\n"))
    save(folder, random_model(InternVLForConditionalGeneration, config), processor, tokenizer)


def instructblip_parts(side: int = SIDE) -> tuple[Any, Any]:
    """Its model, of transformers' own class, and its processor; the Q-Former has a tokenizer of its own."""
    if Version(transformers.__version__) < Version(OLDEST):
        pytest.skip(f"InstructBLIP needs transformers {OLDEST} here, and this is {transformers.__version__}")
    special = ["<pad>", "<s>", "</s>", "<image>"]
    tokenizer = train_tokenizer(special, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    reader = train_tokenizer(["[PAD]", "[CLS]", "[SEP]"], pad_token="[PAD]", bos_token="[CLS]")
    config = InstructBlipConfig(
        vision_config=InstructBlipVisionConfig(**tower(image_size=side)),
        qformer_config=InstructBlipQFormerConfig(
            vocab_size=len(reader), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64, initializer_range=SPREAD, pad_token_id=reader.pad_token_id,
        ),
        text_config=LlamaConfig(**text(tokenizer)), num_query_tokens=4, image_token_index=token_id(tokenizer, "<image>"),
        initializer_range=SPREAD,
    )  # fmt: skip
    pictures = BlipImageProcessorPil(size={"height": side, "width": side})
    processor = InstructBlipProcessor(pictures, tokenizer, reader, num_query_tokens=4)
    model = random_model(InstructBlipForConditionalGeneration, config)
    torch.nn.init.normal_(model.query_tokens)  # zero at birth: its queries would be alike
    return model, processor


def instructblip(folder: Path) -> None:
    model, processor = instructblip_parts()
    save(folder, model, processor, processor.tokenizer)


def granite4_vision(scale: float) -> Any:
    """A model alone, without processor, that divides its logits."""
    config = Granite4VisionConfig(
        text_config=text(logits_scaling=1 / scale), vision_config=SiglipVisionConfig(**tower(hidden_size=64)),
        qformer_config=tower(hidden_size=64, encoder_hidden_size=64), downsample_rate="1/2", deepstack_layer_map=[[-1, 0]],
        spatial_target_layers=[1],
    )  # fmt: skip
    return random_model(Granite4VisionForConditionalGeneration, config)


def gemma4(cap: float) -> Any:
    """A model alone that caps its logits softly."""
    layers = text(
        pad_token_id=0, head_dim=16, global_head_dim=16, layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCABULARY, final_logit_softcapping=cap,
    )  # fmt: skip
    return random_model(Gemma4ForConditionalGeneration, Gemma4Config(text_config=layers))


def muse_glimmer(scale: float, cap: float) -> Any:
    """A model alone that multiplies its logits, then caps them."""
    config = MuseGlimmerConfig(
        text_config=text(head_dim=16, output_multiplier=scale, final_logit_softcapping=cap), vision_config=tower()
    )
    return random_model(MuseGlimmerForConditionalGeneration, config)


FAMILIES: dict[str, Callable[[Path], None]] = {
    builder.__name__: builder
    for builder in (llava_next, llava_onevision, qwen2_vl, qwen2_5_vl, gemma3, idefics3, smolvlm, internvl, instructblip)
}
