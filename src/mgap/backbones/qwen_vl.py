"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of any resolution, flattened into rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import by_picture
from mgap.backbones.picture_layout import FlattenedPatches


class QwenVL(Backbone):
    """`pixel_values` is [patches, channels * time * height * width] for the whole batch, with `image_grid_thw`.

    The model stores `rope_deltas` on itself between prefill and decoding, so it can run one prefill at a time.
    """

    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = maps_pictures = True
    picture_layout = FlattenedPatches()
    fallback_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
        "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )

    @property
    def placeholder(self) -> str:
        ids = [self.config.vision_start_token_id, self.image_token_id, self.config.vision_end_token_id]
        return "".join(self.tokenizer.convert_ids_to_tokens(ids))

    @property
    def image_block_ids(self) -> tuple[int, ...]:
        return self.image_token_id, self.config.vision_start_token_id, self.config.vision_end_token_id

    def tower_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        return {**super().tower_inputs(args, kwargs), "image_grid_thw": kwargs["grid_thw"]}

    def encode_pictures(self, inputs: Mapping[str, Tensor]) -> Any:
        pixels, grid = inputs["pixel_values"], inputs["image_grid_thw"]
        return by_picture(self.model.base_model.get_image_features(pixel_values=pixels, image_grid_thw=grid, return_dict=True))

    def pictures(self, inputs: Mapping[str, Tensor]) -> list[slice]:
        ends = inputs["image_grid_thw"].prod(-1).cumsum(0).tolist()
        return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def picture_maps(self, inputs: Mapping[str, Tensor]) -> list[tuple[int, int]]:
        merged = inputs["image_grid_thw"] // self.config.vision_config.spatial_merge_size
        return [(rows, columns) for _, rows, columns in merged.tolist()]

    def per_channel(self, values: Tensor, pixels: Tensor) -> Tensor:
        return values.to(pixels).repeat_interleave(pixels.shape[-1] // len(values))  # a patch is channel-major


class QwenVLMoe(QwenVL):
    """Qwen3-VL with a mixture of experts: encoded the same way; no test covers the other capabilities."""

    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = False
