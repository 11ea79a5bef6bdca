"""The answers of a run beside those of plain decoding: what a method changed, looked for by effect, group and words."""

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
MOST = 200  # characters that are looked for


@dataclass(frozen=True)
class Pair:
    """One sample as the baseline and as one method answered it."""

    sample: Sample
    before: str
    after: str
    was_right: bool
    is_right: bool

    @property
    def is_changed(self) -> bool:
        """A yes/no question: another verdict, whatever the words; anything else: another text."""
        if self.was_right != self.is_right:
            return True
        if self.sample.truth in ("yes", "no"):
            return yes_or_no(self.before) != yes_or_no(self.after)
        return self.before != self.after

    @property
    def effect(self) -> str:
        if self.was_right != self.is_right:
            return "corrected" if self.is_right else "spoilt"
        always = "right both times" if self.is_right else "wrong both times"
        if self.is_changed:
            return f"changed, {always}"
        return always if self.before == self.after else f"reworded, {always}"

    @property
    def tone(self) -> str:
        """As which it is coloured: right and wrong are for what changed sides."""
        return {"corrected": "right", "spoilt": "wrong"}.get(self.effect, "unclear")

    @property
    def sign(self) -> str:
        """The effect without a word and without a colour."""
        return f"{_SIGNS[self.was_right]} \u2192 {_SIGNS[self.is_right]}"

    def passes(self, effect: str) -> bool:
        """One of FILTERS."""
        if effect == "changed":
            return self.is_changed
        return effect == ALL or (self.was_right != self.is_right and self.is_right == (effect == "gained"))


_SIGNS = {True: "\u2713", False: "\u2717"}


def methods_of(scores: Scores) -> list[str]:
    """Labels of the methods that are held against the baseline; the baseline itself where it is alone."""
    return [label for label in scores.texts if label != scores.baseline] or [scores.baseline]


def groups_of(scores: Scores) -> list[str]:
    answered = scores.texts[scores.baseline]
    return list(dict.fromkeys(sample.group for sample in scores.run.samples if sample.id in answered))


def pairs(scores: Scores, label: object) -> list[Pair]:
    """All scored samples under the baseline and this method, in the run's order."""
    if scores.run.plan.get("departure"):
        raise SettingError("This run measured distances and holds no answers: look at its results and figures")
    if label not in methods_of(scores):
        raise SettingError(f"{str(label)[:80]!r} is no method of this run: choose from {', '.join(methods_of(scores))}")
    plain, ours = scores.baseline, str(label)
    was, now = scores.right[plain], scores.right[ours]
    before, after = scores.texts[plain], scores.texts[ours]
    return [Pair(s, before[s.id], after[s.id], was[s.id], now[s.id]) for s in scores.run.samples if s.id in before]


def choose(found: Sequence[Pair], effect: object = ALL, group: object = "", words: object = "") -> list[Pair]:
    """Those with this effect, of this group, and with these words in the question, the answers or the picture's name."""
    if not isinstance(effect, str) or effect not in FILTERS:
        raise SettingError(f"filter {str(effect)[:80]!r}: choose from {', '.join(FILTERS)}")
    if group and group not in [*dict.fromkeys(pair.sample.group for pair in found)]:
        raise SettingError(f"group {str(group)[:80]!r} has no answers in this run: choose another")
    wanted = str(words or "").casefold().strip()
    if len(wanted) > MOST:
        raise SettingError(f"{len(wanted)} characters to look for: give at most {MOST}")
    return [
        pair
        for pair in found
        if pair.passes(effect) and group in ("", None, pair.sample.group) and (not wanted or wanted in _text(pair))
    ]


def _text(pair: Pair) -> str:
    return "\n".join((pair.sample.prompt, pair.before, pair.after, pair.sample.image)).casefold()
