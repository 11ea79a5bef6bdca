"""Which engine decodes with which method: the tables say what the code does."""

import re

import pytest

from mgap.errors import MgapError, UnsupportedDecoding
from mgap.integrations.engine_support import ENGINES, TRANSFORMERS, VLLM, why_refused
from mgap.integrations.engine_tables import engine_tables
from mgap.registry import METHODS
from mgap.serving.sampling import refuse_decoding
from mgap.serving.servable import refuse_method
from mgap.types import Decoding, Mode

VLLM_DECODING = {  # that engine's own refusals, by the mode that a decoding is in
    Mode.GREEDY: {},
    Mode.SAMPLE: {"sample": True},
    Mode.BEAM: {"num_beams": 2},
    Mode.SEQUENCES: {"sample": True, "num_return_sequences": 2},
    Mode.STATIC: {"static_cache": True},
}


def test_every_engine_says_something_of_every_mode():
    for engine in ENGINES:
        assert set(engine.modes) == set(Mode)
        assert all(support.remark for support in engine.modes.values() if not support.is_done), engine.name


@pytest.mark.parametrize("name", METHODS.names())
def test_a_mode_that_a_method_refuses_has_a_reason_and_no_other_has(name):
    method = METHODS.get(name)
    assert {mode for mode in Mode if why_refused(method, mode)} == set(Mode) - method.modes


def test_what_vllm_is_said_to_decode_with_is_what_a_run_accepts():
    for name in METHODS.names():
        if name in VLLM.methods():
            refuse_method(name)
        else:
            with pytest.raises(MgapError, match=re.escape(VLLM.why_not(METHODS.get(name)))):
                refuse_method(name)


@pytest.mark.parametrize("mode", VLLM_DECODING)
def test_what_vllm_is_said_to_do_with_a_mode_is_what_a_run_does(mode):
    decoding = Decoding.of(**VLLM_DECODING[mode])
    if VLLM.modes[mode].is_done:
        refuse_decoding(decoding)
    else:
        with pytest.raises(UnsupportedDecoding):
            refuse_decoding(decoding)


def test_the_tables_have_every_engine_every_method_and_every_mode():
    text = engine_tables()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    firsts = {row[0] for row in rows}
    assert {f"[{engine.name}]({engine.page})" for engine in ENGINES} | set(METHODS.names()) | {m.value for m in Mode} <= firsts
    for name in METHODS.names():
        (row,) = [row for row in rows if row[0] == name]
        assert [cell == "yes" for cell in row[3 : 3 + len(Mode)]] == [mode in METHODS.get(name).modes for mode in Mode]


def test_pages_of_the_engines_exist_and_are_in_the_listing(run):
    from pathlib import Path

    docs = Path(__file__).parents[2] / "docs"
    assert not [engine.page for engine in ENGINES if not (docs / engine.page).is_file()]
    status, out, _ = run("ls", "engines")
    assert status == 0
    for engine in ENGINES:
        assert re.search(rf"^{engine.name} ", out, re.MULTILINE)
    assert "methods: all" in out
    assert TRANSFORMERS.methods() == METHODS.names()
