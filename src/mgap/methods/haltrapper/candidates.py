"""Find objects that a model is likely to hallucinate about a picture (HalTrapper, Zheng et al., ICCV 2025).

Once per picture, the plain model greedily writes a caption, and imagines what is outside the frame in eight directions
(external expansion, EE). Internal grounding (IG) then finds the caption's objects that attend to the picture as any next object
would. Cost: a caption, eight replies in one batch, and two forwards. Replies in another format are ignored.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mgap.backbones.base import Backbone
from mgap.backbones.picture_seeds import picture_seed
from mgap.methods.base import Tap
from mgap.methods.haltrapper.grounding import ground
from mgap.methods.kinds.description import CAPTION
from mgap.methods.kinds.per_picture import EncodedPicture, PerPicture, render, write
from mgap.priors.object_words import Vocabulary

DIRECTIONS = ("top", "bottom", "left side", "right side", "top left corner", "top right corner", "bottom left corner",
              "bottom right corner")  # fmt: skip
IMAGINE = (
    "Based on this image, please imagine what object might be in the {direction} outside the frame, and explain why. "
    "Specifically, your response should follow the following format:\n\n"
    "Imagination: <one imaginary object here>\n"
    "Reason: The image features <briefly describe this image, be careful to mention all objects related to your imagination>, "
    "which suggests that <your imagination here>."
)
_CUED = re.compile(
    r"Imagination: *(.*?)\s*\n\s*Reason: *(.*?) *\b(?:suggests that|might be|likely that|indicates that)\b *(.*)"
)
_BARE = re.compile(r"Imagination: *(.*?)\s*\n\s*Reason: *(.*)")


@dataclass(frozen=True)
class CandidateRules:
    """How candidates are chosen: the thresholds, and how many to choose (0: exactly those that are found)."""

    tau_ig: float
    tau_ee: float
    n: int
    seed: int | None = None  # for the words that fill up the candidates; None: from the picture


@dataclass(frozen=True)
class Findings:
    """The results for one picture."""

    caption: str
    expansion: dict[str, int]  # EE of every object in the replies
    grounding: dict[str, float]  # IG of every object in the caption
    candidates: tuple[str, ...]


def parse_reply(reply: str) -> tuple[str, str] | None:
    """The imagination and the reason in one reply; None if it has another format."""
    if match := _CUED.match(reply):
        imagined, reason, rest = match.groups()
        return f"{imagined} {rest}", reason
    if match := _BARE.match(reply):
        imagined, reason = match.groups()
        return imagined, reason
    return None


def score_expansion(replies: Iterable[str], vocabulary: Vocabulary) -> dict[str, int]:
    """EE of every object in the replies: reasons that name it minus imaginations that do. In the order of mention."""
    scores: dict[str, int] = {}
    for reply in replies:
        imagined, reason = parse_reply(reply) or ("", "")
        for text, sign in ((imagined, -1), (reason, 1)):
            for name in vocabulary.first_mentions(text):
                scores[name] = scores.get(name, 0) + sign
    return scores


def select(
    caption: Iterable[str],
    expansion: Mapping[str, int],
    grounding: Mapping[str, float],
    vocabulary: Vocabulary,
    rules: CandidateRules,
) -> tuple[str, ...]:
    """The candidates, sorted; `caption` are the objects it names, and `rules` has a seed."""
    scores = {name: score for name, score in grounding.items() if score > rules.tau_ig}
    scores.update({name: -1.0 for name, score in expansion.items() if score < -rules.tau_ee and name not in scores})
    chosen = sorted(scores, key=lambda name: -scores[name])  # stable: of equal scores, the first mentioned comes first
    if rules.n > 0:
        named = {*caption, *expansion, *grounding}
        related = {word for name in named for word in (name, *vocabulary.synonyms.get(name, ()))}
        others = sorted(set(vocabulary.names) - related)
        missing = min(max(rules.n - len(chosen), 0), len(others))
        chosen = [*chosen[: rules.n], *random.Random(rules.seed).sample(others, missing)]
    return tuple(sorted(chosen))


class CandidateSearch(PerPicture[Findings]):
    """The findings for every row's picture."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, rules: CandidateRules, length: int, tap: Tap) -> None:
        super().__init__(backbone)
        self.vocabulary, self.rules, self.length, self.tap = vocabulary, rules, length, tap
        self.describe = render(backbone, CAPTION)
        self.imagine = [render(backbone, IMAGINE.format(direction=direction)) for direction in DIRECTIONS]

    def find(self, pictures: list[EncodedPicture]) -> list[Findings]:
        self.tap.report(f"describing {len(pictures)} pictures" if len(pictures) > 1 else "describing the picture")
        captions = write(self.backbone, pictures, [self.describe], self.length)
        findings = []
        for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True), start=1):
            which = f"picture {number} of {len(pictures)}" if len(pictures) > 1 else "the picture"
            self.tap.report(f"imagining what is around {which}")
            expansion = score_expansion(write(self.backbone, [picture], self.imagine, self.length), self.vocabulary)
            self.tap.report(f"tracing what was said of {which}")
            grounding = ground(self.backbone, picture, self.describe, caption, self.vocabulary)
            seed = picture_seed(self.backbone, picture.pixels) if self.rules.seed is None else self.rules.seed
            rules, named = replace(self.rules, seed=seed), self.vocabulary.first_mentions(caption)
            chosen = select(named, expansion, grounding, self.vocabulary, rules)
            findings.append(Findings(caption, expansion, grounding, chosen))
        return findings
