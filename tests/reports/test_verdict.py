"""The verdict on top of a report: what it calls best, a tie, identical, noise, or no better than a control."""

import pytest

from mgap.reports.report import report_files
from mgap.reports.scores import score
from mgap.reports.verdict import FEW, verdicts
from mgap.run.records import Record, Run, RunMethod
from mgap.types import Sample
from tests.pages.test_table_formats import check_latex
from tests.reports.html import check_page
from tests.reports.runs import answers, questions, write_run

SAMPLES = questions(pictures=40)  # 40 pictures in each of two groups
YES = {s.id for s in SAMPLES if s.truth == "yes"}
CAPTIONS = [Sample(str(n), f"{n}.png", "Describe it.", "captions", ["dog", "cat"]) for n in range(40)]
DOGS = "There is a dog."  # half of what is there
BOTH = "There is a dog and a cat."
WRONG = "There is a dog and a cat and a bus."


def wrong_in(group, *pictures):
    """The ids of one group's questions about these pictures."""
    return [sample.id for sample in SAMPLES if sample.group == group and sample.image in {f"{n}.png" for n in pictures}]


def told(folder, answered, *methods, samples=SAMPLES, how=None, **plan):
    run = Run.load(write_run(folder, samples, answered, *methods, **plan))
    (verdict,) = verdicts([score(run, **(how or {}))])
    return verdict


def about(verdict, group):
    return next(text for of, text in verdict.sentences if of == group)


def whole(verdict):
    return " ".join(text for _, text in verdict.sentences)


def test_a_clear_winner_is_called_best_and_its_lead_has_an_interval(tmp_path):
    often = wrong_in("adversarial", *range(0, 40, 2))
    verdict = told(tmp_path / "run", {"Vanilla": answers(SAMPLES, often), "Ours": answers(SAMPLES)})
    text = about(verdict, "Adversarial")
    assert text.startswith("Ours is best, with F1 100.0; Vanilla 50.0 (+50.0, +")
    assert text.endswith(" is behind.")
    assert "noise" not in whole(verdict)


def test_a_tie_is_no_win_and_a_wide_one_is_noise(tmp_path):
    few, others = wrong_in("random", 1, 2, 3), wrong_in("random", 4, 5)
    verdict = told(tmp_path / "run", {"Vanilla": answers(SAMPLES, few), "Ours": answers(SAMPLES, others)})
    assert about(verdict, "Random").startswith("No method is best. Ours has F1 95.0, and Vanilla 92.5 (+2.5, -")
    assert "ties with it" in about(verdict, "Random")
    assert "The ties of random are noise" in whole(verdict), "of two wrong pictures against three"
    assert "best, with" not in whole(verdict)


def test_a_tie_whose_interval_is_narrow_is_not_called_noise(tmp_path):
    samples = questions(pictures=400, groups=("random",))
    answered = {"Vanilla": answers(samples, ["random/1"]), "Ours": answers(samples, ["random/3"])}
    verdict = told(tmp_path / "run", answered, samples=samples)
    assert "No method is best" in about(verdict, "")
    assert "noise" not in whole(verdict)


def test_identical_rows_are_named_with_how_many_answers_they_share(tmp_path):
    wrong = wrong_in("random", *range(10))
    answered = {"Vanilla": answers(SAMPLES, wrong), "Ours": answers(SAMPLES, wrong), "VCD": answers(SAMPLES)}
    verdict = told(tmp_path / "run", answered)
    assert ("", "Ours answered as Vanilla in all 160: the rows are identical.") in verdict.sentences
    assert "VCD answered as" not in whole(verdict)
    assert about(verdict, "Adversarial") == "Every method gave the same answers: F1 100.0."
    assert about(verdict, "Random").startswith("VCD is best")
    more = told(tmp_path / "more", {**answered, "ICD": answers(SAMPLES)})
    assert about(more, "Random").startswith("VCD has F1 100.0, and ICD (the same answers) ties with it; Vanilla ")


def test_too_few_pictures_have_no_best_method(tmp_path):
    samples = questions(pictures=FEW - 1, groups=("random",))
    answered = {"Vanilla": answers(samples, [s.id for s in samples]), "Ours": answers(samples)}
    verdict = told(tmp_path / "run", answered, samples=samples)
    assert about(verdict, "") == (
        "38 samples of 19 pictures are too few to say which method is best. So far Ours has the highest F1, 100.0."
    )


def test_leaders_of_too_few_pictures_are_all_named(tmp_path):
    samples = questions(pictures=6, groups=("random",))
    answered = {"Vanilla": answers(samples), "Ours": answers(samples, ["random/1"]), "VCD": answers(samples)}
    assert "So far Vanilla and VCD have the highest F1, 100.0." in whole(told(tmp_path / "run", answered, samples=samples))


def leaning(shift, *, log_odds=False):
    """Plain answers, all of them yes, moved by a constant; of every fourth picture the truth is not known."""
    records = []
    for number, sample in enumerate(SAMPLES):
        known = 1.0 if number % 8 > 1 else 0.0
        odds = 2.0 + number / 1000 + known * (1 if sample.id in YES else -1)
        said = "Yes." if odds + shift > 0 else "No."
        records.append(Record(sample.id, said, tokens=2, stop="end", log_odds=odds if log_odds else None))
    return records


def test_a_control_that_does_as_well_is_told(tmp_path):
    control = RunMethod("constant", "bias", {"shift": -2.0}, control=True)
    answered = {"Vanilla": leaning(0.0, log_odds=True), "Ours": leaning(-2.0), "constant": leaning(-2.0)}
    text = about(told(tmp_path / "run", answered, control), "Random")
    assert text.startswith("Ours is best, with F1 "), "of the methods"
    assert "A control does as well, as far as these pictures tell: constant " in text
    assert "At equal recall it is not more precise than plain decoding under a constant shift" in text
    assert "ahead of every control" not in text


def test_a_method_that_beats_the_controls_is_told_to_be_ahead(tmp_path):
    answered = {"Vanilla": leaning(0.0, log_odds=True), "Ours": answers(SAMPLES)}
    text = about(told(tmp_path / "run", answered), "Random")
    assert "It is ahead of every control; the nearest is picked bias" in text
    assert "At equal recall it is more precise than plain decoding under a constant shift" in text


def test_a_method_that_is_a_shift_is_named_as_one(tmp_path):
    verdict = told(tmp_path / "run", {"Vanilla": leaning(0.0), "Bias": leaning(-2.0)})
    assert "Bias is a shift of plain decoding's answers" in about(verdict, "Random")


def captions(**texts):
    return {
        label: [Record(s.id, given(n), tokens=9, stop="end") for n, s in enumerate(CAPTIONS)] for label, given in texts.items()
    }


def test_captions_are_ranked_by_chair_with_recall_beside_it(tmp_path):
    answered = captions(Vanilla=lambda _: WRONG, Ours=lambda n: BOTH if n % 2 else WRONG)
    verdict = told(
        tmp_path / "run", answered, samples=CAPTIONS, benchmark={"name": "captions", "task": "captions", "lexicon": {}}
    )
    text = about(verdict, "")
    assert text.startswith("Ours is best, with CHAIRi 20.0 at recall 100.0; Vanilla 33.3 at recall 100.0 (+13.3, +")
    assert "Its recall is not told apart from that of Vanilla" in text
    assert "Methods are ranked by CHAIRi (lower is better)" in whole(verdict)


@pytest.mark.parametrize("match", [False, True])
def test_captions_that_name_less_are_told_to(tmp_path, match):
    answered = captions(Vanilla=lambda _: WRONG, Ours=lambda _: DOGS)
    benchmark, how = {"name": "captions", "task": "captions", "lexicon": {}}, {"match_recall": match}
    text = about(told(tmp_path / "run", answered, samples=CAPTIONS, benchmark=benchmark, how=how), "")
    assert "It has a lower recall than Vanilla (-50.0" in text
    assert ("--match-recall tells" in text) != match
    assert ("Against Vanilla cut to the same recall, no difference is left" in text) == match


def test_captions_that_name_nothing_are_not_the_best(tmp_path):
    answered = captions(Vanilla=lambda _: WRONG, Ours=lambda n: BOTH if n % 2 else WRONG, Silent=lambda _: "Nothing.")
    benchmark = {"name": "captions", "task": "captions", "lexicon": {}}
    verdict = told(tmp_path / "run", answered, samples=CAPTIONS, benchmark=benchmark)
    assert about(verdict, "").startswith("Ours is best")
    assert "Silent" not in about(verdict, ""), "its CHAIRi is 0 out of 0"


def test_one_method_has_nothing_to_be_compared_with(tmp_path):
    assert "no other to compare it with" in whole(told(tmp_path / "run", {"Vanilla": answers(SAMPLES)}))


def test_every_setting_stands_beside_its_row(tmp_path):
    settings = {"Ours": {"alpha": 0.75, "lam": 0.5, "preset": "paper"}}
    verdict = told(tmp_path / "run", {"Vanilla": answers(SAMPLES), "Ours": answers(SAMPLES)}, settings=settings)
    rows = dict(verdict.rows)
    assert rows["Vanilla"] == "plain decoding"
    assert rows["Ours"] == "mgap with alpha 0.75, lam 0.5, preset paper; prior: rank 5, count 50"


def test_the_verdict_stands_on_top_of_every_file(tmp_path):
    nasty = RunMethod("<b>*Ours|", "mgap")
    answered = {"Vanilla": answers(SAMPLES, wrong_in("random", *range(20))), nasty.label: answers(SAMPLES)}
    scores = score(Run.load(write_run(tmp_path / "run", SAMPLES, answered, nasty)))
    files = report_files([scores])
    page = check_page(files["report.html"])
    assert page.text().index("is best, with F1 100.0") < page.text().index("Percent, but")
    assert "<b>*" not in files["report.html"]
    markdown = files["report.md"]
    assert markdown.index("- **Random**: \\<b>\\*Ours\\| is best") < markdown.index("## Results")
    check_latex(files["report.tex"])
    assert "% Random: <b>*Ours| is best" in files["report.tex"]
    assert '"verdict": [' in files["report.json"]
