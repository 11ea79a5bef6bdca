"""Settings as users give them, in YAML, on the command line, to an engine, by a harness: any value is one, or refused."""

import json
from types import SimpleNamespace

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from mgap.cli.options import parse_settings
from mgap.cli.tune import _grid
from mgap.integrations.harness_requests import Request, pictures_of
from mgap.registry import EXPERIMENTS, METHODS
from mgap.reports.published_figures import PublishedFigures
from mgap.run.config import Config
from mgap.serving.engine_settings import Serving, own_alpha
from mgap.serving.launch import has_flag, read_flags
from mgap.serving.sampling import refuse_decoding, sampling_fields
from mgap.types import Decoding
from tests.fuzz.damage import (
    ODD_NUMBERS,
    ODD_TEXTS,
    TEXTS,
    VALUES,
    Refused,
    byte_files,
    cases,
    damaged_value,
    json_files,
    outcome,
)
from tests.methods.builders import NEEDED
from tests.reports.runs import PUBLISHED

RUN = {
    "benchmark": "pope", "model": "pocket/llava", "splits": ["random"], "scenes": 3, "batch_size": 4, "axis": "alpha",
    "methods": ["vanilla", {"method": "mgap", "label": "ours", "alpha": 0.5, "x": 0.5, "prior": {"rank": 3}}, "vcd"],
    "decoding": {"max_new_tokens": 4, "sample": False, "seed": 3}, "scoring": {"parser": "opera"}, "workers": 0,
    "difficulty": {"noise": 0.1, "cut": 0.25}, "pocket": {"mgap": {"alpha": 1.0}}, "published": PUBLISHED,
}  # fmt: skip
FAR = {
    "benchmark": "departure", "model": "pocket/llava", "methods": ["vanilla"], "scenes": 3,
    "departure": {"along": "first", "k": 5, "delta": 0.05, "metric": "euclidean", "strengths": [0, 1]},
}  # fmt: skip
SERVED = {**RUN, "engine": "vllm", "engine_options": {"tensor_parallel_size": 2}, "methods": ["vanilla", "mgap"]}
YAML = yaml.safe_dump(RUN, sort_keys=False).encode()
LAUGHS = b"a0: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d, *a%d]\n" % (n, n, n - 1, n - 1, n - 1) for n in range(1, 40))
ODD_YAML = ("2001-99-99", "0b_", "1" * 5000, "!!python/object:os.system x", "&a [*a]", "{", "- " * 3000, "\t", "? [1]\n: 2",
            "~", "!!binary x", "!!timestamp y", "1:60:60", "0x", "=", "<<: 1", "!!set {a}", "\ud800", "%YAML 9")  # fmt: skip
REQUESTED = {
    "until": ["\n"],
    "do_sample": True,
    "temperature": 0.5,
    "max_new_tokens": 16,
    "top_p": 0.9,
    "num_beams": 1,
    "top_k": 5,
    "min_p": 0.1,
}


@given(st.sampled_from((RUN, FAR, SERVED)).flatmap(damaged_value).filter(lambda value: isinstance(value, dict)))
@example({**RUN, "batch_size": None})
@example({**RUN, "methods": [{"method": "mgap", "label": []}]})
def test_a_runs_keys(keys):
    found = outcome(Config.of, keys)
    if not isinstance(found, Refused):
        assert found.methods
        assert isinstance(found.decode(), Decoding)
        outcome(lambda: PublishedFigures.of_json(found.published) if found.published else None)
        json.dumps(found.to_json(), default=str, ensure_ascii=False, allow_nan=False).encode()


@cases(15)
@given(st.one_of(byte_files(YAML), st.sampled_from(ODD_YAML).map(lambda text: text.encode("utf-8", "surrogatepass"))))
@example(b"benchmark: 2001-99-99")
@example(LAUGHS)
def test_a_runs_file(place, data):
    (place / "run.yaml").write_bytes(data)
    found = outcome(Config.read, str(place / "run.yaml"))
    if not isinstance(found, Refused):
        again = outcome(Config.read, str(place / "run.yaml"))
        assert repr(again) == repr(found)


@cases(8)
@given(st.sampled_from(sorted(EXPERIMENTS)), st.data())
def test_an_experiments_file(place, name, data):
    (place / "experiment.yaml").write_bytes(data.draw(byte_files(EXPERIMENTS[name].read_bytes())))
    found = outcome(Config.read, str(place / "experiment.yaml"), model="pocket/llava")
    assert isinstance(found, Refused) or found.methods


@given(st.sampled_from([text for text in ODD_TEXTS if "\n" not in text]))
def test_a_name_that_is_no_file_of_a_run(name):
    assert isinstance(outcome(Config.read, name), Refused)


def test_every_setting_of_every_method_with_every_odd_value():
    for name in METHODS.names():
        method = METHODS.get(name)
        needed = {**dict.fromkeys(method.needed(), 1), **NEEDED.get(name, {})}
        for field in method.__dataclass_fields__:
            for value in (*ODD_NUMBERS, *ODD_TEXTS, None, True, [], ["x"], [1], [None], {}, {"a": []}):
                found = outcome(method.of, **{**needed, field: value})
                assert isinstance(found, Refused) or found.name == name


@cases(20)
@given(st.sampled_from(METHODS.names()), st.data())
def test_settings_of_a_method(name, data):
    fields = list(METHODS.get(name).__dataclass_fields__)
    given = data.draw(st.dictionaries(st.sampled_from([*fields, "other"]), VALUES, max_size=3))
    found = outcome(METHODS.get(name).of, **given)
    assert isinstance(found, Refused) or found.name == name


@cases(20)
@given(st.lists(st.one_of(st.tuples(TEXTS, st.sampled_from(ODD_YAML) | TEXTS).map("=".join), TEXTS), max_size=3))
@example(["alpha=2001-99-99"])
@example(["alpha=" + "[" * 3000])
def test_words_of_set(words):
    found = outcome(parse_settings, words)
    assert isinstance(found, Refused) or all("=" in word for word in words)


NUMBERS = st.sampled_from(("0", "1", "0.5", "-1", "nan", "inf", "1e999", "1e-300", "", "x", "10", "true"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("alpha", "lam", "rank", "gate", "")), st.sampled_from((",", ":")), st.lists(NUMBERS, max_size=4)
        ),
        max_size=2,
    )
)
@example([("alpha", ":", ["0", "1e9", "1e-9"])])
@example([("alpha", ":", ["0", "8", "1e-300"])])
@example([("rank", ",", ["inf"])])
def test_words_of_grid(words):
    found = outcome(_grid, [f"{name}={mark.join(numbers)}" for name, mark, numbers in words])
    assert isinstance(found, Refused) or found.points()


@given(st.dictionaries(st.sampled_from(list(Decoding.__dataclass_fields__)), VALUES, max_size=3))
@example({"temperature": 10**400, "sample": True})
@example({"top_k": 1.5, "sample": True})
def test_decoding_options(given):
    found = outcome(Decoding.of, **given)
    if not isinstance(found, Refused):
        outcome(found.modes, rows=2)
        outcome(refuse_decoding, found)
        json.dumps(sampling_fields(found, {2}, "sample"))


@given(st.one_of(VALUES, damaged_value({"prior": "none/such", "alpha": 0.5, "rank": 2, "gate": True, "log_every": 5})))
@example({"prior": "p", "log_every": 10**400})
def test_additional_config(given):
    found = outcome(Serving.of, given)
    if not isinstance(found, Refused):
        assert found.log_every >= 0
        json.dumps(dict(found.settings))
    outcome(Serving.of_engine, SimpleNamespace(additional_config=given))


@given(st.one_of(st.none(), st.dictionaries(st.sampled_from(("mgap_alpha", "mgap_", "mgap_x", "other", "")), VALUES)))
@example({"mgap_alpha": 10**400})
def test_vllm_xargs(extra):
    found = outcome(own_alpha, extra)
    assert found is None or isinstance(found, Refused) or found >= 0


FLAGS = (
    "--additional-config",
    "--additional_config={}",
    "--additional-config.a",
    "--port",
    "--config",
    "-x",
    "--limit-mm-per-prompt",
)


@given(
    st.lists(
        st.one_of(st.sampled_from(FLAGS), TEXTS, json_files({"a": 1}).map(lambda data: data.decode("utf-8", "replace"))),
        max_size=5,
    )
)
@example(["--additional-config", "[" * 5000])
def test_flags_of_vllm(words):
    found = outcome(read_flags, words)
    if not isinstance(found, Refused):
        assert "mgap" not in found[0]
        assert not has_flag(found[1], "--additional-config")


@given(damaged_value(REQUESTED), st.text(max_size=20))
@example({"temperature": "warm"}, "")
@example({"max_new_tokens": float("inf")}, "")
@example({"until": 5}, "")
def test_what_a_harness_asks_for(options, text):
    if not isinstance(options, dict):
        return
    found = outcome(Request.of, options)
    if not isinstance(found, Refused):
        assert hash(found) == hash(Request.of(options))
        assert text.startswith(found.cut(text))


@given(VALUES)
def test_what_a_harness_shows(visuals):
    found = outcome(pictures_of, visuals, "the task")
    assert isinstance(found, Refused) or found == []


@given(damaged_value(PUBLISHED))
def test_a_printed_table(data):
    found = outcome(PublishedFigures.of_json, data)
    if not isinstance(found, Refused):
        assert found.digits >= 0
        outcome(found.beside, "llava")
