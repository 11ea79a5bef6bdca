"""HallusionBench's figures through `mgap score hallusionbench`, against the projects' own code."""

import json

import pytest

from mgap.benchmarks.hallusionbench.questions import FILE, read_file, samples_of
from mgap.benchmarks.hallusionbench.scorer import HallusionBenchScorer
from mgap.errors import BenchmarkError, SettingError

READERS = {
    "official, read by first-sentence": "first-sentence",
    "official, read by first-sentence, refusals unread": "refusals-unread",
    "official, read by vlmevalkit": "vlmevalkit",
}
FIXTURES = ("all_yes", "made_up_free_text", "made_up_yes_no", "real_gpt4v_sample")
VLMEVALKIT, LMMS_EVAL = "vlmevalkit (questions with a picture)", "lmms_eval without a judge (questions with a picture)"
THREE = ("aAcc", "fAcc", "qAcc")


def lines(answers):
    return "".join(json.dumps({"question_id": name, "text": text}) + "\n" for name, text in answers.items())


@pytest.fixture
def file(shared):
    return shared / "data" / "hallusionbench"


@pytest.fixture
def questions(file):
    return read_file(file)


@pytest.fixture
def score(run, file, tmp_path):
    """Score answers by id, or a file of them; returns what is printed as JSON."""

    def call(answers, *words, data=file):
        if isinstance(answers, dict):
            (tmp_path / "answers.jsonl").write_text(lines(answers))
            answers = tmp_path / "answers.jsonl"
        status, out, err = run("score", "hallusionbench", "--answers", answers, "--data", data, "--json", *words)
        assert status == 0, err
        return json.loads(out)

    return call


@pytest.fixture
def fixture(shared, file, tmp_path):
    """A fixture's answers, what is expected of them, and a folder with the questions that were asked."""

    def read(name):
        folder = shared / "fixtures" / "benchmarks" / "hallusionbench"
        answers = folder / f"{name}.answers.jsonl"
        asked = {json.loads(line)["question_id"] for line in answers.read_text().splitlines()}
        rows = json.loads((file / FILE).read_text())
        parts = ("category", "subcategory", "set_id", "figure_id", "question_id")
        kept = [row for row in rows if "_".join(row[part] for part in parts) in asked]
        assert len(kept) == len(asked)
        (tmp_path / FILE).write_text(json.dumps(kept))
        return answers, json.loads((folder / f"{name}.expected.json").read_text())["expected"], tmp_path

    return read


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", FIXTURES)
def test_every_count_is_that_of_the_authors_functions(fixture, score, name, reader):
    answers, expected, data = fixture(name)
    found, wanted = score(answers, "--parser", READERS[reader], data=data), expected[reader]
    for group in ("all", "VD", "VS"):
        for key in (*THREE, "easy_pairs", "hard_pairs", "figures_inconsistent", "figures_wrong"):
            assert found[group][key] == wanted[group][key], (group, key)
        assert list(found[group]["errors"].values()) == wanted[group]["LH_VI_Mix"], group
    unclear = found["unclear"]
    assert unclear["with_picture"] + unclear["without_picture"] == wanted["uncertain"]
    assert unclear["counted_as_right"] == wanted["uncertain_and_right"]
    assert found["yes_bias"] == pytest.approx(wanted["yes_bias"], abs=1e-12)


@pytest.mark.parametrize("name", FIXTURES)
def test_vlmevalkits_percentages_and_lmms_evals_shares(fixture, score, name):
    answers, expected, data = fixture(name)
    found = score(answers, "--parser", "vlmevalkit", "--counting", "vlmevalkit", data=data)
    groups = {"Overall": found["all"], "VD": found["VD"], "VS": found["VS"], **found["subcategories"]}
    assert groups.keys() == expected[VLMEVALKIT].keys()
    for group, wanted in expected[VLMEVALKIT].items():
        for key in THREE:
            right, of = groups[group][key]
            assert 100 * right / of == pytest.approx(wanted[key], abs=1e-9), (group, key)
    assert 100 * found["all"]["mean_of_three"] == pytest.approx(expected[VLMEVALKIT]["Overall"]["average"], abs=1e-9)
    unjudged = score(answers, "--parser", "yes-anywhere", "--counting", "vlmevalkit", data=data)["all"]
    assert {key: unjudged[key][0] / unjudged[key][1] for key in THREE} == pytest.approx(expected[LMMS_EVAL], abs=1e-12)


def test_the_same_word_always(questions, score):
    yes, no = (score({q.id: word for q in questions})["all"] for word in ("Yes", "No"))
    assert (yes["aAcc"], no["aAcc"]) == ([484, 1129], [645, 1129])
    assert (yes["fAcc"], no["fAcc"]) == ([25, 346], [42, 346])
    assert (yes["qAcc"], no["qAcc"]) == ([18, 455], [88, 455])


def test_not_knowing_is_right_where_there_is_no_picture_and_nowhere_else(questions, score):
    found = score({q.id: "I cannot tell." for q in questions})
    assert [found["all"][key] for key in THREE] == [[178, 1129], [0, 346], [0, 455]]
    assert found["unclear"] == {"with_picture": 951, "without_picture": 178, "counted_as_right": 178}
    assert score({q.id: "I cannot tell." for q in questions}, "--counting", "vlmevalkit")["all"]["aAcc"] == [0, 951]


def test_a_refusal_is_no_denial_and_a_leading_word_still_decides(questions, score):
    (first,) = (q for q in questions if q.id == "VS/chart/0/0/0")
    texts = {"I don\u2019t have data for 2018.": 1, "Yes, although I cannot be sure": 0, "There is no such country": 0}
    for text, unclear in texts.items():
        found = score({first.id: text}, "--missing", "skip")
        assert found["all"]["undefined"] == ["fAcc", "qAcc", "mean_of_three", "easy_pairs", "hard_pairs"]
        assert sum(found["unclear"][key] for key in ("with_picture", "without_picture")) == unclear, text


def test_a_pair_or_figure_that_lacks_an_answer_is_left_out_whole(questions, score, run, file, tmp_path):
    right = {q.id: q.label for q in questions}
    del right["VS/chart/0/0/0"]
    found = score(right, "--missing", "skip")
    assert [found["all"][key] for key in THREE] == [[1128, 1128], [346, 346], [454, 454]]
    assert found["incomplete"] == {"figures": 0, "pairs": 1}  # no picture is no figure
    found = score({name: text for name, text in right.items() if name != "VD/illusion/0/1/0"}, "--missing", "skip")
    assert [found["all"][key] for key in THREE] == [[1127, 1127], [345, 345], [453, 453]]
    assert found["incomplete"] == {"figures": 1, "pairs": 2}
    (tmp_path / "few.jsonl").write_text(lines(right))
    words = ["score", "hallusionbench", "--answers", tmp_path / "few.jsonl", "--data", file]
    status, out, err = run(*words)
    assert (status, out, "1 of 1129 questions have no answer, first 'VS/chart/0/0/0'" in err) == (2, "", True)
    _, out, err = run(*words, "--missing", "skip")
    assert "left out" in err
    assert "0 figures and 1 pairs lack an answer and are not counted" in out
    del right["VS/chart/0/1/0"]  # VLMEvalKit does not ask the other one that is missing
    (tmp_path / "few.jsonl").write_text(lines(right))
    assert "1 of 951 questions have no answer" in run(*words, "--counting", "vlmevalkit")[2]


def test_intervals_are_over_sets_and_contain_the_figure(questions, fixture, score):
    answers, _, data = fixture("made_up_free_text")
    found = score(answers, data=data)["all"]
    for key in THREE:
        low, high = found["intervals"][key]
        assert low < found[key][0] / found[key][1] < high
    samples = samples_of(questions)
    scorer = HallusionBenchScorer({q.id: q.visual_input for q in questions})
    tallies = scorer.tally(samples, {sample.id: "Yes" for sample in samples})
    assert len(tallies["all"].pictures) == len(tallies["VD"].pictures) + len(tallies["VS"].pictures) == 167
    assert len(tallies["all"].right) == 1129


def test_the_authors_own_array_is_read(shared, file, run):
    words = ["score", "hallusionbench", "--answers", file / "HallusionBench_result_sample.json", "--data", file]
    status, out, err = run(*words, "--missing", "skip", "--json")
    assert status == 0, err
    assert json.loads(out)["questions"] == 254
    assert "14 answers are to an older wording" in err


def test_a_table_for_reading_names_every_figure(questions, file, run, tmp_path):
    (tmp_path / "answers.jsonl").write_text(lines({q.id.replace("/", "_"): "Yes" for q in questions}))
    status, out, err = run("score", "hallusionbench", "--answers", tmp_path / "answers.jsonl", "--data", file)
    assert (status, err) == (0, "")
    assert out.startswith("1,129 questions, counted by authors, read by refusals-unread; unclear: 0 with a picture")
    assert "mean of three, VLMEvalKit's headline" in out
    assert "484/1129" in out


@pytest.mark.parametrize(
    ("answers", "words", "message"),
    [
        ({"VD_illusion_0_0_9": "Yes"}, ["--missing", "skip"], "1 of 1 answers are to questions that are not asked"),
        ({"VS_chart_0_0_0": "Yes", "VS/chart/0/0/0": "No"}, [], "1 question ids stand more than once"),
        ({"VS_chart_0_0_0": 3}, [], "no text among 'question_id', 'text'"),
        ({"VS_chart_0_0_0": "Yes"}, ["--missing", "skip", "--counting", "vlmevalkit"], "none of its answers"),
        ({"VS_chart_0_0_0": "Yes"}, ["--missing", "wrong"], "missing='wrong': choose from refuse, skip"),
        ({"VS_chart_0_0_0": "Yes"}, ["--counting", "lmms"], "counting='lmms': choose from authors, vlmevalkit"),
        ({"VS_chart_0_0_0": "Yes"}, ["--parser", "judge"], "unknown parser 'judge'"),
    ],
)
def test_mistakes_are_one_sentence(file, run, tmp_path, answers, words, message):
    (tmp_path / "answers.jsonl").write_text(lines(answers))
    status, out, err = run("score", "hallusionbench", "--answers", tmp_path / "answers.jsonl", "--data", file, *words)
    assert (status, out) == (2, "")
    assert err.startswith("mgap: ")
    assert message in err


def test_what_the_scorer_cannot_do_is_refused():
    with pytest.raises(SettingError, match="this run left out those without a picture"):
        HallusionBenchScorer.of({"visual_input": {}, "pictures": "only"}, counting="authors")
    assert HallusionBenchScorer.of({"visual_input": {}, "pictures": "only"}).counting == "vlmevalkit"
    with pytest.raises(SettingError, match="unknown setting 'judge'"):
        HallusionBenchScorer.of({"visual_input": {}}, judge="gpt-4")
    with pytest.raises(BenchmarkError, match="the lexicon has no visual_input"):
        HallusionBenchScorer.of({})
