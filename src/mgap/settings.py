"""Validate settings: each check returns the value, or raises an error that says what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Collection

from mgap.errors import SettingError, did_you_mean

LARGEST = 3.4028234e38  # of float32, which methods compute in


def check_strength(name: str, value: float) -> float:
    """A non-negative number that float32 can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise SettingError(f"{name}={value!r:.40} must be a finite number of at least 0 and at most {LARGEST:.3g}")
    return float(value)


def check_signed(name: str, value: float) -> float:
    """A number of either sign that float32 can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise SettingError(f"{name}={value!r:.40} must be a finite number from -{LARGEST:.3g} to {LARGEST:.3g}")
    return float(value)


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """One of the given words."""
    if not isinstance(value, str) or value not in choices:
        raise SettingError(f"{name}={value!r}: choose from {', '.join(choices)}{did_you_mean(value, choices)}")
    return value


def check_switch(name: str, value: bool | None) -> bool:
    """True or False; no other truthy or falsy value."""
    if not isinstance(value, bool):
        raise SettingError(f"{name}={value!r} must be true or false")
    return value


def check_share(name: str, value: float) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SettingError(f"{name}={value!r} must be a number from 0 to 1")
    return float(value)


def check_count(name: str, value: int | None, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name}={value!r} must be a whole number of at least {least}")
    return value
