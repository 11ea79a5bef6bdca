"""LLaVA-1.5 and its relatives: a CLIP or SigLIP tower, a projector, a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.picture_layout import FixedGrid, PictureLayout


class Llava(Backbone):
    """LLaVA-1.5. Older checkpoints lack the chat template and three settings of the processor."""

    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = maps_pictures = True
    picture_layout: ClassVar[PictureLayout | None] = FixedGrid()
    fallback_template = (
        "{% for message in messages %}{{ 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\\n' }}"
        "{% else %}{{ part['text'] + ' ' }}{% endif %}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    )

    def prepare_processor(self) -> None:
        super().prepare_processor()
        processor, config = self.processor, self.config
        if processor.patch_size is None:
            processor.patch_size = config.vision_config.patch_size
        if processor.vision_feature_select_strategy is None:
            processor.vision_feature_select_strategy = config.vision_feature_select_strategy
        if not processor.num_additional_image_tokens and config.vision_config.model_type == "clip_vision_model":
            processor.num_additional_image_tokens = 1  # CLIP's class token

    def picture_maps(self, inputs: Mapping[str, Tensor]) -> list[tuple[int, int]]:
        side = self.input_side // self.config.vision_config.patch_size
        return [(side, side)] * len(inputs["pixel_values"])

    @property
    def input_side(self) -> int:
        return int(self.config.vision_config.image_size)


class LlavaNext(Llava):
    """LLaVA-Next, which adds tiles to the picture."""

    maps_pictures, picture_layout = False, None


class LlavaOneVision(Backbone):
    """LLaVA-OneVision, whose processor counts image tokens itself."""

    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = True
