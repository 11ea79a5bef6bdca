"""Checkpoints that transformers 5 or this package wrote, as mlx-vlm reads them: a copy in the hub's older format.

mlx-vlm 0.7 looks for some settings where the hub's checkpoints have them, and does not find them where transformers 5 puts
them. It then refuses the folder, or takes a default, such as a base of 10000 for the rotary positions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mgap.errors import ModelError
from mgap.io.strict_json import load_json
from mgap.serving.checkpoint import Edit, readable, tower_edits

_VISION = {"qwen3_vl_vision": "qwen3_vl", "qwen3_vl_moe_vision": "qwen3_vl_moe"}  # the vision part's model_type


def mlx_readable(model: str) -> str:
    """The folder or hub name to give mlx-vlm: a converted copy in the user's cache if the model needs one, else as given."""
    return str(readable(model, _edits, kind="mlx", reader="mlx-vlm"))


def _edits(source: Path) -> dict[str, Edit]:
    config = load_json(source / "config.json")
    edits = tower_edits(source, config)
    if "quantization" not in config and (older := _older(config)) != config:
        edits["config.json"] = lambda _: json.dumps(older, indent=2).encode()
    return edits


def _older(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with mlx-vlm's places for the rotary positions, tied weights and the kind of vision part."""
    older = {**config}
    if isinstance(text := config.get("text_config"), dict):
        older["text_config"] = {**_older_positions(text)}
        if "tie_word_embeddings" in config:
            older["text_config"].setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    vision = config.get("vision_config")
    if isinstance(vision, dict) and vision.get("model_type") in _VISION:
        older["vision_config"] = {**vision, "model_type": _VISION[vision["model_type"]]}
    return older


def _older_positions(text: dict[str, Any]) -> dict[str, Any]:
    rotary = text.get("rope_parameters")
    if not isinstance(rotary, dict) or "rope_theta" in text:
        return text
    if "rope_theta" not in rotary:
        raise ModelError(
            "its rope_parameters differ from layer to layer, and mlx-vlm has no place for that in a folder of transformers 5: "
            "give the hub's own checkpoint, or one converted for MLX"
        )
    scaling = {key: value for key, value in rotary.items() if key != "rope_theta"}
    if set(scaling) == {"rope_type"} and scaling["rope_type"] == "default":
        return {**text, "rope_theta": rotary["rope_theta"]}
    return {**text, "rope_theta": rotary["rope_theta"], "rope_scaling": {"type": scaling.get("rope_type"), **scaling}}
