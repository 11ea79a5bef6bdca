"""Blind states for the methods that read them: from every forward (`BlindStates`), or on demand (`BlindStatesOnDemand`).

A blind state depends on the prompt, the answer so far and the picture's size, not on what the picture shows. `LastUsed`
caches the states that were needed, so the same question about another picture finds its first state there. If a method acts and
the state is not cached, one forward brings the branch's KV cache up to the newest token, however many it has missed. The prompt
and its null picture are run when the first state is needed. Checking which rows need a state, after every token, waits for the
GPU.
"""

from __future__ import annotations

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
from mgap.methods.kinds.last_used import LastUsed
from mgap.methods.kinds.paired_forward import TYPE_KEYS, Inputs, ObservedCache, PairedCache, PairedForward, newest

if TYPE_CHECKING:
    from mgap.methods.kinds.blind_branch import BlindMethod

STATE, BLIND, OPEN = "h", "h_blind", "open"  # keys of a generation's row state: [B, d], [B, d], bool [B]
POSITION = "place"  # of the token in its answer, from 1; in a trace
Key = tuple[bytes, tuple[int, ...]]  # a digest of the branch's prompt, and the answer so far


class BlindStates(PairedForward):
    """The hooks of one attached method that reads states: they keep the head's inputs for the main rows and the branch's."""

    method: BlindMethod

    def __init__(self, backbone: Backbone, method: BlindMethod, tap: Tap) -> None:
        super().__init__(backbone, method, tap)
        self.main = self.blind = torch.empty(0)  # [B, d] of the newest token
        self.handles.append(on_head_input(backbone, self.catch))

    def catch(self, h: Tensor) -> None:
        """Keep the head's input [rows, T, d]: of a branch's own forward, or of all rows, the main rows first."""
        if self.row_split.is_paused:
            return
        rows = h[:, -1]
        if self.is_running:
            self.blind = rows
            return
        count = self.row_split.main or len(rows)
        self.main = rows[:count]
        if not self.is_separate:
            self.blind = rows[count : 2 * count]  # a compiled step may have unused rows after them

    def _weigh(self, main: Tensor, branches: list[Tensor], cache: PairedCache) -> Tensor:
        cache.row_state |= {STATE: self.main, BLIND: self.blind, OPEN: self.method.is_open(main)}
        return super()._weigh(main, branches, cache)

    def _read_states(self, cache: PairedCache) -> tuple[Tensor, ...]:
        return (cache.row_state[BLIND],)


class OnDemandCache(ObservedCache):
    """The main rows alone, a separate branch that lags behind them, and each row's prompt."""

    def __init__(self, config: Any, prompt: Call, show: Callable[[], Any], prompts: list[bytes]) -> None:
        super().__init__(config, prompt)
        self.show = show  # encodes the null picture, when it is first needed
        self.prompts = prompts  # a digest of each row's prompt; the same for all beams of a row

    def missed(self) -> Call | None:
        """The part of the answer that the branch has not read yet; None: nothing."""
        (rows,), (branch,) = self.rows, self.branch_caches
        return self.answer_after(branch.get_seq_length() - rows.mask.shape[1])

    def keys(self) -> list[Key]:
        answers = self.answer["input_ids"].tolist() if self.answer else [[]] * len(self.prompts)
        return [(prompt, tuple(answer)) for prompt, answer in zip(self.prompts, answers, strict=True)]


class BlindStatesOnDemand(BlindStates):
    """The hooks of one attached method with `branch_mode="cached"`."""

    def __init__(self, backbone: Backbone, method: BlindMethod, tap: Tap) -> None:
        super().__init__(backbone, method, tap)
        self.memory = LastUsed[Key, Tensor](method.memory)  # states by prompt and answer so far
        ends = backbone.model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def _first(self, kwargs: Call) -> Call:
        main, features = self._main(kwargs)
        (branch,) = self.build(main)
        rows: Inputs = {key: branch[key] for key in TOKEN_KEYS if key in branch}
        has_picture = self.backbone.pixel_keys[0] in branch
        prompt = {**rows, "position_ids": self._positions(rows, [(main, features)] if has_picture else [])}
        prompts = _identify(
            rows, [value for key, value in branch.items() if key not in (*TOKEN_KEYS, *self.backbone.pixel_keys)]
        )
        cache = OnDemandCache(self.backbone.config, prompt, lambda: self._features(features, main, branch), prompts)
        return {**kwargs, "past_key_values": cache}

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        if isinstance(cache, OnDemandCache):
            cache.append({key: newest(kwargs[key]) for key in ("input_ids", *TYPE_KEYS) if kwargs.get(key) is not None})
        return kwargs

    def _split_logits(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        if isinstance(cache, OnDemandCache):
            is_open = self.method.is_open(logits)
            keys = cache.keys()
            needed = [row for row, acts in enumerate(is_open.tolist()) if acts and not self._has_ended(keys[row])]
            states = {row: self.memory[keys[row]] for row in needed if keys[row] in self.memory}
            if len(states) < len(needed):
                blind = self._read_blind(model, cache)
                states = {row: blind[row] for row in needed}
                self.memory.update({keys[row]: state for row, state in states.items()})
            self.blind = torch.stack([states.get(row, self.main[row]) for row in range(len(logits))])
        return logits, []

    def _has_ended(self, key: Key) -> bool:
        """Whether a row has ended and only waits for the rest of its batch."""
        return bool(key[1]) and key[1][-1] in self.ends

    def _read_blind(self, model: nn.Module, cache: OnDemandCache) -> Tensor:
        """Blind states [B, d] of the newest token of every row."""
        (branch,) = cache.branch_caches
        if not branch.get_seq_length():
            (prompt,) = cache.branch_inputs
            self._run_branch(model, {**prompt, **self.embedder.arguments(prompt["input_ids"], cache.show())}, branch)
        if (missed := cache.missed()) is not None:
            self._run_branch(model, missed, branch)
        return self.blind


def _identify(rows: Inputs, sizes: Sequence[Tensor]) -> list[bytes]:
    """A digest of each row's tokens, and of its picture's size if the inputs have it."""
    count = len(rows["input_ids"])
    repeated = [size.repeat_interleave(count // len(size), 0) for size in sizes]
    parts = zip(rows["input_ids"], rows["attention_mask"].bool(), *repeated, strict=True)
    return [digest(ids[mask], *own) for ids, mask, *own in parts]
