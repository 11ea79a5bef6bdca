"""The rows that `controls: true` adds to a run of yes/no questions (docs/controls.md).

They do what a method may do without looking at the picture: lean to yes or to no, and draw from fewer tokens. What a constant
would have answered needs no row: scores read it from plain decoding's log-odds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mgap.benchmarks.pope.questions import PLEASE
from mgap.registry import METHODS
from mgap.run.method_plans import VANILLA, MethodPlan
from mgap.types import Decoding

GREEDY = {"sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def with_controls(plans: Sequence[MethodPlan], decoding: Decoding, engine: str) -> list[MethodPlan]:
    """Plain decoding first, where no row has it, and the controls behind the methods; those that are there already stay."""
    has_plain = any(plan.method == VANILLA and not (plan.control or plan.suffix or plan.decoding) for plan in plans)
    first = [] if has_plain else [MethodPlan.of(VANILLA)]
    taken = {plan.label for plan in plans}
    return [*first, *plans, *(plan for plan in _controls(plans, decoding, engine) if plan.label not in taken)]


def _controls(plans: Sequence[MethodPlan], decoding: Decoding, engine: str) -> Iterable[MethodPlan]:
    if engine == "transformers":  # others shift logits by constants alone
        for name in ("yes-if-close", "no-if-close"):
            yield _control(name, "yes-if-close", settings={"preset": name})
    for name, suffix in PLEASE.items():
        yield _control(name, VANILLA, suffix=suffix)
    if decoding.sample:
        yield _control("greedy", VANILLA, decoding=GREEDY)
        for min_p in cut_offs([(plan.method, plan.settings) for plan in plans], decoding.temperature):
            yield _control(f"min_p {min_p:g}", VANILLA, decoding={"min_p": min_p})


def _control(label: str, method: str, **row: Any) -> MethodPlan:
    return MethodPlan(label, method, control=True, **row)


def cut_offs(methods: Iterable[tuple[str, Mapping[str, Any]]], temperature: float) -> list[float]:
    """The min_p that drop the same tokens of plain decoding as the methods' own cut-offs do, ascending; settings by method.

    A method cuts before the temperature, sampling after it: the power makes up for that.
    """
    cuts = {METHODS.get(name).cut_off(settings) for name, settings in methods if name != VANILLA}
    return sorted(cut ** (1 / temperature) for cut in cuts if 0 < cut < 1)
