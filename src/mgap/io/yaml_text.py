"""YAML as users write it: plain values, of a size that aliases do not blow up."""

from __future__ import annotations

from typing import Any

import yaml

MOST = 100_000  # values, aliases followed: one of a few lines can stand for more than any memory holds


def parse_yaml(text: str) -> Any:
    """What a text holds; raises a ValueError that says why it holds nothing."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # safe_load's own errors and, of a tag on a value that it does not fit, any of the others
        raise ValueError(f"no YAML: {' '.join(str(error).split())[:300]}") from None
    pending, count = [found], 0
    while pending:
        each = pending.pop()
        count += 1
        if count > MOST:
            raise ValueError(f"more than {MOST:,} values, or one that holds itself")
        if isinstance(each, dict):
            pending.extend(each.values())
        elif isinstance(each, list | set | tuple):
            pending.extend(each)
    return found
