"""From a run's folder to its scores: the same samples for every method, what is left out, and against what it is compared."""

import json

import pytest

from mgap.errors import RunError, SettingError
from mgap.reports.scores import Ties, score
from mgap.run.records import Record, Run
from tests.reports.runs import answers, questions, write_run

SAMPLES = questions()


def scored(folder, answered, samples=SAMPLES, *, plan=None, **options):
    return score(Run.load(write_run(folder, samples, answered, **plan or {})), **options)


def test_figures_are_those_of_the_answers(tmp_path):
    wrong = ["random/1", "random/3", "adversarial/0"]
    scores = scored(tmp_path / "run", {"Vanilla": answers(SAMPLES, wrong), "Ours": answers(SAMPLES)})
    plain, ours = scores.results["Vanilla"], scores.results["Ours"]
    assert plain.groups["random"].rates["accuracy"].value == pytest.approx(10 / 12)
    assert plain.groups["random"].rates["precision"].value == pytest.approx(6 / 8)
    assert plain.groups["random"].counts == {"TP": 6, "FP": 2, "TN": 4, "FN": 0}
    assert plain.groups["adversarial"].rates["recall"].value == pytest.approx(5 / 6)
    assert ours.groups["random"].rates["f1"].value == 1.0
    assert (scores.scored, scores.baseline, plain.groups["random"].against) == (24, "Vanilla", None)
    against = ours.groups["random"].against
    assert (against.gained, against.lost) == (2, 0)
    assert against.differences["accuracy"].value == pytest.approx(2 / 12)
    assert scores.figures["accuracy"].better == "higher"


def test_a_sample_that_one_method_lacks_is_left_out_of_all_and_counted(tmp_path):
    failed = Record("random/1", failed="OutOfMemoryError: too large")
    scores = scored(
        tmp_path / "run",
        {"Vanilla": answers(SAMPLES, ["random/3"], **{"random/1": failed}), "Ours": answers(SAMPLES, **{"random/3": None})},
    )
    assert scores.scored == 22
    assert all(result.groups["random"].samples == 10 for result in scores.results.values())
    assert scores.results["Vanilla"].groups["random"].rates["accuracy"].value == 1.0, "its wrong answer is not compared"
    assert (scores.results["Vanilla"].coverage.failed, scores.results["Ours"].coverage.missing) == (1, 1)
    assert scores.results["Vanilla"].coverage.error == "OutOfMemoryError: too large"
    assert "22 of 24 samples are scored: the others are missing or failed under some method" in scores.warnings


def test_a_method_without_answers_is_left_out_and_named(tmp_path):
    scores = scored(tmp_path / "run", {"Vanilla": answers(SAMPLES), "Ours": []})
    assert scores.scored == 24
    assert scores.results["Ours"].groups == {}
    assert "without a single answer, and left out: Ours" in scores.warnings


def test_a_run_without_common_answers_is_refused_with_its_first_failure(tmp_path):
    failed = {sample.id: Record(sample.id, failed="ImageError: broken") for sample in SAMPLES}
    with pytest.raises(RunError, match=r"no sample was answered.*Vanilla 0 \(first failure: ImageError: broken\)"):
        scored(tmp_path / "one", {"Vanilla": answers(SAMPLES, **failed)})
    half = {sample.id: None for sample in SAMPLES[:12]}
    rest = {sample.id: None for sample in SAMPLES[12:]}
    with pytest.raises(RunError, match="Vanilla 12, Ours 12"):
        scored(tmp_path / "two", {"Vanilla": answers(SAMPLES, **half), "Ours": answers(SAMPLES, **rest)})


def test_the_baseline_is_plain_decoding_or_the_first_or_as_asked(tmp_path):
    everything = {"Ours": answers(SAMPLES), "Vanilla": answers(SAMPLES), "Other": answers(SAMPLES)}
    assert scored(tmp_path / "a", everything).baseline == "Vanilla"
    assert scored(tmp_path / "b", {"Ours": answers(SAMPLES), "Other": answers(SAMPLES)}).baseline == "Ours"
    scores = scored(tmp_path / "c", everything, against="Other")
    assert scores.results["Other"].groups["random"].against is None
    assert scores.results["Vanilla"].groups["random"].against is not None
    with pytest.raises(SettingError, match=r"'Mine': compare against one of Ours, Vanilla, Other"):
        scored(tmp_path / "d", everything, against="Mine")


def test_the_scorer_has_the_runs_settings_unless_others_are_given(tmp_path):
    special = {"random/1": Record("random/1", "There is nobody to ask.")}
    folder = write_run(tmp_path / "run", SAMPLES, {"Vanilla": answers(SAMPLES, **special)}, scoring={"parser": "vcd"})
    run = Run.load(folder)
    assert score(run).scorer == {"task": "yesno", "parser": "vcd"}
    assert score(run).results["Vanilla"].groups["random"].rates["accuracy"].value == 1.0, "it reads the no in nobody"
    scores = score(run, parser="first-sentence")
    assert scores.scorer["parser"] == "first-sentence"
    assert scores.results["Vanilla"].groups["random"].unparsed == 1
    with pytest.raises(SettingError, match="language"):
        score(run, language="nltk")


def test_times_are_summed_over_what_is_scored(tmp_path):
    scores = scored(tmp_path / "run", {"Vanilla": answers(SAMPLES, seconds=0.5), "Ours": answers(SAMPLES, seconds=1.25)})
    plain, ours = scores.results["Vanilla"].effort, scores.results["Ours"].effort
    assert (plain.total, plain.seconds.value, plain.tokens) == (12.0, 0.5, 2.0)
    assert ours.seconds.value / plain.seconds.value == 2.5


def test_answers_with_ties_are_counted_by_group_among_those_that_were_counted(tmp_path):
    old = {"adversarial/1": Record("adversarial/1", "No."), "adversarial/3": Record("adversarial/3", "No.")}
    found = {
        "Vanilla": answers(SAMPLES, tied=["random/1", "random/2", "adversarial/0"], **old),
        "Ours": answers(SAMPLES, tied=[], **{"random/2": None}),
        "Older": answers(SAMPLES),
    }
    scores = scored(tmp_path / "run", found)
    groups = scores.results["Vanilla"].groups
    assert (groups["random"].ties, groups["adversarial"].ties) == (Ties(1, 11), Ties(1, 10)), "what is not scored is left out"
    assert scores.results["Ours"].groups["random"].ties == Ties(0, 11)
    assert scores.results["Older"].groups["random"].ties is None
    methods = json.loads(json.dumps(scores.to_json()))["methods"]
    assert methods["Vanilla"]["groups"]["random"]["ties"] == {"answers": 1, "counted": 11}
    assert methods["Older"]["groups"]["random"]["ties"] is None


def test_recall_that_differs_between_splits_is_a_warning_unless_answers_were_drawn(tmp_path):
    found = {"Vanilla": answers(SAMPLES, ["adversarial/0"])}
    (warning,) = scored(tmp_path / "a", found).warnings
    assert warning.startswith("Vanilla: recall differs")
    assert scored(tmp_path / "b", found, plan={"decoding": {"sample": True}}).warnings == ()


def test_departures_are_counted_by_strength(tmp_path):
    samples = questions(groups=("random",))

    def distances(far, strengths=("0", "0.5", "1")):
        return [
            Record(s.id, extra={"distance": {k: 2.0 if n < far * float(k) else 1.0 for k in strengths}}, milliseconds=1)
            for n, s in enumerate(samples)
        ]

    answered = {"Vanilla": distances(0, ("0",)), "VCD": distances(8)}
    scores = scored(tmp_path / "run", answered, samples, plan={"departure": {"tau": 1.5, "k": 10, "delta": 0.05}})
    rates = scores.results["VCD"].groups["states"].rates
    assert {name: (rate.value, rate.of) for name, rate in rates.items()} == {
        "0": (0, 12),
        "0.5": (4 / 12, 12),
        "1": (8 / 12, 12),
    }
    assert set(scores.results["Vanilla"].groups["states"].rates) == {"0"}
    assert scores.scorer == {"tau": 1.5, "k": 10, "delta": 0.05}
    with pytest.raises(SettingError, match="holds distances, not answers: parser"):
        score(scores.run, parser="vcd")


def test_scores_are_plain_json(tmp_path):
    scores = scored(tmp_path / "run", {"Vanilla": answers(SAMPLES, ["random/1"]), "Ours": answers(SAMPLES)})
    data = json.loads(json.dumps(scores.to_json()))
    assert data["samples"] == {"asked": 24, "scored": 24}
    assert data["methods"]["Ours"]["arm"]["settings"] == {"alpha": 0.75}
    part = data["methods"]["Ours"]["groups"]["random"]
    assert part["rates"]["accuracy"]["value"] == 1.0
    assert part["against"]["gained"] == 1
    assert data["figures"]["yes_ratio"] == {"percent": True, "better": "", "over": "pictures"}
    assert data["scorer"]["parser"] == "first-sentence"
