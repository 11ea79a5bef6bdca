"""Which tests are `make test`, and which are left to `make test-all`.

Most tests run on both tiny families, and many go through all methods and all modes of decoding. `make test` has every method on
the first family, one method of each kind on both, every mode with one method of each kind, and every refusal. What is left, the
rest of the product of methods, modes and families, is marked `product` here, when tests are collected.

`@pytest.mark.both_families` keeps a test, or with `pytestmark` a file, on both families: where the family is what is tested.
`@pytest.mark.each_kind` leaves all but one method of each kind to the rest: where what a kind has in common is tested.
`@pytest.mark.one_family` has a test, or one of its cases, on the first family alone: where the family has no part in it.
"""

import pytest

from mgap.registry import METHODS
from mgap.types import Mode

TINY = FIRST, SECOND = "llava", "qwen3-vl"  # TINY_FAMILIES of mgap.pocket.tiny, which imports torch
NAMES = frozenset(METHODS.names())
ONE_OF_A_KIND = {"head": "mgap", "branch": "vcd", "layers": "deco", "attention": "pai", "search": "opera"}  # by seam


def is_in_the_rest(item) -> bool:
    """Whether a test is left to `make test-all`."""
    params = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
    names = {value for value in params if isinstance(value, str)}
    method = next(iter(names & NAMES), None)
    stands_for_its_kind = method in ONE_OF_A_KIND.values()
    is_second = bool(names & {SECOND, f"pocket/{SECOND}"})
    if is_second and not (stands_for_its_kind or item.get_closest_marker("both_families")):
        return True
    if method is None or (stands_for_its_kind and not is_second):
        return False
    if item.get_closest_marker("each_kind"):
        return True
    modes = [value for value in params if isinstance(value, Mode) and value is not Mode.GREEDY]
    return any(is_second or mode in METHODS.get(method).modes for mode in modes)


def is_left_out(item) -> bool:
    """Whether a test is for the first family alone, and this is the second."""
    names = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return item.get_closest_marker("one_family") is not None and not {SECOND, f"pocket/{SECOND}"}.isdisjoint(
        name for name in names if isinstance(name, str)
    )


def mark_the_rest(items) -> None:
    for item in items:
        if is_in_the_rest(item):
            item.add_marker(pytest.mark.product)
