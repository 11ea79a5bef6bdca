"""ICD, instruction contrastive decoding (Wang et al., Findings of ACL 2024): contrast with a disturbing instruction.

    extrapolate: s = (1 + alpha) l - alpha l'      subtract: s = l - alpha l'      dropped: l[v] < max l + ln(beta)
    with_vcd:    s = CD(l, l', alpha, beta) + CD(l, l_noise, alpha, beta)

The branch sees the same picture and an instruction that makes the model describe it vaguely. The paper writes `subtract`, the
authors' code `extrapolate`: `subtract` at alpha / (1 + alpha) chooses the same tokens as `extrapolate` at alpha. `placement`
says where the instruction goes: after the picture, before it, or in place of the system text (the authors' script for models
without a Q-Former). `with_vcd` also runs VCD's branch and adds its scores, as their code can for models with a Q-Former: l then
has weight 2 (1 + alpha). Cost: 2 forwards per token and one pass through the vision tower; with_vcd: 3 and two. A branch that
is too long is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import Ids, edit_text, tokenize_text
from mgap.errors import PromptError, SettingError
from mgap.methods.base import Tap
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.branch import BranchMethod, Build, check_length, contrast, distance, plausible
from mgap.methods.kinds.paired_forward import Inputs, RowState
from mgap.methods.vcd import VCD
from mgap.settings import check_choice, check_share, check_strength, check_switch

INSTRUCTIONS = {  # from the authors' scripts; every port uses the first
    "confused": "You are a confused objects detector to provide a fuzzy overview or impression of the image.",
    "detector": "You are an object detector to recognize every different objects.",
    "detector-focused": "You are an object detector to recognize every different objects by focusing the shapes, colors and "
    "relationships of objects.",
    "avoid": "I want you avoid any specific identification or categorization of the objects depicted.",
    "overview": "You are an object detector to provide a general overview or impression of the image.",
}
PLACEMENTS = ("prefix_after_image", "prefix_before_image", "system")
FORMS = ("extrapolate", "subtract")
Edit = Callable[[Ids, int, int], Ids]


@dataclass(frozen=True)
class ICD(BranchMethod):
    """Instruction contrastive decoding. `instruction` is a name of INSTRUCTIONS, or your own text.

    `with_vcd` adds VCD at the same alpha and beta; `noise_step` and `seed` are VCD's settings, with VCD's defaults.
    """

    name: ClassVar[str] = "icd"
    summary: ClassVar[str] = (
        "contrast with the answer under a disturbing instruction (with_vcd: and a noised picture, 3 forwards)"
    )
    moved_by: ClassVar[str] = "alpha"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0})

    alpha: float = 1.0
    beta: float = 0.1
    instruction: str = "confused"
    placement: str = "prefix_after_image"
    form: str = "extrapolate"
    with_vcd: bool = False
    noise_step: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strength("alpha", self.alpha)
        check_share("beta", self.beta)
        check_choice("placement", self.placement, PLACEMENTS)
        check_choice("form", self.form, FORMS)
        if not isinstance(self.instruction, str) or not self.instruction.strip():
            raise SettingError(f"instruction={self.instruction!r}: choose from {', '.join(INSTRUCTIONS)}, or write one")
        check_switch("with_vcd", self.with_vcd)
        if self.with_vcd and self.form != "extrapolate":
            raise SettingError(f"with_vcd adds to form=extrapolate only, not to {self.form}: leave one of them out")
        if self._noise and not self.with_vcd:
            raise SettingError(
                f"{next(iter(self._noise))} is for the noise that with_vcd adds: give with_vcd=true, or leave it out"
            )
        self.vcd  # noqa: B018  refuses what VCD refuses

    @property
    def vcd(self) -> VCD | None:
        """VCD, whose branch and scores are added, if `with_vcd`."""
        return VCD(alpha=self.alpha, beta=self.beta, **self._noise) if self.with_vcd else None

    @property
    def _noise(self) -> dict[str, Any]:
        """VCD's settings that were given."""
        return {name: getattr(self, name) for name in ("noise_step", "seed") if getattr(self, name) is not None}

    @property
    def text(self) -> str:
        """The instruction in full."""
        return INSTRUCTIONS.get(self.instruction, self.instruction.strip())

    def builders(self, backbone: Backbone, tap: Tap) -> list[Build]:
        own = super().builders(backbone, tap)
        return own if self.vcd is None else own + self.vcd.builders(backbone, tap)

    def prepare(self, backbone: Backbone, tap: Tap) -> Build:  # noqa: ARG002
        edit = self._edit(backbone)

        def build(main: Inputs) -> Inputs:
            if backbone.pixel_keys[0] not in main:
                raise PromptError(f"{self.name} disturbs what is said of a picture: give one, or leave {self.name} off")
            return check_length(self.name, backbone, {**main, **backbone.rewrite(main, edit)})  # the same pixels: encoded once

        return build

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        return self.prepare(backbone, Tap())(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        if self.form == "subtract":
            return plausible(main - self.alpha * branch, main, self.beta), {}
        return contrast(main, branch, self.alpha, self.beta), {}

    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: RowState) -> tuple[Tensor, dict[str, Tensor]]:
        if self.vcd is None:
            return super().weigh(main, branches, step, kept)
        disturbed, noised = branches
        (scores, _), (vcd_scores, _) = self.combine(main, disturbed, step), self.vcd.combine(main, noised, step)
        return scores + vcd_scores, {}

    def traced(self, main: Tensor, branches: Sequence[Tensor], step: int) -> dict[str, Tensor]:  # noqa: ARG002
        names = ("distance", "distance_vcd")
        return {name: distance(main, branch) for name, branch in zip(names, branches, strict=False)}

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:
        """With VCD, l counts twice even at strength 0: the state is then 2 h, not h."""
        if self.with_vcd:
            return 2 * (1 + strength), -strength, -strength
        return (1.0, -strength) if self.form == "subtract" else super().mixture(strength, inputs)

    def _edit(self, backbone: Backbone) -> Edit:
        if self.placement == "system":
            return _system(backbone, self.text)
        place = _after if self.placement == "prefix_after_image" else _before
        return partial(place, backbone.tokenizer, self.text)


def _after(tokenizer: Any, text: str, ids: Ids, _start: int, end: int) -> Ids:
    """<picture> \\n TEXT question: after the white space that the template puts behind a picture."""

    def insert(rest: str) -> str:
        words = rest.lstrip()
        return f"{rest[: len(rest) - len(words)]}{text} {words}"

    tail = edit_text(tokenizer, ids[end:], insert, left=ids[end - 1])
    if tail is None:
        blank = end
        while blank < len(ids) and not tokenizer.decode([ids[blank]]).strip():
            blank += 1
        tail = ids[end:blank] + tokenize_text(tokenizer, f"{text} ") + ids[blank:]
    return ids[:end] + tail


def _before(tokenizer: Any, text: str, ids: Ids, start: int, _end: int) -> Ids:
    """TEXT <picture> \\n question."""
    opening = int(ids[0] == tokenizer.bos_token_id)
    head = edit_text(tokenizer, ids[opening:start], lambda rest: f"{rest}{text} ", right=ids[start])
    if head is None:
        head = ids[opening:start] + tokenize_text(tokenizer, f"{text} ")
    return ids[:opening] + head + ids[start:]


def _system(backbone: Backbone, text: str) -> Edit:
    """Replace the system text, or add one if the template has none by default."""
    image = str(backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id))
    plain, disturbed = (backbone.render("?", system=system).partition(image) for system in (None, text))
    if not plain[1] or plain[2] != disturbed[2]:
        raise PromptError(f"{backbone.name}: its chat template does not put the system text before the picture; place it there")
    old, new = (backbone.tokenize(head + image)[:-1] for head, *_ in (plain, disturbed))

    def edit(ids: Ids, _start: int, _end: int) -> Ids:
        first = ids.index(backbone.image_token_id)
        if ids[:first] != old:
            raise PromptError("a row does not begin as the chat template writes it: use placement=prefix_after_image")
        return new + ids[first:]

    return edit
