"""Blind states for methods that read them: kept from every forward (`BlindStates`), or on demand (`BlindStatesOnDemand`).

A blind state depends on the prompt, the answer so far and the picture's size, not on what the picture shows. `BlindMemory`
keeps the states that were needed, so the same question about another picture finds its first one there. Where a method acts
and the state is not known, one forward brings the branch's own cache up to the newest token, whatever it has missed; the prompt
and its null picture are read when the first state is needed. Which rows need one is checked after every token, and that check
waits for a GPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.head_states import on_head_input
from mgap.backbones.image_embeddings import Call
from mgap.backbones.shared_vision import digest
from mgap.backbones.token_rows import TOKEN_KEYS
from mgap.methods.base import Tap
from mgap.methods.kinds.paired_forward import KINDS, Inputs, ObservedCache, PairedCache, PairedForward, newest

if TYPE_CHECKING:
    from mgap.methods.kinds.blind_branch import BlindMethod

STATE, BLIND, OPEN = "h", "h_blind", "open"  # of each row, in what a generation keeps: [B, d], [B, d], bool [B]
PLACE = "place"  # of the token in its answer, from 1; in a trace
Key = tuple[bytes, tuple[int, ...]]  # of the prompt as the branch reads it, and the answer so far


class BlindStates(PairedForward):
    """The hooks of one attached method that reads states: the head's inputs of the main rows and of the branch's are kept."""

    method: BlindMethod

    def __init__(self, backbone: Backbone, method: BlindMethod, tap: Tap) -> None:
        super().__init__(backbone, method, tap)
        self.main = self.blind = torch.empty(0)  # [B, d] of the newest token
        self.handles.append(on_head_input(backbone, self.catch))

    def catch(self, h: Tensor) -> None:
        """What the head reads [rows, T, d]: of a branch's own forward, or of all rows, those of the main ones first."""
        if self.row_split.is_paused:
            return
        rows = h[:, -1]
        if self.is_busy:
            self.blind = rows
            return
        count = self.row_split.main or len(rows)
        self.main = rows[:count]
        if not self.is_aside:
            self.blind = rows[count : 2 * count]  # a compiled step may have spare rows behind them

    def _weigh(self, main: Tensor, branches: list[Tensor], cache: PairedCache) -> Tensor:
        cache.kept |= {STATE: self.main, BLIND: self.blind, OPEN: self.method.is_open(main)}
        return super()._weigh(main, branches, cache)

    def _read_states(self, cache: PairedCache) -> tuple[Tensor, ...]:
        return (cache.kept[BLIND],)


class BlindMemory:
    """The states that were read last, by the prompt and the answer so far."""

    def __init__(self, size: int) -> None:
        self.size, self.states = size, OrderedDict[Key, Tensor]()

    def get(self, key: Key) -> Tensor | None:
        if key in self.states:
            self.states.move_to_end(key)
        return self.states.get(key)

    def put(self, key: Key, state: Tensor) -> None:
        self.states[key] = state
        while len(self.states) > self.size:
            self.states.popitem(last=False)


class OnDemandCache(ObservedCache):
    """Main rows alone, a branch aside that is behind them, and each row's prompt."""

    def __init__(self, config: Any, prompt: Call, show: Callable[[], Any], prompts: list[bytes]) -> None:
        super().__init__(config, prompt)
        self.show = show  # the null picture as the language model reads it, encoded when it is needed
        self.prompts = prompts  # what identifies each row's; beams of a row have the same

    def missed(self) -> Call | None:
        """What of the answer the branch has not read, behind the prompt; None: nothing."""
        (rows,), (aside,) = self.rows, self.aside
        return self.answer(aside.get_seq_length() - rows.mask.shape[1])

    def keys(self) -> list[Key]:
        said = self.said["input_ids"].tolist() if self.said else [[]] * len(self.prompts)
        return [(prompt, tuple(answer)) for prompt, answer in zip(self.prompts, said, strict=True)]


class BlindStatesOnDemand(BlindStates):
    """The hooks of one attached method with `branch_mode="cached"`."""

    def __init__(self, backbone: Backbone, method: BlindMethod, tap: Tap) -> None:
        super().__init__(backbone, method, tap)
        self.memory = BlindMemory(method.memory)
        ends = backbone.model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def _first(self, kwargs: Call) -> Call:
        main, features = self._main(kwargs)
        (branch,) = (build(main) for build in self.builders)
        rows: Inputs = {key: branch[key] for key in TOKEN_KEYS if key in branch}
        has_picture = self.backbone.pixel_keys[0] in branch
        prompt = {**rows, "position_ids": self._positions(rows, [features] if has_picture else [])}
        prompts = _identify(
            rows, [value for key, value in branch.items() if key not in (*TOKEN_KEYS, *self.backbone.pixel_keys)]
        )
        cache = OnDemandCache(self.backbone.config, prompt, lambda: self._features(features, main, branch), prompts)
        return {**kwargs, "past_key_values": cache}

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        if isinstance(cache, OnDemandCache):
            cache.hear({key: newest(kwargs[key]) for key in ("input_ids", *KINDS) if kwargs.get(key) is not None})
        return kwargs

    def _each(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        if isinstance(cache, OnDemandCache):
            is_open = self.method.is_open(logits)
            keys = cache.keys()
            wanted = [row for row, acts in enumerate(is_open.tolist()) if acts and not self._has_ended(keys[row])]
            found = {row: state for row in wanted if (state := self.memory.get(keys[row])) is not None}
            if len(found) < len(wanted):
                blind = self._read_blind(model, cache)
                found = {row: blind[row] for row in wanted}
                for row, state in found.items():
                    self.memory.put(keys[row], state)
            self.blind = torch.stack([found.get(row, self.main[row]) for row in range(len(logits))])
        return logits, []

    def _has_ended(self, key: Key) -> bool:
        """A row that waits for the others of its batch."""
        return bool(key[1]) and key[1][-1] in self.ends

    def _read_blind(self, model: nn.Module, cache: OnDemandCache) -> Tensor:
        """Blind states [B, d] of the newest token of every row."""
        (aside,) = cache.aside
        if not aside.get_seq_length():
            (prompt,) = cache.waiting
            self._run_aside(model, {**prompt, **self.showing.arguments(prompt["input_ids"], cache.show())}, aside)
        if (missed := cache.missed()) is not None:
            self._run_aside(model, missed, aside)
        return self.blind


def _identify(rows: Inputs, sizes: Sequence[Tensor]) -> list[bytes]:
    """Each row's tokens, and the size of its picture where that is told beside them."""
    count = len(rows["input_ids"])
    beside = [size.repeat_interleave(count // len(size), 0) for size in sizes]
    parts = zip(rows["input_ids"], rows["attention_mask"].bool(), *beside, strict=True)
    return [digest(ids[kept], *own) for ids, kept, *own in parts]
