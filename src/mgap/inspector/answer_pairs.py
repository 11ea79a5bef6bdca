"""Pairs a run's answers with those of plain decoding, and filters the pairs by effect, group and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.errors import SettingError
from mgap.reports.scores import Scores
from mgap.types import Sample

ALL = "all"
FILTERS = {
    ALL: "All",
    "changed": "Changed by the method",
    "gained": "Wrong before, right after",
    "lost": "Right before, wrong after",
}
MAX_SEARCH_LENGTH = 200  # characters


@dataclass(frozen=True)
class Pair:
    """One sample with the baseline's answer and one method's."""

    sample: Sample
    before: str
    after: str
    was_right: bool
    is_right: bool

    @property
    def is_changed(self) -> bool:
        """For a yes/no question: the verdict differs, whatever the words. For anything else: the text differs."""
        if self.was_right != self.is_right:
            return True
        if self.sample.truth in ("yes", "no"):
            return yes_or_no(self.before) != yes_or_no(self.after)
        return self.before != self.after

    @property
    def effect(self) -> str:
        if self.was_right != self.is_right:
            return "corrected" if self.is_right else "spoilt"
        both_times = "right both times" if self.is_right else "wrong both times"
        if self.is_changed:
            return f"changed, {both_times}"
        return both_times if self.before == self.after else f"reworded, {both_times}"

    @property
    def tone(self) -> str:
        """The verdict that sets its colour: right or wrong only if correctness changed."""
        return {"corrected": "right", "spoilt": "wrong"}.get(self.effect, "unclear")

    @property
    def sign(self) -> str:
        """The effect as two symbols, for readers who see no colour."""
        return f"{_SIGNS[self.was_right]} \u2192 {_SIGNS[self.is_right]}"

    def passes(self, effect: str) -> bool:
        """Whether the pair passes one of FILTERS."""
        if effect == "changed":
            return self.is_changed
        return effect == ALL or (self.was_right != self.is_right and self.is_right == (effect == "gained"))


_SIGNS = {True: "\u2713", False: "\u2717"}


def methods_of(scores: Scores) -> list[str]:
    """Labels of the methods compared with the baseline; the baseline itself if there are no others."""
    return [label for label in scores.texts if label != scores.baseline] or [scores.baseline]


def groups_of(scores: Scores) -> list[str]:
    answered = scores.texts[scores.baseline]
    return list(dict.fromkeys(sample.group for sample in scores.run.samples if sample.id in answered))


def pairs(scores: Scores, label: object) -> list[Pair]:
    """All scored samples under the baseline and this method, in the order of the run."""
    if scores.run.plan.get("departure"):
        raise SettingError("This run measured distances and holds no answers: look at its results and figures")
    if label not in methods_of(scores):
        raise SettingError(f"{str(label)[:80]!r} is no method of this run: choose from {', '.join(methods_of(scores))}")
    plain, ours = scores.baseline, str(label)
    right_before, right_after = scores.right[plain], scores.right[ours]
    before, after = scores.texts[plain], scores.texts[ours]
    return [
        Pair(s, before[s.id], after[s.id], right_before[s.id], right_after[s.id])
        for s in scores.run.samples
        if s.id in before and s.id in right_before  # a scorer may leave out samples
    ]


def choose(candidates: Sequence[Pair], effect: object = ALL, group: object = "", words: object = "") -> list[Pair]:
    """The pairs with this effect, in this group, whose question, answers or picture name contain these words."""
    if not isinstance(effect, str) or effect not in FILTERS:
        raise SettingError(f"filter {str(effect)[:80]!r}: choose from {', '.join(FILTERS)}")
    if group and group not in [*dict.fromkeys(pair.sample.group for pair in candidates)]:
        raise SettingError(f"group {str(group)[:80]!r} has no answers in this run: choose another")
    query = str(words or "").casefold().strip()
    if len(query) > MAX_SEARCH_LENGTH:
        raise SettingError(f"{len(query)} characters to look for: give at most {MAX_SEARCH_LENGTH}")
    return [
        pair
        for pair in candidates
        if pair.passes(effect) and group in ("", None, pair.sample.group) and (not query or query in _searchable_text(pair))
    ]


def _searchable_text(pair: Pair) -> str:
    return "\n".join((pair.sample.prompt, pair.before, pair.after, pair.sample.image)).casefold()
