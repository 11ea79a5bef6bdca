"""JSON as every reader takes it: nothing that is not finite, no lone surrogate."""

import json

import pytest

from mgap.errors import NonFiniteStates
from mgap.io.strict_json import lone_surrogate, parse_json, strict_json, unwritable
from mgap.run.records import Record

NAN, INFINITE = float("nan"), float("inf")


def test_figures_that_are_not_finite_are_null_in_results():
    odd = {"a": [1.0, NAN], "b": (INFINITE, {"c": -INFINITE}), "d": "NaN"}
    assert json.loads(strict_json(odd), parse_constant=pytest.fail) == {"a": [1.0, None], "b": [None, {"c": None}], "d": "NaN"}
    assert strict_json({"a": 1.5}, indent=1) == json.dumps({"a": 1.5}, indent=1)


def test_figures_that_are_not_finite_are_refused_in_what_is_read_again():
    with pytest.raises(NonFiniteStates, match="the record of 7: it has a number that is not finite"):
        Record("7", extra={"distance": {"0": NAN}}).line()


def test_a_pair_of_surrogates_is_a_letter_and_one_alone_is_refused():
    assert parse_json('["\\ud83d\\ude00"]') == ["\U0001f600"]
    for text in ('["\\ud83d"]', b'{"\\ude00": 1}', '[[{"a": "b\\ud800c"}]]'):
        with pytest.raises(ValueError, match="lone surrogate"):
            parse_json(text)


def test_what_cannot_be_written_is_named():
    assert unwritable({"a": [1, 2.5, None, True, "\u00e9"]}) == ""
    assert unwritable([{"a": (NAN,)}]) == "nan is no finite number"
    assert unwritable({"\ud800": NAN}).startswith(r"'\ud800' is no Unicode text")
    assert lone_surrogate(NAN) == ""
