"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of any resolution, flattened into rows."""

from __future__ import annotations

from mgap.backbones.base import Backbone


class QwenVL(Backbone):
    """`pixel_values` is [patches, channels * time * height * width] for the whole batch, with `image_grid_thw`.

    The model keeps `rope_deltas` between prefill and decoding as state on itself: one prefill at a time.
    """

    fallback_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
        "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
