"""AMBER's figures as the published scorer prints them, with its names, rounding and constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mgap.benchmarks.amber.captions import DescribedPicture
from mgap.benchmarks.amber.scorer import ATTRIBUTES, GENERATIVE, QUESTIONS, START, Judged, f1_start
from mgap.benchmarks.amber.yesno import Answered, count
from mgap.types import Sample

# The published names of the dimensions, with their misspellings: as printed, and the key of the unrounded figures.
_NAMES = {
    "discriminative": ("Descriminative Task", "all"),
    "existence": ("Exsitence", "existence"),
    "attribute": ("Attribute", "attribute"),
    "attribute-state": ("State", "state"),
    "attribute-number": ("Number", "number"),
    "attribute-action": ("Action", "action"),
    "relation": ("Relation", "relation"),
}
_COUNTERS = {
    "discriminative": "",
    "attribute-state": "as_",
    "attribute-number": "an_",
    "attribute-action": "aa_",
    "relation": "asso_",
    "existence": "ha_",
}
_KINDS = {  # the dimensions that the published scorer prints for each kind of evaluation
    "g": (),
    "de": ("existence",),
    "da": ("attribute", *ATTRIBUTES),
    "dr": ("relation",),
    "d": tuple(_NAMES),
    "a": tuple(_NAMES),
}


def kind_of(samples: Iterable[Sample]) -> str:
    """g, de, da or dr for a single dimension, d for several, a for descriptions and questions."""
    groups = {sample.group for sample in samples}
    dimensions = sorted({group.partition("-")[0] for group in groups - {GENERATIVE}})
    if GENERATIVE in groups:
        return "a" if dimensions else "g"
    return f"d{dimensions[0][0]}" if len(dimensions) == 1 else "d"


def official(samples: Sequence[Sample], judged: Mapping[str, Judged]) -> dict[str, Any]:
    """`printed`, `unrounded` and `counters` for the samples' kind; with both tasks also `amber_score`."""
    kind, judgements = kind_of(samples), [judged[sample.id] for sample in samples]
    out: dict[str, Any] = {"printed": {}, "unrounded": {}, "counters": {}}
    if kind in ("a", "g"):
        out["counters"] |= _generative_counters([one for one in judgements if isinstance(one, DescribedPicture)])
        out["unrounded"] |= _generative(out["counters"])
        out["printed"]["Generative Task"] = {name: round(value, 1) for name, value in out["unrounded"].items()}
    if kind != "g":
        by_group: dict[str, list[Answered]] = {group: [] for group in QUESTIONS}
        for sample, one in zip(samples, judgements, strict=True):
            if isinstance(one, Answered):
                by_group[sample.group].append(one)
        counted = {group: count(answers) for group, answers in by_group.items()}
        out["counters"] |= _question_counters(counted)
        _add_questions(out, counted, _KINDS[kind])
    if kind == "a":
        chair, f1 = out["printed"]["Generative Task"]["CHAIR"], out["printed"]["Descriminative Task"]["F1"]
        out["amber_score"] = amber_score(chair, f1)
    return out


def amber_score(chair: float, f1: float) -> float:
    """The AMBER score from percentages: the generative CHAIR and the F1 over all questions."""
    return ((100 - chair) + f1) / 2


def per_response(samples: Sequence[Sample], judged: Mapping[str, Judged]) -> list[dict[str, Any]]:
    """The judgement of each text, in the order of the samples."""
    rows = []
    for sample in samples:
        one = judged[sample.id]
        if isinstance(one, Answered):
            judgement: dict[str, Any] = {"truth": one.truth, "verdict": one.verdict, "right": one.is_right}
        else:
            judgement = one.official()
        rows.append({"id": int(sample.id) if sample.id.isdecimal() else sample.id, **judgement})
    return rows


def _generative_counters(described: Sequence[DescribedPicture]) -> dict[str, float]:
    return {
        "chair_num": sum(len(one.kept) for one in described) + START,
        "chair_score": sum(len(one.hallucinated) for one in described),
        "safe_cover_num": sum(one.truth for one in described) + START,
        "safe_cover_score": sum(one.covered for one in described),
        "hallu_cover_num": sum(one.hallu for one in described) + START,
        "hallu_cover_score": sum(one.marked for one in described),
        "non_hallu_score": sum(one.is_right for one in described),
        "non_hallu_num": len(described) + START,
    }


def _generative(counters: Mapping[str, float]) -> dict[str, float]:
    return {
        "CHAIR": 100 * counters["chair_score"] / counters["chair_num"],
        "Cover": 100 * counters["safe_cover_score"] / counters["safe_cover_num"],
        "Hal": 100 - 100 * counters["non_hallu_score"] / counters["non_hallu_num"],
        "Cog": 100 * counters["hallu_cover_score"] / counters["hallu_cover_num"],
    }


def _question_counters(counted: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
    counters: dict[str, float] = {}
    for group, prefix in _COUNTERS.items():
        total, right, no, answered_no, answered_no_rightly = _pooled(counted, group)
        counters |= {
            f"{prefix}qa_correct_score": right,
            f"{prefix}qa_correct_num": total + START,
            f"{prefix}qa_no_score": answered_no_rightly,
            f"{prefix}qa_no_num": no + START,
            f"{prefix}qa_ans_no_score": answered_no_rightly,
            f"{prefix}qa_ans_no_num": answered_no + START,
        }
    return counters


def _pooled(counted: Mapping[str, tuple[int, ...]], group: str) -> tuple[int, ...]:
    parts = {"discriminative": QUESTIONS, "attribute": ATTRIBUTES}.get(group, (group,))
    return tuple(map(sum, zip(*(counted[part] for part in parts), strict=True)))


def _add_questions(out: dict[str, Any], counted: Mapping[str, tuple[int, ...]], groups: Iterable[str]) -> None:
    for group in groups:
        total, right, no, answered_no, answered_no_rightly = _pooled(counted, group)
        start = 3 * START if group == "attribute" else START
        title, short = _NAMES[group]
        shares = {
            "accuracy": 100 * right / (total + start),
            "precision": 100 * answered_no_rightly / (answered_no + start),
            "recall": 100 * answered_no_rightly / (no + start),
        }
        out["unrounded"][short] = shares
        rounded = {name.capitalize(): round(value, 1) for name, value in shares.items()}
        p, r = rounded["Precision"] / 100, rounded["Recall"] / 100
        out["printed"][title] = {**rounded, "F1": round(100 * 2 * p * r / (p + r + f1_start(group)), 1)}
