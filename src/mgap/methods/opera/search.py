"""OPERA's search inside an ordinary `generate`: transformers prepares the inputs and calls it instead of its own loop.

All beams of all samples are rows of one cache. A step reads the newest tokens, then all their candidates in a second forward,
on a copy of the cache that shares its tensors. When a sample goes back, its beams' histories are no longer in the cache. We
then refill the cache with the prompts and each row's tokens, left padded, so that samples may differ in length from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerateBeamDecoderOnlyOutput

from mgap.errors import ModelError, UnsupportedDecoding
from mgap.methods.base import Observation, Tap
from mgap.methods.opera.beams import OUT, BeamRules, Beams, Hypothesis
from mgap.methods.opera.last_block import LastBlockWeights
from mgap.methods.opera.retrospection import CandidateWeights, Lookahead, Retrospection, Strength

TYPE_KEYS = ("mm_token_type_ids", "token_type_ids")  # mark image tokens; an answer has none
Processor = Callable[[Tensor, Tensor], Tensor]
Passing = Callable[[LastBlockWeights], AbstractContextManager[None]]  # inside the block, forwards use this pass


class Reader:
    """The rows in the model's cache: runs tokens and reads what they attend to."""

    def __init__(
        self, name: str, model: Any, ids: Tensor, images: Tensor, config: Any, kwargs: dict[str, Any], passing: Passing
    ) -> None:
        self.name, self.model, self.ids, self.images, self.config, self.passing = name, model, ids, images, config, passing
        self.kwargs = dict(kwargs)  # of the prompt: pictures, positions, mask
        self.empty_cache: Cache = self.kwargs.pop("past_key_values")
        self.block = len(model.get_decoder().layers) - 1
        mask = kwargs.get("attention_mask")
        self.prompt_mask = torch.ones_like(ids) if mask is None else mask

    def prefill(self) -> Tensor:
        """Run the prompts: logits [rows, vocab]."""
        self.cache = deepcopy(self.empty_cache)
        self.mask = self.prompt_mask  # [rows, columns]
        self.last = self.kwargs["position_ids"][..., -1:]  # [..., rows, 1]: the newest token's position
        with self.passing(LastBlockWeights(self.name)):
            out = self.model._prefill(self.ids, self.config, {**self.kwargs, "past_key_values": self.cache})
        self._check_layers()
        return self._logits(out)

    def decode(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run one token per row, [rows, 1]: logits [rows, vocab] and weights [rows, columns]."""
        weights = LastBlockWeights(self.name, self.block)
        out = self._forward(tokens, self.cache, torch.ones_like(tokens), self.last + 1, weights)
        self.mask, self.last = F.pad(self.mask, (0, 1), value=1), self.last + 1
        return self._logits(out), weights.read().to(self.ids.device)[:, 0]

    def look_ahead(self, candidates: Tensor) -> Tensor:
        """Run alternatives for the next token [rows, N] without keeping them: weights [rows, N, columns + N]."""
        weights, count = LastBlockWeights(self.name, self.block, candidates=True), candidates.shape[1]
        positions = (self.last + 1).expand(*self.last.shape[:-1], count)
        ahead = copy(self.cache)
        ahead.layers = [copy(layer) for layer in self.cache.layers]  # a layer grows by new tensors, so ours keeps the old ones
        self._forward(candidates, ahead, torch.ones_like(candidates), positions, weights)
        return weights.read().to(self.ids.device)

    def refill(self, answers: list[Tensor]) -> None:
        """Refill the cache with the prompts and each row's answer so far, [k] each."""
        self.prefill()
        length = max(map(len, answers))
        tokens = torch.stack([F.pad(row, (length - len(row), 0)) for row in answers])
        mask = torch.stack([F.pad(torch.ones_like(row), (length - len(row), 0)) for row in answers])
        positions = self.last + mask.cumsum(1)
        self._forward(tokens, self.cache, mask, positions, LastBlockWeights(self.name))
        self.mask, self.last = torch.cat([self.mask, mask], dim=1), positions[..., -1:]

    def _forward(self, tokens: Tensor, cache: Cache, mask: Tensor, positions: Tensor, weights: LastBlockWeights) -> Any:
        types = {key: torch.zeros_like(tokens) for key in TYPE_KEYS if self.kwargs.get(key) is not None}
        step = {"attention_mask": torch.cat([self.mask, mask], dim=1), "position_ids": positions, "past_key_values": cache}
        inputs = self.model.prepare_inputs_for_generation(tokens, **{**self.kwargs, **types, **step})
        with self.passing(weights):
            return self.model(**inputs, return_dict=True)

    def _logits(self, out: Any) -> Tensor:
        logits: Tensor = out.logits[:, -1].float().to(self.ids.device)
        return logits

    def _check_layers(self) -> None:
        kinds = {type(layer) for layer in self.cache.layers}
        if kinds - {DynamicLayer, DynamicSlidingWindowLayer}:
            odd = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise UnsupportedDecoding(f"{self.name} looks ahead in the dynamic cache, not in one of {odd}: use that one")
        windows = [layer.is_sliding for layer in self.cache.layers]
        if (
            any(windows) and len(self.ids) > self.config.num_beams
        ):  # a window would count the padding in rows of different lengths
            raise UnsupportedDecoding(f"{self.name} takes one sample at a time in a model with sliding windows: no batch")
        if windows[self.block]:
            raise ModelError(f"{self.name} needs a last block that sees everything: this model's has a sliding window")


class OperaSearch:
    """The search of one `generate` call."""

    def __init__(
        self, reader: Reader, strength: Strength, rules: list[BeamRules], process: Processor, tap: Tap, *, keep_scores: bool
    ) -> None:
        self.reader, self.process, self.tap, self.rules, self.keep_scores = reader, process, tap, rules, keep_scores
        self.beams = rules[0].beams
        device = reader.ids.device
        self.samples = [Retrospection(strength, Beams.start(self.beams, device)) for _ in rules]
        self.count = strength.candidates
        self.scored: list[list[Tensor]] = [[] for _ in rules]  # each sample's processed scores [beams, vocab] per step, if kept

    def run(self) -> None:
        """Search until every sample is over."""
        logits, weights = self.reader.prefill(), None
        while True:
            candidates = logits.topk(min(self.count, logits.shape[1])).indices  # [rows, N]
            ahead = self.reader.look_ahead(candidates)
            weighed = {n: self._weigh(n, logits, weights, candidates, ahead) for n in self._unfinished()}
            self._report(logits, weighed)
            parents = self._advance(weighed)
            if not self._unfinished():
                return
            if parents is None:
                self.reader.refill([row[:-1] for row in self._answers()])
            else:
                self.reader.cache.reorder_cache(parents)
            logits, weights = self.reader.decode(torch.stack([row[-1:] for row in self._answers()]))

    def _unfinished(self) -> list[int]:
        return [n for n, sample in enumerate(self.samples) if not sample.beams.is_over]

    def _rows(self, n: int) -> slice:
        return slice(n * self.beams, (n + 1) * self.beams)

    def _answers(self) -> list[Tensor]:
        """Each row's answer so far; rows of finished samples continue with an arbitrary token."""
        return [row[:1] if s.beams.is_over else row for s in self.samples for row in s.beams.tokens]

    def _weigh(self, n: int, logits: Tensor, weights: Tensor | None, candidates: Tensor, ahead: Tensor) -> CandidateWeights:
        sample, rows = self.samples[n], self._rows(n)
        k, count, images = sample.beams.length, candidates.shape[1], self.reader.images[rows]
        sample.read(None if weights is None else weights[rows, -k:])
        past, among = ahead[rows].split([ahead.shape[-1] - count, count], dim=-1)
        words = torch.cat([past[..., past.shape[-1] - k :], among.diagonal(dim1=1, dim2=2).unsqueeze(-1)], dim=-1)
        image = (past[..., : images.shape[1]] * images.unsqueeze(1)).sum(-1)
        return sample.weigh(logits[rows], candidates[rows], Lookahead(words, image))

    def _advance(self, weighed: dict[int, CandidateWeights]) -> Tensor | None:
        """Let every sample choose or go back; returns each row's parent, or None if a sample went back."""
        returned = [n for n in weighed if self.samples[n].goes_back()]
        parents = torch.arange(len(self.reader.ids), device=self.reader.ids.device)
        staying = {n: weighed[n].scores.log_softmax(-1) for n in weighed if n not in returned}
        for n, logp in self._processed(staying).items():
            beams, own = self.samples[n].beams.advance(logp, self.rules[n])
            self.samples[n].choose(beams, own)
            parents[self._rows(n)] = own + n * self.beams
            if self.keep_scores:
                self.scored[n][beams.length - 1 :] = [logp]
        return None if returned else parents

    def _processed(self, logps: dict[int, Tensor]) -> dict[int, Tensor]:
        """Apply transformers' processors. They need all rows at once and of one length: once per length, with stand-ins."""
        processed = {}
        for length in sorted({self.samples[n].beams.length for n in logps}):
            own = [n for n in logps if self.samples[n].beams.length == length]
            used = [n if n in own else own[0] for n in range(len(self.samples))]
            ids = torch.cat([torch.cat([self.reader.ids[self._rows(n)], self.samples[n].beams.tokens], dim=1) for n in used])
            scores = self.process(ids, torch.cat([logps[n] for n in used]))
            processed.update({n: scores[self._rows(n)] for n in own})
        return processed

    def _report(self, logits: Tensor, weighed: dict[int, CandidateWeights]) -> None:
        """Report the step to the trace, with each row's position in its answer."""
        if self.tap.listener is None:
            return
        every = [weighed.get(n) for n in range(len(self.samples))]
        rows = logits.split(self.beams)
        zeros = torch.zeros(self.beams, device=logits.device)

        def joined(name: str) -> Tensor:
            return torch.cat([zeros if one is None else getattr(one, name).float() for one in every]).unsqueeze(1)

        values = {name: joined(name) for name in ("penalty", "image", "column")}
        returns = [float(sum(sample.returns.values())) for sample in self.samples]
        values["returns"] = torch.tensor(returns).repeat_interleave(self.beams).unsqueeze(1)
        after = torch.cat([row if one is None else one.scores for row, one in zip(rows, every, strict=True)])
        positions = [-1 if one is None else s.beams.length for s, one in zip(self.samples, every, strict=True)]
        at = tuple(position for position in positions for _ in range(self.beams))
        self.tap.listener(Observation(values, logits.unsqueeze(1), after.unsqueeze(1), at))

    def result(self, sequences: int, pad: int) -> GenerateBeamDecoderOnlyOutput:
        """The best answers of every sample after their prompts, in the form of transformers' beam search."""
        ids, empty = self.reader.ids, torch.zeros(0, dtype=torch.long, device=self.reader.ids.device)
        best = [(*s.beams.done, *[Hypothesis(OUT, empty, empty)] * sequences)[:sequences] for s in self.samples]
        length = max(len(one.tokens) for answers in best for one in answers)

        def rows(name: str, fill: int, offset: int = 0) -> Tensor:
            pairs = [(n, getattr(one, name)) for n, answers in enumerate(best) for one in answers]
            return torch.stack([F.pad(row + n * offset, (0, length - len(row)), value=fill) for n, row in pairs])

        prompts = ids[:: self.beams].repeat_interleave(sequences, 0)
        scores = torch.tensor([one.score for answers in best for one in answers], device=ids.device)
        return GenerateBeamDecoderOnlyOutput(
            sequences=torch.cat([prompts, rows("tokens", pad)], dim=1),
            sequences_scores=scores if self.keep_scores else None,
            scores=self._all_scores() if self.keep_scores else None,
            beam_indices=rows("rows", -1, self.beams).int(),
            past_key_values=self.reader.cache,
        )

    def _all_scores(self) -> tuple[Tensor, ...]:
        """One tensor per step [rows, vocab]; -inf where a sample was over."""
        longest = max(map(len, self.scored))
        none = torch.full_like(self.scored[0][0], -torch.inf)
        return tuple(torch.cat([steps[k] if k < len(steps) else none for steps in self.scored]) for k in range(longest))
