"""A lone surrogate, wherever text comes in: it is refused in a sentence, before a model reads it or a file should hold it."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.base import Benchmark
from mgap.benchmarks.own import read_own
from mgap.cli.options import parse_settings
from mgap.errors import ImageError
from mgap.io.images import open_image, picture_size
from mgap.io.prompt_files import check_prompt
from mgap.io.strict_json import is_unicode
from mgap.io.yaml_text import parse_yaml
from mgap.registry import METHODS
from mgap.run.config import Config
from mgap.run.job import Job
from mgap.run.records import Run
from mgap.types import Sample
from tests.fuzz.damage import LETTERS, Refused, cases, outcome
from tests.reports.runs import answers, questions, write_run

ANY = st.text(LETTERS, max_size=6)
ODD = (
    st.tuples(ANY, st.characters(categories=["Cs"]), ANY)
    .map("".join)
    .filter(lambda text: not is_unicode(json.loads(json.dumps(text))))  # two that make a pair are one letter in JSON
)
SAID = "lone surrogate"
OWN = {"id": "1", "image": "a.jpg", "question": "A dog?", "label": "yes", "group": "g", "more": "x"}
SAMPLE = {"id": "1", "image": "a.jpg", "prompt": "A dog?", "group": "all", "truth": "yes"}
RUN = {
    "benchmark": "own", "model": "pocket/llava", "images": "photos", "questions": "mine.jsonl", "prompt": "llava",
    "title": "t", "axis": "a", "data": "d", "revision": "main", "dataset": "coco", "scoring": {"parser": "opera"},
    "methods": [{"method": "vcd", "label": "ours"}],
}  # fmt: skip


def refused(call, *given, names="", **how):
    found = outcome(call, *given, names=names, **how)
    assert isinstance(found, Refused), found


@cases(50)
@given(st.sampled_from([*OWN, "key"]), ODD, st.booleans())
def test_own_questions(place, field, text, in_lines):
    row = {**OWN, text: "x"} if field == "key" else {**OWN, field: text}
    (place / "mine").write_text(json.dumps(row) + "\n" if in_lines else json.dumps([row]))
    refused(read_own, place / "mine", place, missing="skip", names=SAID)


@given(ODD)
def test_prompts(text):
    refused(check_prompt, text, names=SAID)


@given(ODD)
def test_yaml_and_words_of_set(text):
    written = json.dumps(text)  # its escapes are YAML's too
    for content in (written, f"{{{written}: 1}}", f"[1, [{written}]]", f"a: {text}"):
        with pytest.raises(ValueError, match=f"no YAML|{SAID}"):
            parse_yaml(content)
    refused(parse_settings, [f"prompt={written}"])
    refused(parse_settings, [f"prompt={text}"])


@cases(30)
@given(st.sampled_from([key for key in RUN if key != "methods"]), ODD)
def test_keys_of_a_run(key, text):
    refused(Config.of, {**RUN, key: {"parser": text} if key == "scoring" else text})


@cases(8)
@given(ODD)
def test_labels_and_settings_of_a_run(text):
    assert Config.of(RUN).methods
    asked = {"label": {"method": "vcd"}, "prompt": {"method": "code"}, "instruction": {"method": "icd"}}
    for field, method in asked.items():
        refused(Config.of, {**RUN, "methods": [{**method, field: text}]}, names=SAID)
    refused(Config.of, {**RUN, "methods": [{"method": "mgap", "prior": {"prompts": text}}]})


@cases(20)
@given(st.sampled_from(METHODS.names()), ODD)
def test_every_setting_of_every_method(name, text):
    method = METHODS.get(name)
    for field in method.__dataclass_fields__:
        refused(method.of, **{**dict.fromkeys(method.needed(), 1), field: text})


@cases(15)
@given(st.sampled_from(list(SAMPLE)), ODD)
def test_samples_made_in_python(place, field, text):
    mine = Benchmark("mine", "yesno", (Sample(**{**SAMPLE, field: text}),), lambda name: name)
    config = Config.of({"benchmark": "pope", "model": "pocket/llava", "methods": ["vanilla"]})
    refused(Job.prepare, config, place / "new", benchmark=mine, names=SAID)


@cases(25)
@given(ODD)
def test_paths(place, text):
    for path in (text, place / text):
        with pytest.raises(ImageError):
            open_image(path)
        assert picture_size(path) is None
    refused(read_own, place / text)
    refused(Run.load, place / text)
    refused(Config.read, text)


@cases(30)
@given(st.sampled_from(("run.json", "samples.jsonl", "answers")), ODD)
def test_files_of_a_run(place, name, text):
    folder, asked = place / "odd", questions(1)
    shutil.rmtree(folder, ignore_errors=True)
    write_run(folder, asked, {"Vanilla": answers(asked)})
    path = next((folder / "answers").rglob("*.jsonl")) if name == "answers" else folder / name
    before, odd = path.read_text(), json.dumps(text)
    path.write_text(before.replace('"yes"', odd).replace('"No."', odd).replace('"0.1.0"', odd))
    assert path.read_text() != before
    found = outcome(Run.load, folder, names=str(folder))
    if name == "answers":
        found = outcome(found.records, found.methods[0], names=str(folder))
    assert isinstance(found, Refused)
