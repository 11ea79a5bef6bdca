"""LLaVA-1.5 and its relatives: a CLIP or SigLIP tower, a projector, a language model."""

from __future__ import annotations

from typing import ClassVar

from mgap.backbones.base import Backbone
from mgap.backbones.picture_layout import FixedGrid, PictureLayout


class Llava(Backbone):
    """LLaVA-1.5. Older checkpoints lack the chat template and three settings of the processor."""

    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = True
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


class LlavaNext(Llava):
    """LLaVA-Next, which adds tiles to the picture."""

    picture_layout = None


class LlavaOneVision(Backbone):
    """LLaVA-OneVision, whose processor counts image tokens itself."""

    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = True
