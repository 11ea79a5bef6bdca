"""Parse YAML from users: plain values only, and no aliases that expand without limit."""

from __future__ import annotations

from typing import Any

import yaml

from mgap.io.strict_json import lone_surrogate

MAX_VALUES = 100_000  # with aliases expanded: a few lines of YAML can stand for more than fits in memory


def parse_yaml(text: str) -> Any:
    """Parse a text; raises a ValueError that says what is wrong with it."""
    try:
        parsed = yaml.safe_load(text)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # YAMLError is safe_load's own; the others come from a tag that does not fit its value
        raise ValueError(f"no YAML: {' '.join(str(error).split())[:300]}") from None
    pending, count = [parsed], 0
    while pending:
        value = pending.pop()
        count += 1
        if count > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values, or one that holds itself")
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | set | tuple):
            pending.extend(value)
    if why := lone_surrogate(parsed):
        raise ValueError(why)
    return parsed
