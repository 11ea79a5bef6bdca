"""`mgap score pope --relabel repope` as a user types it, against the figures of RePOPE's own script."""

import json

import pytest

COMPLETE = (
    "real_llava15_7b_coco_random_greedy",
    "real_llava15_7b_coco_popular_sample",
    "real_llava15_7b_coco_adversarial_greedy",
    "real_llava15_13b_coco_popular",
    "free_text_coco_random",
    "all_no_coco_adversarial",
    "only_kept_coco_popular",
)
PARSERS = {"repope": "repope_official", **{name: name for name in ("original", "vcd", "opera", "first-sentence")}}
REAL = {  # of LLaVA-1.5-7B: accuracy, precision, recall, F1, says yes on POPE; TP, FP, TN, FN and the same on RePOPE
    "greedy random": ((87.00, 96.64, 76.67, 85.50, 39.67), (998, 63, 1552, 161), (91.93, 94.06, 86.11, 89.91, 38.25)),
    "greedy popular": ((85.90, 94.03, 76.67, 84.47, 40.77), (1004, 77, 1457, 189), (90.25, 92.88, 84.16, 88.30, 39.64)),
    "greedy adversarial": ((83.33, 88.58, 76.53, 82.12, 43.20), (1009, 129, 1368, 178), (88.56, 88.66, 85.00, 86.80, 42.40)),
    "sample random": ((83.63, 92.79, 72.93, 81.67, 39.30), (940, 116, 1499, 219), (87.92, 89.02, 81.10, 84.88, 38.07)),
    "sample popular": ((81.73, 89.73, 71.67, 79.69, 39.93), (935, 135, 1399, 258), (85.59, 87.38, 78.37, 82.63, 39.24)),
    "sample adversarial": ((79.83, 83.57, 74.27, 78.64, 44.43), (967, 210, 1287, 220), (83.98, 82.16, 81.47, 81.81, 43.85)),
}
F1_INTERVALS = {"greedy random": ([84.10, 86.86], [88.68, 91.20]), "sample adversarial": ([77.16, 80.17], [80.07, 83.40])}
SHARES = ("accuracy", "precision", "recall", "f1", "yes_ratio")


@pytest.fixture
def score(run, shared):
    """Score answers on both labels; returns exit status, standard output and standard error."""

    def call(questions, answers, *words):
        data = shared / "data"
        given = ["--questions", data / questions, "--answers", answers, "--relabel", "repope", "--data", data / "repope"]
        return run("score", "pope", *given, *words)

    return call


@pytest.fixture
def fixture(score, shared):
    """The same for a fixture by name, with what is expected in front."""

    def call(name, *words):
        folder = shared / "fixtures" / "benchmarks" / "repope"
        expected = json.loads((folder / f"{name}.expected.json").read_text())
        return expected, *score(expected["question_file"], folder / f"{name}.answers.jsonl", *words)

    return call


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("name", COMPLETE)
def test_both_tables_have_the_published_figures_with_all_decimals(fixture, name, parser):
    expected, status, out, told = fixture(name, "--parser", parser, "--json")
    assert status == 0, told
    found = json.loads(out)
    for key in ("kept", "dropped", "flipped_to_no", "flipped_to_yes"):
        assert found[key] == expected[key]
    assert list(found) == ["relabel", "kept", "dropped", "flipped_to_no", "flipped_to_yes", "pope", "repope"]
    for labels in ("pope", "repope"):
        figures = expected["expected"][labels].get(PARSERS[parser], {"error": "273 of 3000 questions have no answer"})
        assert found[labels].keys() - {"words", "intervals"} == figures.keys()
        for key, value in figures.items():
            assert found[labels][key] == (pytest.approx(value, abs=1e-12) if isinstance(value, float) else value), (labels, key)
    unused = expected["answered_and_dropped"]
    assert (f"{unused} answers are to questions that RePOPE dropped" in told) == bool(unused)


@pytest.mark.parametrize("name", COMPLETE[:5])
def test_the_official_script_leaves_unread_answers_out_of_every_figure(fixture, name):
    expected, _, out, _ = fixture(name, "--parser", "repope", "--json")
    found = json.loads(out)
    for labels, asked in (("pope", expected["questions"]), ("repope", expected["kept"])):
        read = sum(found[labels][key] for key in ("TP", "FP", "TN", "FN"))
        assert asked - read == expected["expected"][labels]["repope_official_unread"]


@pytest.mark.parametrize("name", REAL)
def test_real_answers_have_the_figures_of_the_documentation(score, shared, name):
    decoding, split = name.split()
    answers = shared / "data" / "real" / f"llava-7b-coco-{split}-{decoding}.jsonl"
    status, out, told = score(f"pope/coco/coco_pope_{split}.json", answers, "--json")
    assert status == 0, told
    found, (on_pope, counts, on_repope) = json.loads(out), REAL[name]
    assert tuple(found["repope"][key] for key in ("TP", "FP", "TN", "FN")) == counts
    for labels, figures in (("pope", on_pope), ("repope", on_repope)):
        assert [round(100 * found[labels][key], 2) for key in SHARES] == list(figures)
    for labels, interval in zip(("pope", "repope"), F1_INTERVALS.get(name, ()), strict=False):
        assert [round(100 * end, 2) for end in found[labels]["intervals"]["f1"]] == interval


def test_a_kept_question_without_an_answer_is_refused_unless_told_otherwise(fixture):
    for parser in ("first-sentence", "repope"):
        _, status, out, told = fixture("missing_kept_coco_random", "--parser", parser, "--json")
        assert (status, out) == (2, "")
        assert "6 of 2774 questions have no answer" in told
    _, status, out, told = fixture("missing_kept_coco_random", "--missing", "skip", "--json")
    found = json.loads(out)
    assert (status, found["kept"], found["repope"]["questions"], found["pope"]["questions"]) == (0, 2774, 2768, 2994)
    assert "6 of 2774 questions have no answer and are left out" in told
    _, _, out, _ = fixture("missing_kept_coco_random", "--missing", "wrong", "--json")
    assert json.loads(out)["repope"]["unparsed"] == 6
    _, status, _, told = fixture("missing_kept_coco_random", "--missing", "wrong", "--parser", "repope")
    assert status == 2
    assert "repope leaves an answer that it cannot read out of every figure" in told


def test_two_columns_for_reading(fixture):
    _, status, out, _ = fixture("real_llava15_7b_coco_random_greedy")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "2,774 of 3,000 questions, labelled by RePOPE: 226 dropped, 139 turned to no, 5 to yes"
    assert lines[1] == "read by first-sentence; 0 and 0 answers say neither yes nor no"
    assert lines[2].split() == ["POPE", "RePOPE"]
    assert lines[3].split() == ["TP", "1150", "998"]
    (f1,) = (line for line in lines if line.startswith("f1"))
    assert f1.split() == ["f1", "85.50", "[84.10,", "86.86]", "89.91", "[88.68,", "91.20]"]
    assert lines[2].index("RePOPE") == f1.index("89.91") - 1 == lines[3].index("998") - 3
    _, _, out, _ = fixture("only_kept_coco_popular")
    assert "POPE: no figures: 273 of 3000 questions have no answer" in out
    assert "f1" in out
    _, _, out, _ = fixture("all_no_coco_adversarial", "--parser", "repope")
    assert out.count("no figures: no yes is right") == 2


def test_the_first_release_is_scored_by_its_texts(run, shared, tmp_path):
    data = shared / "data"
    said = {}
    for line in (data / "real" / "llava-7b-coco-random-greedy.jsonl").read_text().splitlines():
        said[json.loads(line)["question_id"]] = json.loads(line)["text"]
    whole = [json.loads(line) for line in (data / "pope" / "coco" / "coco_pope_random.json").read_text().splitlines()]
    by_text = {(row["image"], row["text"]): said[row["question_id"]] for row in whole}
    first = (data / "pope" / "coco" / "coco_pope_random_2910.json").read_text().splitlines()
    rows = [json.loads(line) for line in first]
    answers = [
        {"question_id": row["question_id"], "text": by_text[row["image"], row["text"].replace("imange", "image")]}
        for row in rows
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    copy = tmp_path / "coco_pope_random.json"  # as OPERA's project calls it
    copy.write_text("\n".join(first) + "\n")
    words = ["--answers", tmp_path / "answers.jsonl", "--relabel", "repope", "--data", data, "--json"]
    status, out, told = run("score", "pope", "--questions", copy, *words)
    found = json.loads(out)
    assert (status, found["kept"], found["dropped"], found["flipped_to_no"], found["flipped_to_yes"]) == (0, 2687, 223, 139, 5)
    assert found["repope"]["TP"] == 998, "the yes-questions are those of the 3,000"
    assert "2893 of 2910 questions have another id in random" in told


def test_answers_without_ids_are_paired_before_anything_is_dropped(score, shared, tmp_path):
    real = (shared / "data" / "real" / "llava-7b-coco-popular-greedy.jsonl").read_text().splitlines()
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps({"answer": json.loads(line)["text"]}) + "\n" for line in real))
    _, out, _ = score("pope/coco/coco_pope_popular.json", tmp_path / "answers.jsonl", "--json")
    assert json.loads(out)["repope"]["TP"] == REAL["greedy popular"][1][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--relabel", "other"], "unknown relabel 'other': choose from repope"),
        (["--relabel", "repope", "--data", "none"], "none: no such folder of repope's files"),
        (["--data", "none"], "--data none holds labels that nothing asks for: add --relabel repope"),
    ],
)
def test_mistakes_are_one_sentence(run, tmp_path, words, message):
    questions, answers = tmp_path / "q.jsonl", tmp_path / "a.jsonl"
    questions.write_text('{"question_id": 1, "image": "a.jpg", "text": "Is there a dog in the image?", "label": "yes"}\n')
    answers.write_text('{"question_id": 1, "text": "Yes"}\n')
    status, out, told = run("score", "pope", "--questions", questions, "--answers", answers, *words)
    assert (status, out) == (2, "")
    assert told.startswith(f"mgap: {message}")


def test_questions_that_repope_never_saw_are_refused(score, shared):
    answers = shared / "fixtures" / "benchmarks" / "pope" / "all_no_aokvqa_popular.answers.jsonl"
    status, out, told = score("pope/aokvqa/aokvqa_pope_seem_popular.json", answers)
    assert (status, out) == (2, "")
    assert "of 3000 questions are not among those that RePOPE labelled" in told
