"""HalTrapper (Zheng et al., ICCV 2025): contrast with a prompt that already names what the model tends to make up here.

    s = (1 + alpha) l - alpha l',   dropped: l[v] < max l + ln(beta)

The branch sees the same picture, with the names of some objects directly after its last token. The model reveals these objects,
once per picture (candidates.py), or you give them (`candidates`). Cost: for each new picture a caption, eight replies in one
batch, each up to `length` tokens, and two forwards; then 2 forwards per token. The search runs the picture through the vision
tower three more times, the branch never does. If nothing is found for a picture, it is decoded plainly. Settings follow the
authors' code: 10 candidates, or 5 for some models (preset "reference-code-5"); we did not have the paper's text. Their code
draws the words that fill up the candidates with the question's number as seed; we use the picture unless `seed` is given, so
the batch does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import Ids, tokenize_text
from mgap.errors import PromptError, SettingError
from mgap.io.images import ImageSource
from mgap.methods.base import Tap
from mgap.methods.haltrapper.candidates import CandidateRules, CandidateSearch, Findings
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.branch import BranchMethod, Build, check_length, contrast, plausible
from mgap.methods.kinds.main_rows import row_split_of
from mgap.methods.kinds.paired_forward import ALONE, Inputs
from mgap.priors.object_words import Vocabulary, Words
from mgap.settings import check_choice, check_count, check_share, check_strength

FORMS = ("contrastive", "augmentive")
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "reference-code": {"tau_ig": 0.75, "tau_ee": 1.0, "n": 10, "vocabulary": "coco", "length": 512},
        "reference-code-5": {"tau_ig": 0.75, "tau_ee": 1.0, "n": 5, "vocabulary": "coco", "length": 512},
    }
)


@dataclass(frozen=True)
class HalTrapper(BranchMethod):
    """Induce, detect, suppress. Settings that are not given come from the preset.

    `candidates` are your own words for every picture: then nothing is searched, and the settings of the search must be left
    out. `tau_ig` and `tau_ee` are the thresholds of grounding and expansion, `n` is the number of candidates (0: as many as are
    found), `vocabulary` the objects to look for: "coco", a file with one object per line, a list, or a mapping to synonyms.
    `repeats` says how often each candidate is written. "augmentive" adds the branch instead: s = l + alpha l'.
    """

    name: ClassVar[str] = "haltrapper"
    summary: ClassVar[str] = "contrast with a prompt that names what the model tends to make up"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    moved_by: ClassVar[str] = "alpha"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0})

    alpha: float = 1.0
    beta: float = 0.1
    candidates: Sequence[str] | None = None
    tau_ig: float | None = None
    tau_ee: float | None = None
    n: int | None = None
    vocabulary: Words | None = None
    length: int | None = None
    seed: int | None = None
    repeats: int = 1
    form: str = "contrastive"
    preset: str = "reference-code"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strength("alpha", self.alpha)
        check_share("beta", self.beta)
        check_count("repeats", self.repeats, least=1)
        check_choice("form", self.form, FORMS)
        if self.candidates is not None:
            self._check_candidates()
            return
        self.fill_from_preset()
        check_share("tau_ig", self.rules.tau_ig)
        check_strength("tau_ee", self.rules.tau_ee)
        check_count("n", self.n, least=0)
        check_count("length", self.length, least=1)
        if self.seed is not None:
            check_count("seed", self.seed, least=0)
        self._words()

    def _check_candidates(self) -> None:
        given = [name for name in (*PRESETS["reference-code"], "seed") if getattr(self, name) is not None]
        if self.preset != "reference-code":
            given.append("preset")
        if given:
            raise SettingError(f"{given[0]} belongs to the search, and candidates are given: leave one of them out")
        words = [self.candidates] if isinstance(self.candidates, str) else self.candidates
        if not words or not isinstance(words, Sequence) or not all(isinstance(word, str) and word.strip() for word in words):
            raise SettingError(f"candidates={self.candidates!r} must be words; leave it out to have them searched")
        object.__setattr__(self, "candidates", tuple(word.strip() for word in words))

    def _words(self) -> Vocabulary:
        return Vocabulary.of("coco" if self.vocabulary is None else self.vocabulary)

    @property
    def rules(self) -> CandidateRules:
        """The rules of the search, filled in from the preset."""
        return CandidateRules(self.tau_ig, self.tau_ee, self.n, self.seed)  # type: ignore[arg-type]  # set above

    def search(self, model: Any, image: ImageSource) -> Findings:
        """What the model reveals about one picture: caption, scores and candidates, as decoding finds them."""
        backbone = Backbone.of(model)
        main = backbone.encode([image], ["?"])
        with row_split_of(backbone.model).paused():
            return self._search(backbone, Tap())(main)[0]

    def _search(self, backbone: Backbone, tap: Tap) -> CandidateSearch:
        if self.candidates is not None:
            raise SettingError("candidates are given: there is nothing to search")
        return CandidateSearch(backbone, self._words(), self.rules, int(self.length or 0), tap)

    def prepare(self, backbone: Backbone, tap: Tap) -> Build:
        given = self.candidates
        search = self._search(backbone, tap) if given is None else None
        spell_words(backbone, given or ("?",))  # needs the tokenizer: fails now, not later

        def build(main: Inputs) -> Inputs:
            if backbone.pixel_keys[0] not in main:
                raise PromptError(f"{self.name} puts words behind a picture: give one, or leave {self.name} off")
            backbone.rewrite(main, lambda ids, *_: ids)  # raises now if a row does not have exactly one picture
            rows = [tuple(given or ())] * len(main["input_ids"]) if search is None else [f.candidates for f in search(main)]
            words = iter(rows)
            branch = backbone.rewrite(main, lambda ids, *_: insert(backbone, self._repeated(next(words)), ids))
            alone = torch.tensor([not row for row in rows], device=main["input_ids"].device)
            return check_length(self.name, backbone, {**main, **branch, ALONE: alone})  # the same pixels: encoded once

        return build

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        return self.prepare(backbone, Tap())(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        if self.form == "augmentive":
            return plausible(main + self.alpha * branch, main, self.beta), {}
        return contrast(main, branch, self.alpha, self.beta), {}

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:
        return (1.0, strength) if self.form == "augmentive" else super().mixture(strength, inputs)

    def _repeated(self, words: Sequence[str]) -> list[str]:
        return [word for word in words for _ in range(self.repeats)]


def insert(backbone: Backbone, words: Sequence[str], ids: Ids) -> Ids:
    """Insert the words directly after the picture's last token, before a closing marker."""
    end = len(ids) - ids[::-1].index(backbone.image_token_id)
    return ids[:end] + spell_words(backbone, words) + ids[end:]


def spell_words(backbone: Backbone, words: Sequence[str]) -> Ids:
    """The tokens of the words, each in its word-initial form; joined by spaces if the tokenizer has no such form."""
    tokenizer = backbone.tokenizer
    if tokenizer.convert_ids_to_tokens(tokenize_text(tokenizer, "a"))[0].startswith("\u2581"):
        ids = [token for word in words for token in tokenize_text(tokenizer, word)]
    else:
        ids = tokenize_text(tokenizer, "".join(f" {word}" for word in words))
    if any(token in backbone.image_block_ids for token in ids):
        raise SettingError(f"candidates {', '.join(words)}: one names the model's placeholder of a picture; leave it out")
    return ids
