"""What else the authors' script prints about answers, beside the figures of scorer.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from mgap.benchmarks.hallusionbench.questions import QuestionId
from mgap.benchmarks.hallusionbench.scorer import JudgedAnswer

ERRORS = ("LH", "VI", "Mix")  # language hallucination, visual illusion, mixed


def figure_outcomes(verdicts: Iterable[JudgedAnswer], names: Collection[str]) -> Counter[str]:
    """How many of these figures are "consistent" (all right), "wrong" (none is) or "inconsistent"."""
    figures: dict[str, set[bool]] = {}
    for verdict in verdicts:
        if (name := QuestionId.of(verdict.id).whole_figure) in names and name is not None:
            figures.setdefault(name, set()).add(verdict.is_right)
    return Counter(
        "inconsistent" if len(found) > 1 else "consistent" if True in found else "wrong" for found in figures.values()
    )


def yes_bias(verdicts: Sequence[JudgedAnswer]) -> dict[str, float]:
    """`diff`: the share of predicted yes minus that of labels yes; `fp`: the share of labels no among the errors.

    The prediction is inferred from right and wrong, as there: what says neither counts as the opposite of the label.
    """
    predicted = sum(verdict.is_right == (verdict.label == "yes") for verdict in verdicts)
    labels = sum(verdict.label == "yes" for verdict in verdicts)
    errors = [verdict.label for verdict in verdicts if not verdict.is_right]
    return {"diff": (predicted - labels) / len(verdicts), "fp": errors.count("no") / len(errors) if errors else 0.0}


def errors_by_cause(verdicts: Sequence[JudgedAnswer]) -> dict[str, int]:
    """The errors split into language hallucination, visual illusion and mixed.

    The split asks of each answer whether it says the same as the one about figure 0. A judge model is asked there; here both
    must have been read, and be equal.
    """
    base = {place.pair: verdict for verdict in verdicts if (place := QuestionId.of(verdict.id)).figure == "0"}
    causes = Counter(_cause(verdict, base.get(QuestionId.of(verdict.id).pair)) for verdict in verdicts)
    return {name: causes[name] for name in ERRORS}


def _cause(verdict: JudgedAnswer, base: JudgedAnswer | None) -> str:
    """The cause of an error; "" if it is none. `base` is the answer to the same question about figure 0, or this one itself."""
    if verdict.is_right:
        return ""
    said = None if base is None else base.said
    is_same = verdict.said is not None and verdict.said == said
    is_base_right = base is not None and said == base.label
    if QuestionId.of(verdict.id).category == "VD":
        return "Mix" if is_same and is_base_right else "VI"
    if is_same:  # the picture, if there is one, changed nothing
        return "LH"
    return "VI" if said is None or is_base_right else "Mix"
