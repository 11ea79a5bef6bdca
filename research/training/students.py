"""The two models in training: pixels to picture tokens, pixels and text to the head's inputs.

In training all pictures have one size and all prompts start alike. So pictures are batched where the stock Qwen3-VL code loops
over them, and positions are known in advance. The saved model is the stock model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.qwen3_vl.modeling_qwen3_vl import rotate_half


class Student(ABC):
    """One model in training."""

    def __init__(self, model: Any, processor: Any, side: int, patch: int) -> None:
        self.model, self.processor, self.side, self.grid = model, processor, side, side // patch

    @property
    @abstractmethod
    def vision_modules(self) -> list[nn.Module]:
        """The modules from pixels to picture tokens, trained alone first."""

    @abstractmethod
    def encode(self, pixels: Tensor) -> Tensor:
        """[B, 3, side, side] in -1..1 to the picture tokens that the language model reads, [B, 64, D] in reading order."""

    @abstractmethod
    def states(self, pixels: Tensor, ids: Tensor, exchange: Tensor, position: Tensor) -> Tensor:
        """[B, T] right-padded tokens with placeholders to the head's inputs [B, T, D]; the rest as in text.Batch."""


def attention_mask(exchange: Tensor) -> Tensor:
    """A token attends to earlier tokens of the prefix and of its own exchange: [B, 1, T, T]."""
    length = exchange.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=exchange.device).tril()
    same = (exchange[:, None, :] == 0) | (exchange[:, None, :] == exchange[:, :, None])  # [B, T queries, T keys]
    return (same & causal).unsqueeze(1)


class LlavaStudent(Student):
    """LLaVA: CLIP's patches through the projector."""

    @property
    def vision_modules(self) -> list[nn.Module]:
        return [self.model.model.vision_tower, self.model.model.multi_modal_projector]

    def encode(self, pixels: Tensor) -> Tensor:
        tower, projector = self.vision_modules
        tokens: Tensor = projector(tower(pixels).last_hidden_state[:, 1:])  # without the class token
        return tokens

    def states(self, pixels: Tensor, ids: Tensor, exchange: Tensor, position: Tensor) -> Tensor:
        inner = self.model.model
        embeds = inner.get_input_embeddings()(ids)
        mask = (ids == self.model.config.image_token_id).unsqueeze(-1)
        embeds = embeds.masked_scatter(mask, self.encode(pixels).to(embeds.dtype))
        states: Tensor = inner.language_model(
            inputs_embeds=embeds, attention_mask=attention_mask(exchange), position_ids=position, use_cache=False
        ).last_hidden_state
        return states


class Qwen3VLStudent(Student):
    """Qwen3-VL: patches merged two by two, one deepstack level, M-RoPE positions."""

    _table: tuple[Tensor, Tensor] | None = None

    @property
    def vision_modules(self) -> list[nn.Module]:
        return [self._tower]

    @property
    def _tower(self) -> Any:
        return self.model.model.visual

    def encode(self, pixels: Tensor) -> Tensor:
        return self._merge(self._encode_patches(pixels)[0])

    def _merge(self, features: Tensor) -> Tensor:
        tokens: Tensor = self._tower.merger(features.flatten(0, 1)).view(len(features), (self.grid // 2) ** 2, -1)
        return tokens

    def states(self, pixels: Tensor, ids: Tensor, exchange: Tensor, position: Tensor) -> Tensor:
        inner, tower = self.model.model, self._tower
        features, deepstack = self._encode_patches(pixels)
        embeds = inner.get_input_embeddings()(ids)
        mask = ids == self.model.config.image_token_id
        embeds = embeds.masked_scatter(mask.unsqueeze(-1), self._merge(features).to(embeds.dtype))
        deep = [
            merge(state.flatten(0, 1)).to(embeds.dtype)
            for merge, state in zip(tower.deepstack_merger_list, deepstack, strict=True)
        ]
        states: Tensor = inner.language_model(
            inputs_embeds=embeds,
            attention_mask=attention_mask(exchange),
            position_ids=self._positions(ids, position),
            use_cache=False,
            visual_pos_masks=mask,
            deepstack_visual_embeds=deep,
        ).last_hidden_state
        return states

    def flatten(self, pixels: Tensor) -> Tensor:
        """Pixels in the processor's order: [B, patches, 3 * 2 * patch * patch], merged neighbours side by side."""
        count, half, size = len(pixels), self.grid // 2, self.side // self.grid
        frames = pixels.unsqueeze(1).expand(-1, 2, -1, -1, -1)  # a still picture is two equal frames
        split = frames.reshape(count, 2, 3, half, 2, size, half, 2, size)
        return split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(count, self.grid**2, -1)

    def _order(self) -> Tensor:
        """Reading-order index of each patch, in the processor's order."""
        half = self.grid // 2
        return torch.arange(self.grid**2).view(half, 2, half, 2).permute(0, 2, 1, 3).flatten()

    def _encode_patches(self, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """All pictures through the tower at once: the features and deepstack's states, each [B, N, width]."""
        tower, count, patches = self._tower, len(pixels), self.grid**2
        cos, sin = self._rotary(pixels.device)
        x = tower.patch_embed(self.flatten(pixels).flatten(0, 1)).view(count, patches, -1)
        x = x + tower.pos_embed.weight[self._order().to(pixels.device)]
        deepstack = []
        for number, block in enumerate(tower.blocks):
            attention = block.attn
            qkv = attention.qkv(block.norm1(x)).view(count, patches, 3, attention.num_heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, heads, N, head]
            q, k = (part * cos + rotate_half(part) * sin for part in (q, k))
            attended = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
            x = x + attention.proj(attended.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
            if number in tower.deepstack_visual_indexes:
                deepstack.append(x)
        return x, deepstack

    def _rotary(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The rotary table of one picture, read from the model once."""
        if self._table is None:
            caught: list[tuple[Tensor, Tensor]] = []
            handle = self._tower.blocks[0].register_forward_pre_hook(
                lambda _, __, kwargs: caught.append(kwargs["position_embeddings"]), with_kwargs=True
            )
            with torch.no_grad():
                rows = self.flatten(torch.zeros(1, 3, self.side, self.side, device=device))[0]
                self._tower(rows, grid_thw=torch.tensor([[1, self.grid, self.grid]], device=device))
            handle.remove()
            cos, sin = caught[0]
            self._table = cos.float(), sin.float()
        return self._table

    def _positions(self, ids: Tensor, position: Tensor) -> Tensor:
        """M-RoPE positions [3, B, T]; the picture starts at the same position in every row."""
        start = int((ids[0] == self.model.config.image_token_id).int().argmax())
        half, length = self.grid // 2, ids.shape[1]
        positions = torch.arange(length, device=ids.device).repeat(3, 1)
        end = start + half * half
        positions[0, start:end] = start
        positions[1, start:end] = start + torch.arange(half, device=ids.device).repeat_interleave(half)
        positions[2, start:end] = start + torch.arange(half, device=ids.device).repeat(half)
        positions[:, end:] = start + half + torch.arange(length - end, device=ids.device)
        return positions[:, position]


STUDENTS: dict[str, type[Student]] = {"llava": LlavaStudent, "qwen3-vl": Qwen3VLStudent}
