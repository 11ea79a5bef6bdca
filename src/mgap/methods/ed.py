"""ED and FastED, attention-guided ensemble decoding (Cho et al., ICLR 2025): mix in what is said of four crops of the picture.

    S_c = sum of M over quarter c of the picture's tokens,   w = softmax(S / 10^-tau)      M: kinds/largest_weights.py
    e = sum_c w_c l_c,   s = (1 - alpha) l + alpha e,   s[v] = -inf where e[v] < max e + ln(beta)
    FastED: e = l_c of the one crop c whose S is the largest at the first token

The weights come from the newest token's attention in the main rows, in the same forward as l; the crops from the picture
itself, one at each corner (kinds/corner_crops.py). The cut looks at e, not at l: it may drop the main rows' favourite. Cost: 5
forwards per token and 5 pictures; FastED 2 and 2, the prompt about the crop after the main one. Besides, the scores of one
query in every block, in each main forward; FastED in the prompt's only. The authors' code takes the three largest weights at
each key, where the paper speaks of selected heads and layers, and weighs a whole batch by its first row; here rows are weighed
one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import SettingError
from mgap.methods.base import Removable, Seam, Tap
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.attention_weights import AttentionWatch
from mgap.methods.kinds.branch import BranchMethod, BuildAll, check_pictures, plausible
from mgap.methods.kinds.corner_crops import CORNERS, CornerCrops, quarters_of, sum_quarters
from mgap.methods.kinds.dependent_branch import DependentBranch, DependentCache
from mgap.methods.kinds.largest_weights import LargestWeights
from mgap.methods.kinds.main_rows import row_split_of
from mgap.methods.kinds.paired_forward import Inputs, PairedCache, PairedForward, RowState
from mgap.methods.kinds.watched_forward import WatchedForward
from mgap.settings import check_share, check_strength
from mgap.types import Mode

QUARTERS, CROP = "quarters", "crop"  # keys of a generation's row state: of prompt positions [B, T]; of FastED's choice [B]
MOST = 37  # the largest power of 10 that weights are sharpened by; float32 holds it, and more changes nothing
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({"questions": {"tau": 2.0}, "captions": {"tau": 4.0}})


def crop_weights(sums: Tensor, tau: float) -> Tensor:
    """softmax(S / 10^-tau) of the quarters' sums [..., 4]."""
    sharpness = math.pow(10, min(tau, MOST))
    return ((sums - sums.amax(-1, keepdim=True)) * sharpness).softmax(-1)


@dataclass(frozen=True)
class CropMethod(BranchMethod):
    """What ED and FastED share.

    `crop_share` is the crops' share of the picture's width and height; None: a square of the model's input side, as published,
    or 0.6 of them for a model that keeps a picture's proportions.
    """

    seam: ClassVar[Seam] = Seam.ATTENTION
    modes: ClassVar[frozenset[Mode]] = BranchMethod.modes - {Mode.STATIC, Mode.COMPILE}
    moved_by: ClassVar[str] = "alpha"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0, "beta": 0.0})

    alpha: float = 0.5
    beta: float = 0.5
    crop_share: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strength("alpha", self.alpha)
        check_share("beta", self.beta)
        if self.crop_share is not None and not check_share("crop_share", self.crop_share) > 0:
            raise SettingError("crop_share=0 leaves nothing to see: give a number above 0 and at most 1, or leave it out")

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        """The main rows' inputs, before a crop takes the picture's place."""
        check_pictures(self.name, backbone, main, "looks at crops")
        backbone.rewrite(main, lambda ids, *_: ids)  # raises if a row does not have exactly one picture
        return dict(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        """Scores from l and e."""
        return plausible((1 - self.alpha) * main + self.alpha * branch, branch, self.beta), {}


@dataclass(frozen=True)
class ED(CropMethod):
    """Ensemble decoding with four crops. The larger `tau`, the more the most attended crop counts alone; the preset sets it."""

    name: ClassVar[str] = "ed"
    summary: ClassVar[str] = "mix in what is said of four crops, by the attention to each quarter of the picture"
    forwards: ClassVar[float] = 5.0
    besides: ClassVar[str] = "4 more pictures to encode"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    tau: float | None = None
    preset: str = "questions"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fill_from_preset()
        check_strength("tau", self.sharpness)

    @property
    def sharpness(self) -> float:
        """tau, filled in from the preset."""
        return self.tau  # type: ignore[return-value]  # set above

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return WeighedCrops(backbone, self, tap, watch_largest(backbone, self.name))

    def branches(self, backbone: Backbone, tap: Tap) -> BuildAll:  # noqa: ARG002
        crops = CornerCrops(self.name, backbone, self.crop_share)

        def build(main: Inputs) -> list[Inputs]:
            whole = self.branch(backbone, main)
            pictures = len(backbone.pictures(whole))
            return [crops(whole, [corner] * pictures) for corner in range(len(CORNERS))]

        return build

    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: RowState) -> tuple[Tensor, dict[str, Tensor]]:
        """`kept` holds the crops' weights at this token, [B] each."""
        weights = {corner: kept[corner].to(main) for corner in CORNERS}
        parts = zip(weights.values(), branches, strict=True)
        crops: Tensor = sum(weight.unsqueeze(-1) * branch for weight, branch in parts)  # type: ignore[assignment]
        return self.combine(main, crops, step)[0], weights

    def traced(self, main: Tensor, branches: Sequence[Tensor], step: int) -> dict[str, Tensor]:  # noqa: ARG002
        return {}

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:
        return 1 - strength, *(strength * inputs.values[corner].unsqueeze(-1) for corner in CORNERS)


@dataclass(frozen=True)
class FastED(CropMethod):
    """Ensemble decoding with one crop: the one whose quarter is attended to most at the end of the prompt."""

    name: ClassVar[str] = "fast-ed"
    summary: ClassVar[str] = "mix in what is said of the crop that is attended to most"
    besides: ClassVar[str] = "1 more picture to encode"

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return BestCrop(backbone, self, tap, watch_largest(backbone, self.name))

    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: RowState) -> tuple[Tensor, dict[str, Tensor]]:
        return super().weigh(main, branches, step, kept)[0], {CROP: kept[CROP].to(main)}

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:  # noqa: ARG002
        return 1 - strength, strength


def watch_largest(backbone: Backbone, name: str) -> AttentionWatch:
    return AttentionWatch(backbone, name, partial(LargestWeights, row_split=row_split_of(backbone.model)))


def keep_quarters(hooks: PairedForward, call: Call, rows: int) -> None:
    """Keep the quarters of the main rows' prompt, the first `rows` of a first forward, in the generation's state."""
    main = {"input_ids": call["input_ids"][:rows]}
    maps = hooks.backbone.picture_maps(hooks.pixels)
    call["past_key_values"].row_state[QUARTERS] = quarters_of(hooks.backbone.image_mask(main), maps)


class WeighedCrops(WatchedForward):
    """ED's hooks: the attention of every main forward weighs what the crops predict for the same token."""

    method: ED

    def _first(self, kwargs: Call) -> Call:
        call = super()._first(kwargs)
        keep_quarters(self, call, len(kwargs["input_ids"]))
        self.attention.start()
        return call

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        call = super()._next(kwargs, cache)
        self.attention.start()
        return call

    def _split_logits(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        sums = sum_quarters(self.attention.take(), cache.row_state[QUARTERS])
        cache.row_state |= dict(zip(CORNERS, crop_weights(sums, self.method.sharpness).unbind(-1), strict=True))
        return super()._split_logits(model, logits, cache)


class BestCrop(DependentBranch):
    """FastED's hooks: the attention of the prompt's main forward chooses the crop."""

    method: FastED

    def __init__(self, backbone: Backbone, method: FastED, tap: Tap, attention: AttentionWatch) -> None:
        self.crops = CornerCrops(method.name, backbone, method.crop_share)
        super().__init__(backbone, method, tap, attention)

    def _first(self, kwargs: Call) -> Call:
        call = super()._first(kwargs)
        self.crops.asked(call["past_key_values"].main)  # refuses now what could not be cropped later
        keep_quarters(self, call, len(kwargs["input_ids"]))
        return call

    def build_prompt(self, attention: Tensor, cache: DependentCache) -> tuple[Call, Any]:
        sums = sum_quarters(attention, cache.row_state[QUARTERS])
        times = len(sums) // len(self.backbone.pictures(cache.main))
        chosen = sums[::times].argmax(-1)  # [pictures]; the beams of a row have read the same
        cache.row_state[CROP] = chosen.repeat_interleave(times)
        branch = self.crops(cache.main, chosen.tolist())
        shown = self._features(cache.features, cache.main, branch)
        return self._prompt(branch, shown), shown
