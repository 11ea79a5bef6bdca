"""PAI, pay attention to image (Liu et al., ECCV 2024): stronger attention to the picture, contrasted with a text-only branch.

    A[last query, j] += alpha |A[last query, j]|   for image keys j, after the mask, before the softmax, in blocks [start, end)
    s = gamma c + (1 - gamma) u,   s[v] = -inf where c[v] < max c + ln(beta),   c, u = log softmax of l and of l_text

The edit is a registered attention function: the text decoder's configuration names it while the method is on. It takes the
place of "eager" and "sdpa": the prompt goes through torch's fused attention, its last row and every new token through scores
of our own. Other kernels are refused by name. Cost: 2 forwards a token, 1 at gamma = 1, which has no branch and no cut.
Paper: alpha by model, 0.2 to 0.6, gamma 1.1; the authors' command line has alpha 0.2, gamma 2 (preset "reference-code").
Under beam search their branch keeps the wrong histories; ours follows the beams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import ModelError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.base import Handles, Observation, Removable, Seam, Tap
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.attention import check_kernel, last_scores, refuse_odd_scores, whole_mask
from mgap.methods.kinds.branch import BranchMethod, plausible
from mgap.methods.kinds.paired_forward import Inputs, PairedForward
from mgap.settings import check_share, check_strength
from mgap.types import Mode

IMPLEMENTATION = "mgap_pai"  # as the text decoder's configuration names it while the method is on
_ARGUMENT = "mgap_boost"  # carries the edit from the decoder's door to its attention


@dataclass(frozen=True)
class Boost:
    """The edit of one forward, and the blocks that have made it."""

    keys: Tensor  # bool [B, positions so far]: where the picture is
    alpha: float
    blocks: range
    done: set[int] = field(default_factory=set)
    shared: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def weights(self, key: Tensor, mask: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """The mask as a bias, and what |q k| counts for at each key: [B, 1, 1, kv] in float32, made once for all blocks."""
        of = id(mask), key.device, key.shape[2], scaling
        if of not in self.shared:
            bias = mask.float() if mask.dtype != torch.bool else torch.where(mask, 0.0, -torch.inf)
            shown = self.keys[:, -key.shape[2] :].to(key.device)  # a sliding window keeps the newest keys only
            self.shared[of] = bias, shown[:, None, None] * (self.alpha * scaling)
        return self.shared[of]


def raise_scores(scores: Tensor, keys: Tensor, alpha: float) -> Tensor:
    """A + alpha |A| of the last query at the keys [B, kv]; scores [B, heads, queries, kv]."""
    last = scores[..., -1:, :]
    gain = alpha * last.abs().masked_fill(~keys[:, None, None, :], 0.0)
    return torch.cat([scores[..., :-1, :], last + gain], dim=-2)


def guide(main: Tensor, branch: Tensor, gamma: float, beta: float) -> Tensor:
    """gamma c + (1 - gamma) u of logits [..., vocab], without what the main branch finds implausible."""
    c = main.log_softmax(-1)
    if gamma == 1:
        return c
    return plausible(gamma * c + (1 - gamma) * branch.log_softmax(-1), c, beta)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **more: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention of a decoder block [B, heads, T, d] as transformers calls it: torch's own, but for the last row."""
    boost = more.pop(_ARGUMENT, None)
    if boost is None:
        raise ModelError(f"{type(module).__name__} does not hand arguments on to its attention: pai cannot act in this model")
    refuse_odd_scores("pai", module, more)
    if module.layer_idx not in boost.blocks:
        plain: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **more)
        return plain
    boost.done.add(module.layer_idx)
    if query.shape[2] == 1:
        return _attend_newest(query, key, value, attention_mask, more.get("scaling"), boost), None
    last = _attend_last(query, key, value, attention_mask, more.get("scaling"), boost)
    out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **more)
    return torch.cat([out[:, :-1], last], dim=1), None


def _attend_last(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None, boost: Boost) -> Tensor:
    """The last query of every row, with the edit: [B, 1, heads, d]."""
    scores, visible = last_scores(query, key, mask, scaling)
    shown = boost.keys[:, -key.shape[2] :].to(query.device)  # a sliding window keeps the newest keys only
    scores = raise_scores(scores, shown & visible[:, 0, 0], boost.alpha)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2).contiguous()


def _attend_newest(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None, boost: Boost) -> Tensor:
    """The same of rows with no other query, in as few kernels as it takes: s q k + alpha s |q k| + mask."""
    batch, heads, _, width = query.shape
    scaling = scaling or width**-0.5
    bias, gain = boost.weights(key, mask, scaling)
    raw = query.reshape(batch, key.shape[1], -1, width) @ key.transpose(-1, -2)  # [B, key heads, heads that share one, kv]
    scores = torch.addcmul(torch.add(bias, raw, alpha=scaling), raw.abs(), gain)
    return (scores.softmax(-1).to(value.dtype) @ value).reshape(batch, 1, heads, -1)


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, whole_mask)


class Boosting:
    """The edit on one model: which keys show the picture is read off the prompt and kept with the generation's cache."""

    def __init__(self, backbone: Backbone, alpha: float, blocks: range, *, is_alone: bool) -> None:
        self.backbone, self.alpha, self.blocks, self.is_alone = backbone, alpha, blocks, is_alone
        self.usual = check_kernel(backbone, "pai")
        self.config = backbone.config.get_text_config(decoder=True)
        self.keys: WeakKeyDictionary[Cache, Tensor] = WeakKeyDictionary()  # of the prompt; beams of a row share their picture
        self.handles: list[RemovableHandle] = [
            backbone.model.register_forward_pre_hook(self.read, with_kwargs=True),
            backbone.language.register_forward_pre_hook(self.enter, with_kwargs=True),
            backbone.language.register_forward_hook(self.leave, with_kwargs=True),
        ]
        self.config._attn_implementation = IMPLEMENTATION

    def remove(self) -> None:
        self.config._attn_implementation = self.usual
        for handle in self.handles:
            handle.remove()

    def read(self, _model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> None:
        """Find the picture in a prompt; refuse a forward in which the newest position is not the last column."""
        cache, ids = kwargs.get("past_key_values"), kwargs.get("input_ids")
        if args or cache is None or ids is None or kwargs.get("use_cache") is False:
            raise UnsupportedDecoding("pai follows the cache of a generation: call generate with input_ids, use_cache on")
        if cache.is_compileable:
            raise UnsupportedDecoding("pai does not work with static or compiled decoding: use the dynamic cache")
        if kwargs.get("output_attentions"):
            raise UnsupportedDecoding("pai gives no attention weights back: leave output_attentions out")
        if cache in self.keys and ids.shape[1] == 1:
            return
        if cache.get_seq_length() > 0 or kwargs.get("logits_to_keep", 1) != 1:
            raise UnsupportedDecoding("pai reads the whole prompt, then one token at a time: no assisted decoding, no chunks")
        keys = self.backbone.image_mask(kwargs)
        if self.is_alone and not keys.any():
            raise PromptError("pai raises the attention to a picture: give one, or leave pai off")
        self.keys[cache] = keys

    def enter(self, _language: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        cache = kwargs["past_key_values"]
        keys, length = self.keys[cache], cache.get_seq_length() + kwargs["inputs_embeds"].shape[1]
        keys = F.pad(keys, (0, length - keys.shape[1]))  # what was said since shows no picture
        return args, {**kwargs, _ARGUMENT: Boost(keys, self.alpha, self.blocks)}

    def leave(self, language: nn.Module, _args: tuple[Any, ...], kwargs: Call, _output: Any) -> None:
        if kwargs[_ARGUMENT].done != set(self.blocks):
            raise ModelError(f"{type(language).__name__} has attention of its own in some blocks: pai cannot act in this model")


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"alpha": 0.5, "gamma": 1.1},
    "reference-code": {"alpha": 0.2, "gamma": 2.0},
}


@dataclass(frozen=True)
class PAI(BranchMethod):
    """Pay attention to image. `start` and `end` bound the blocks, from 0; no `end` is the top."""

    name: ClassVar[str] = "pai"
    summary: ClassVar[str] = "attend more to the picture, and contrast with a text-only branch"
    seam: ClassVar[Seam] = Seam.ATTENTION
    modes: ClassVar[frozenset[Mode]] = BranchMethod.modes - {Mode.STATIC, Mode.COMPILE}
    moved_by: ClassVar[str] = "gamma - 1"  # at 0 the state is that of the changed attention, not the plain one
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0, "gamma": 1.0})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(PRESETS)

    alpha: float | None = None
    gamma: float | None = None
    start: int = 2
    end: int | None = None
    beta: float = 0.1
    preset: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fill_from_preset()
        for name in ("alpha", "gamma"):
            check_strength(name, getattr(self, name))
        check_share("beta", self.beta)

    @property
    def strengths(self) -> tuple[float, float]:
        """alpha and gamma, which the preset has filled in."""
        return float(self.alpha or 0), float(self.gamma or 0)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        alpha, gamma = self.strengths
        blocks = self._blocks(len(backbone.layers))
        if alpha > 0:
            check_kernel(backbone, self.name)
        parts: list[Removable] = [self._report(backbone, tap) if gamma == 1 else PairedForward(backbone, self, tap)]
        if alpha > 0:  # after the pairing: it reads the rows of both branches
            parts.append(Boosting(backbone, alpha, blocks, is_alone=gamma == 1))
        return Handles(*parts)

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        if backbone.pixel_keys[0] not in main:
            raise PromptError(f"{self.name} takes the picture away in its branch: give one, or leave {self.name} off")
        return backbone.without_image(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return guide(main, branch, self.strengths[1], self.beta), {}

    def require_state(self) -> None:
        if self.strengths[1] == 1:
            raise SettingError(
                "pai at gamma=1 runs no branch, and its state does not move: give another gamma; strength 0 is gamma=1 there"
            )

    def own_strength(self, seen: HeadInputs) -> Weight:  # noqa: ARG002
        return self.strengths[1] - 1

    def _blocks(self, count: int) -> range:
        end = count if self.end is None else self.end
        if not 0 <= self.start < end <= count:
            raise SettingError(f"start={self.start}, end={self.end} must bound some of the model's {count} blocks, from 0")
        return range(self.start, end)

    def _report(self, backbone: Backbone, tap: Tap) -> RemovableHandle:
        """Without a branch: the trace shows the logits that the edit gave."""

        def tell(_model: nn.Module, _args: Any, output: Any) -> None:
            if tap.listener is not None:
                tap.listener(Observation({}, output.logits, output.logits))

        handle: RemovableHandle = backbone.model.register_forward_hook(tell)
        return handle
