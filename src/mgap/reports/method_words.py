"""A row of a run in words: its method, the settings that it worked with, and what it had learnt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mgap.io.strict_json import strict_json
from mgap.run.method_plans import VANILLA
from mgap.run.records import Run, RunMethod


def method_in_words(run: Run, row: RunMethod) -> str:
    """Its method with every setting, given ones first; runs of earlier versions tell only those that were given."""
    learnt = _told(run.plan, "learnt", row.label)
    settings = {**row.settings, **{k: v for k, v in _told(run.plan, "settings", row.label).items() if k not in row.settings}}
    text = "plain decoding" if row.method == VANILLA else row.method
    text += f" with {in_words(settings)}" if settings else ""
    text += f"; prior: {in_words(row.prior)}" if row.prior and "prior" not in learnt else ""
    text += f'; behind every question: "{row.suffix.strip()}"' if row.suffix else ""
    text += f"; decoding {in_words(row.decoding)}" if row.decoding else ""
    return text + "".join(f"; {setting.replace('_', ' ')}: {_value(about)}" for setting, about in learnt.items())


def given_in_words(row: RunMethod) -> str:
    """The settings that its row of the run names, behind its label in a sentence; "" if it names none."""
    return f" ({in_words(row.settings)})" if row.settings else ""


def in_words(values: Mapping[str, Any]) -> str:
    """Names and values in one line; empty values are left out."""
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items() if value not in (None, "", {}, []))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({in_words(value)})"
    return value if isinstance(value, str) else strict_json(value, ensure_ascii=False)


def _told(plan: Mapping[str, Any], key: str, label: str) -> Mapping[str, Any]:
    """What run.json tells of a row under this key; a run of an earlier version tells nothing."""
    found = plan.get(key)
    found = found.get(label) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
