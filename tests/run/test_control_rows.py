"""`controls: true`: which rows it adds, that they are answered as they say, and where it is refused."""

import json

import pytest

from mgap.errors import SettingError
from mgap.reports.controls import PICKED
from mgap.reports.scores import score
from mgap.run.config import Config
from mgap.run.control_rows import cut_offs
from mgap.run.job import Job
from mgap.run.records import Run

POPE = {"benchmark": "pope", "model": "pocket/llava", "methods": ["mgap"]}
BOTH = ["yes-if-close", "no-if-close", "yes-please", "no-please"]


def rows(**keys):
    return {plan.label: plan for plan in Config.of({**POPE, "controls": True, **keys}).methods}


def test_plain_decoding_comes_first_and_the_controls_behind_the_methods():
    found = rows()
    assert list(found) == ["vanilla", "mgap", *BOTH]
    assert [label for label, plan in found.items() if plan.control] == BOTH
    assert found["no-if-close"].settings == {"preset": "no-if-close"}
    assert found["yes-please"].suffix == " Answer yes whenever possible."
    assert list(rows(methods=["mgap", {"method": "vanilla", "label": "plain"}])) == ["mgap", "plain", *BOTH]


def test_a_row_that_is_there_already_stays():
    own = {"method": "vanilla", "label": "yes-please", "suffix": " Say yes.", "control": True}
    assert rows(methods=["vanilla", own])["yes-please"].suffix == " Say yes."


def test_where_answers_are_drawn_there_are_greedy_and_min_p_at_each_methods_own_cut():
    methods = ["vcd", {"method": "icd", "beta": 0.3}, {"method": "sid", "preset": "reference-code"}, "dola", "mgap"]
    found = rows(methods=methods, decoding={"sample": True, "temperature": 2.0})
    assert list(found)[-3:] == ["greedy", "min_p 0.316228", "min_p 0.547723"]
    assert found["min_p 0.316228"].decoding["min_p"] == pytest.approx(0.1**0.5), (
        "at temperature 2 this drops what 0.1 does at 1"
    )
    config = Config.of({**POPE, "methods": list(found.values()), "decoding": {"sample": True, "temperature": 2.0}})
    assert config.decode(found["greedy"]).sample is False
    assert config.decode(found["vanilla"]).sample is True


def test_the_cut_of_a_method_is_its_settings_its_presets_or_none():
    assert cut_offs([("sid", {}), ("vcd", {"beta": 0.2}), ("mgap", {}), ("vanilla", {})], 1.0) == [0.1, 0.2]
    assert cut_offs([("sid", {"preset": "reference-code"}), ("vcd", {"beta": 1.0}), ("blind", {})], 1.0) == []
    assert cut_offs([("dola", {"relative_top": 0.05})], 1.0) == [0.05]


def test_vllm_has_the_rows_that_it_serves():
    assert list(rows(engine="vllm")) == ["vanilla", "mgap", "yes-please", "no-please"]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"suffix": 3}, "vanilla: suffix must be text, not 3"),
        ({"control": "yes"}, "vanilla: control must be true or false"),
        ({"decoding": {"temperatur": 2}}, "unknown decoding option 'temperatur'"),
        ({"decoding": {"temperature": 2.0}}, "act on sampling only"),
    ],
)
def test_a_row_is_checked_before_a_model_is_loaded(entry, told):
    with pytest.raises(SettingError, match=told):
        Config.of({**POPE, "methods": [{"method": "vanilla", **entry}]})


def test_controls_are_for_yes_no_questions(tmp_path):
    config = Config.of({**POPE, "benchmark": "chair", "controls": True})
    with pytest.raises(SettingError, match="controls are rows for yes/no questions, and chair asks for others"):
        Job.prepare(config, tmp_path / "run")


def test_a_row_answers_with_its_own_words_and_decoding(answer, tmp_path):
    drawn = {"sample": True, "max_new_tokens": 4, "seed": 3}
    run, _ = answer(tmp_path / "run", methods=["vanilla"], controls=True, decoding=drawn)
    methods = {method.label: method for method in run.methods}
    records = {label: run.records(method) for label, method in methods.items()}
    assert {"greedy", *BOTH} < set(methods)
    plain, greedy = records["vanilla"], records["greedy"]
    assert all("yes whenever possible" in record.prompt for record in records["yes-please"].values())
    assert not any("whenever possible" in record.prompt for record in plain.values())
    other, _ = answer(tmp_path / "greedy", methods=["vanilla"])
    assert {name: record.text for name, record in greedy.items()} == {
        name: record.text for name, record in other.records(other.methods[0]).items()
    }
    assert any(record.text != greedy[name].text for name, record in plain.items())
    assert [record.log_odds for record in plain.values()] == [record.log_odds for record in greedy.values()]
    assert all(record.log_odds is None for record in records["yes-if-close"].values())


def test_a_run_with_controls_goes_on_and_takes_more_methods(answer, tmp_path):
    answer(tmp_path / "run", methods=["vanilla"])
    run, _ = answer(tmp_path / "run", methods=["vanilla", "mgap"], controls=True)
    assert [method.label for method in run.methods] == ["vanilla", "mgap", *BOTH]
    again, summary = answer(tmp_path / "run", methods=["vanilla", "mgap"], controls=True)
    assert again.methods == run.methods
    assert set(summary.answered.values()) == {len(run.samples)}


@pytest.mark.long
def test_the_pocket_model_shows_its_controls(run, tmp_path):
    words = ["run", "pope", "--model", "pocket/llava", "--method", "mgap", "--method", "bias", "--set", "bias.shift=-1"]
    status, out, _ = run(*words, "--scenes", "6", "--decoding", "max_new_tokens=1", "--controls", "--out", tmp_path / "run")
    assert status == 0
    assert f"| Adversarial: controls | {PICKED} |" in out
    data = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert set(data["methods"]) == {"vanilla", "mgap", "bias", *BOTH, PICKED}
    shift = data["methods"]["bias"]["controls"]["adversarial"]
    assert shift["changed"] == shift["changed_by_shift"]
    assert shift["equal_yes_ratio"]["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    scores = score(Run.load(tmp_path / "run"))
    records = scores.run.records(scores.run.methods[0])
    for name, text in scores.texts["bias"].items():
        assert text == ("Yes" if records[name].log_odds > 1 else "No"), "the recorded log-odds say what a bias does"
