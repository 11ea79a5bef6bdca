"""OPERA, over-trust penalty and retrospection-allocation (Huang et al., CVPR 2024): a beam search that goes back.

    score = logit - alpha rho for each beam's N_can most likely tokens, logit - 999 for the others
    rho = -m, the candidate's attention to the picture, for the first 10 tokens; then max_j 1e-7 prod_{i>=j} sigma w_ij

w is the last block's attention, the maximum over heads, each row normalised to sum to 1; overtrust.py has the formula. If every
beam has collapsed onto the same word more than r times, the search returns to it and chooses another next token. Cost: 2
forwards per token, both over all beams, the second over N_can tokens per beam; a return costs a prefill and decoding again from
there. It is its own search: sampling, streams, drafts, static caches and compiled decoding are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.generation import GenerationMode, StoppingCriteriaList

from mgap.backbones.base import Backbone
from mgap.backbones.decoding_limits import check_beams, check_memory
from mgap.errors import ModelError, SettingError, UnsupportedDecoding
from mgap.methods.base import Method, Removable, Seam, Tap
from mgap.methods.kinds.attention_interceptor import CAUSAL, AttentionInterceptor, AttentionPass, check_kernel
from mgap.methods.opera.beams import BeamRules
from mgap.methods.opera.last_block import LastBlockWeights
from mgap.methods.opera.retrospection import Strength
from mgap.methods.opera.search import OperaSearch, Reader
from mgap.settings import check_count, check_strength
from mgap.types import Mode

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"candidates": 5, "r": 15},
    "fast": {"candidates": 1, "r": 25},  # the authors' README: with one candidate the penalty has no effect
}
REFUSED_OPTIONS = ("streamer", "assistant_model", "custom_generate", "synced_gpus", "tokenizer", "assistant_tokenizer")
REFUSED_OUTPUTS = ("output_attentions", "output_hidden_states", "output_logits", "low_memory")


@dataclass(frozen=True)
class OPERA(Method):
    """Over-trust penalty and retrospection. `candidates` is N_can; the search can return to the last `window` states (0: none).

    `beams` is the number of beams for a call with num_beams=1; a call with any other number is refused.
    """

    name: ClassVar[str] = "opera"
    summary: ClassVar[str] = "beam search that penalises collapsing attention and goes back"
    seam: ClassVar[Seam] = Seam.SEARCH
    forwards: ClassVar[float] = 2.0
    besides: ClassVar[str] = "each over 5 beams, the second over 5 candidates a beam; more after a return"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.GREEDY, Mode.BEAM, Mode.BATCH, Mode.SEQUENCES})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(PRESETS)
    no_state: ClassVar[str] = (
        "is a search that weighs beams by their attention and takes tokens back, and decodes from no one state"
    )

    alpha: float = 1.0
    sigma: float = 50.0
    candidates: int | None = None
    r: int | None = None
    beams: int = 5
    window: int = 512
    preset: str = "paper"

    def __post_init__(self) -> None:
        self.fill_from_preset()
        check_strength("alpha", self.alpha)
        if check_strength("sigma", self.sigma) == 0:
            raise SettingError("sigma=0 makes every product 0: give a positive number")
        for name, least in (("candidates", 1), ("r", 0), ("beams", 1), ("window", 0)):
            check_count(name, getattr(self, name), least)

    @property
    def strength(self) -> Strength:
        """The settings of the search, filled in from the preset."""
        return Strength(self.alpha, self.sigma, int(self.candidates or 0), int(self.r or 0), self.window)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return OperaHandle(backbone, self, tap)


class OperaHandle:
    """OPERA on one model: replaces the search inside its `generate`. `remove` restores the model."""

    def __init__(self, backbone: Backbone, method: OPERA, tap: Tap) -> None:
        self.backbone, self.method, self.tap, self.model = backbone, method, tap, backbone.model
        check_kernel(backbone, method.name)
        if "generate" in vars(self.model):
            raise ModelError(f"{method.name} searches inside generate, and this model's has been replaced: put its own back")
        self.current: LastBlockWeights | None = None  # the attention pass of the search's running forward
        self.interceptor = AttentionInterceptor(backbone, method.name, self._begin, kind=CAUSAL)
        self.handle = self.model.register_forward_pre_hook(self.guard)
        self.interceptor.start()
        self.model.generate = self.generate  # on this object only; the class does not change

    def remove(self) -> None:
        del self.model.generate
        self.interceptor.stop()
        self.handle.remove()

    def guard(self, *_: Any) -> None:
        """Refuse forwards outside the search, which would decode plainly."""
        if self.current is None:
            raise UnsupportedDecoding(f"{self.method.name} is a search: call generate, or leave {self.method.name} off")

    @contextmanager
    def passing(self, weights: LastBlockWeights) -> Iterator[None]:
        """Inside the block, forwards belong to the search and use this pass."""
        self.current = weights
        try:
            yield
        finally:
            self.current = None

    def _begin(self, *_: Any) -> AttentionPass:
        return self.current or AttentionPass(self.method.name)  # a forward of the text decoder alone is plain

    def generate(self, inputs: Tensor | None = None, generation_config: Any = None, **options: Any) -> Any:
        """Transformers' generate, with our search in place of its own."""
        for name in REFUSED_OPTIONS:  # transformers would drop them silently here
            if options.pop(name, None):
                raise UnsupportedDecoding(
                    f"{self.method.name} is a search of its own and takes no {name}: leave one of them out"
                )
        beams = options.pop("num_beams", None)
        if beams is None:
            beams = (generation_config or self.model.generation_config).num_beams or 1
        if beams not in (1, self.method.beams):
            raise UnsupportedDecoding(
                f"{self.method.name} was made with beams={self.method.beams}, and num_beams={beams} asks for another number: "
                f"leave num_beams out, or make it with beams={beams}"
            )
        ids = options.get("input_ids") if inputs is None else inputs
        check_beams(self.backbone, self.method.beams)
        if ids is not None:
            check_memory(self.backbone, len(ids) * self.method.beams, ids.shape[1])
        if generation_config is None:
            options["num_beams"] = self.method.beams
        else:  # beside a configuration, transformers wants no single options
            generation_config = deepcopy(generation_config)
            generation_config.num_beams = self.method.beams
        return type(self.model).generate(self.model, inputs, generation_config, custom_generate=self.search, **options)

    def search(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        **kwargs: Any,
    ) -> Any:
        """Called by transformers with all inputs prepared and rows repeated for the beams."""
        name, config = self.method.name, generation_config
        without_beams = copy(config)
        without_beams.num_beams = 1  # beams would hide other modes
        if (mode := without_beams.get_generation_mode()) is not GenerationMode.GREEDY_SEARCH:
            raise UnsupportedDecoding(f"{name} does not work with {mode.value} decoding: it is a beam search of its own")
        if refused := [option for option in REFUSED_OUTPUTS if getattr(config, option, None)]:
            raise UnsupportedDecoding(f"{name} is a search of its own and does not offer {refused[0]}: leave it out")
        cache = kwargs.get("past_key_values")
        if cache is None or not config.use_cache:
            raise UnsupportedDecoding(f"{name} keeps its beams in the cache: leave use_cache on")
        if cache.is_compileable or cache.offloading:
            raise UnsupportedDecoding(
                f"{name} does not work with static, compiled or offloaded decoding: use the dynamic cache"
            )
        if cache.get_seq_length() > 0 or kwargs.get("inputs_embeds") is not None:
            raise UnsupportedDecoding(f"{name} needs the whole prompt as input_ids: no cache from before, no inputs_embeds")
        images = self.backbone.image_mask({"input_ids": input_ids})
        reader = Reader(name, model, input_ids, images, config, kwargs, self.passing)
        rules = [_rules(config, stopping_criteria, prompt) for prompt in input_ids[:: config.num_beams]]
        keep_scores = bool(config.return_dict_in_generate and config.output_scores)
        search = OperaSearch(reader, self.method.strength, rules, logits_processor, self.tap, keep_scores=keep_scores)
        search.run()
        result = search.result(config.num_return_sequences, _pad(config))
        return result if config.return_dict_in_generate else result.sequences


def _rules(config: Any, criteria: StoppingCriteriaList, prompt: Tensor) -> BeamRules:
    """The beam search rules for this prompt [T]."""
    end = config._eos_token_tensor

    def ends(tokens: Tensor) -> Tensor:
        reached: Tensor = criteria(torch.cat([prompt.expand(len(tokens), -1), tokens], dim=1), None)
        return reached

    return BeamRules(
        beams=config.num_beams,
        picks=max(2, 1 + (0 if end is None else len(end))) * config.num_beams,
        length_penalty=config.length_penalty,
        early_stopping=config.early_stopping if config.num_beams > 1 else True,
        longest=config.max_length - len(prompt),
        ends=ends,
    )


def _pad(config: Any) -> int:
    """The token that pads shorter answers."""
    if config._pad_token_tensor is not None:
        return int(config._pad_token_tensor)
    return -1 if config._eos_token_tensor is None else int(config._eos_token_tensor[0])
