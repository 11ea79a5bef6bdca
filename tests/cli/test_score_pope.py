"""`mgap score pope` and `mgap build pope` as a user types them, against the published figures."""

import json

import pytest

from mgap.benchmarks.pope.questions import find_files

FIXTURES = (
    "real_llava15_7b_coco_adversarial",
    "real_llava15_13b_coco_popular",
    "free_text_coco_random",
    "free_text_gqa_adversarial",
    "all_no_aokvqa_popular",
)
PUBLISHED = ("original", "llava", "vcd", "opera", "mgap", "lmms_eval")


@pytest.fixture
def score(run, shared):
    """Score a fixture's answers; returns what is printed as JSON, what is on standard error, and the fixture."""

    def call(name, parser, *words):
        folder = shared / "fixtures" / "benchmarks" / "pope"
        fixture = json.loads((folder / f"{name}.expected.json").read_text())
        questions, answers = shared / "data" / fixture["question_file"], folder / f"{name}.answers.jsonl"
        status, out, err = run(
            "score", "pope", "--questions", questions, "--answers", answers, "--parser", parser, "--json", *words
        )
        assert status == 0
        return json.loads(out), err, fixture

    return call


@pytest.mark.parametrize("parser", PUBLISHED)
@pytest.mark.parametrize("name", FIXTURES)
def test_published_scorers_give_their_figures_with_all_decimals(score, name, parser):
    found, err, fixture = score(name, parser)
    expected = fixture["expected"][parser]
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-12)), key
    assert ("looks at the label" in err) == (parser in ("vcd", "mgap"))


@pytest.mark.parametrize("name", FIXTURES)
def test_the_counts_of_the_code_project(score, name):
    found, _, fixture = score(name, "code")
    assert {key: found[key] for key in ("TP", "FP", "TN", "FN")} == fixture["expected_counts_code_parser"]


@pytest.mark.parametrize("name", FIXTURES[:2])
def test_our_own_way_agrees_on_bare_words_and_adds_intervals(score, name):
    found, err, fixture = score(name, "first-sentence")
    for key, value in fixture["expected"]["original"].items():
        assert found[key] == pytest.approx(value, abs=1e-12), key
    assert (found["unparsed"], found["questions"], found["undefined"], err) == (0, 3000, [], "")
    low, high = found["intervals"]["accuracy"]
    assert low < found["accuracy"] < high


def test_all_no_is_flagged_and_free_text_counts_what_is_unparsed(score):
    found, _, _ = score("all_no_aokvqa_popular", "first-sentence")
    assert (found["undefined"], found["precision"], found["accuracy"], found["yes_ratio"]) == (["precision"], 0, 0.5, 0)
    found, _, _ = score("free_text_coco_random", "first-sentence")
    assert found["TP"] + found["FP"] + found["TN"] + found["FN"] + found["unparsed"] == 3000
    assert found["unparsed"] > 0


@pytest.fixture
def files(tmp_path):
    questions, answers = tmp_path / "questions.json", tmp_path / "answers.jsonl"
    asked = [("a.jpg", "dog", "yes"), ("a.jpg", "cat", "no"), ("b.jpg", "cup", "yes"), ("b.jpg", "car", "no")]
    records = [
        {"question_id": place, "image": image, "text": f"Is there a {name} in the image?", "label": label}
        for place, (image, name, label) in enumerate(asked, start=1)
    ]
    questions.write_text(json.dumps(records))
    answers.write_text("".join(json.dumps({"question_id": place, "text": "Yes"}) + "\n" for place in (1, 2, 3, 4)))
    return questions, answers


def words(files, *more):
    return ["score", "pope", "--questions", files[0], "--answers", files[1], *more]


def test_a_table_for_reading(run, files):
    status, out, err = run(*words(files))
    assert (status, err) == (0, "")
    assert out.startswith("4 questions, read by first-sentence; 0 answers say neither yes nor no\n")
    assert "TP              2" in out
    assert "precision   50.00  [50.00, 50.00]" in out
    assert "words        1.00" in out
    files[1].write_text("".join(json.dumps({"question_id": place, "text": "No"}) + "\n" for place in (1, 2, 3, 4)))
    assert "(0 out of 0)" in run(*words(files))[1]
    assert "stops with a ZeroDivisionError" in run(*words(files, "--parser", "opera"))[1]


def test_all_yes(run, files):
    for parser in PUBLISHED:
        found = json.loads(run(*words(files, "--parser", parser, "--json"))[1])
        assert (found["accuracy"], found["recall"], found["precision"]) == (0.5, 1.0, 0.5)


def test_missing_answers(run, files):
    files[1].write_text("".join(files[1].read_text().splitlines(keepends=True)[:3]))
    status, _, err = run(*words(files))
    assert (status, "1 of 4 questions have no answer, first question_id '4'" in err) == (2, True)
    status, out, err = run(*words(files, "--missing", "skip", "--json"))
    assert (status, json.loads(out)["questions"], "left out" in err) == (0, 3, True)
    for parser in ("first-sentence", *PUBLISHED):
        status, out, err = run(*words(files, "--missing", "wrong", "--parser", parser, "--json"))
        assert (status, json.loads(out)["accuracy"], "counted as wrong" in err) == (0, 0.5, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--parser", "strict"], "unknown parser 'strict': choose from first-sentence"),
        (["--missing", "ignore"], "choose from refuse, wrong, skip"),
        (["--questions", "none.json"], "none.json: no such file"),
    ],
)
def test_mistakes_are_one_sentence(run, files, more, message):
    status, out, err = run(*words(files, *more))
    assert (status, out) == (2, "")
    assert err.startswith("mgap: ")
    assert message in err


def test_a_cut_off_answer_is_refused(run, files):
    files[1].write_text(files[1].read_text()[:-9])
    status, _, err = run(*words(files))
    assert (status, "line 4: the last line is cut off" in err) == (2, True)


def test_the_parsers_are_listed(run):
    assert all(name in run("ls", "parsers")[1] for name in ("first-sentence", *PUBLISHED, "code", "vlmevalkit"))


def test_build_writes_three_files_that_can_be_read(run, tmp_path):
    annotations = tmp_path / "annotations.jsonl"
    pictures = {"a": "car person dog", "b": "car person cup", "c": "cat cup dog", "d": "car"}
    annotations.write_text(
        "\n".join(json.dumps({"image": f"{name}.jpg", "objects": o.split()}) for name, o in pictures.items())
    )
    wanted = ["build", "pope", "--annotations", annotations, "--out", tmp_path / "pope", "--count", 3, "--per-image", 2]
    status, out, err = run(*wanted, "--seed", 7)
    assert (status, err, out.count("12 questions about 3 pictures")) == (0, "", 3)
    first = {path.name: path.read_bytes() for path in find_files(tmp_path / "pope", "own").values()}
    assert list(first) == ["own_pope_random.json", "own_pope_popular.json", "own_pope_adversarial.json"]
    run(*wanted, "--seed", 7)
    assert first == {path.name: path.read_bytes() for path in find_files(tmp_path / "pope", "own").values()}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--count", 9], "3 of 4 pictures have at least 3 objects"),
        (["--name", "a/b"], "write a plain word"),
        (["--out", "annotations.jsonl"], "is a file"),
        (["--annotations", "none.json"], "no such file"),
    ],
)
def test_build_refuses_before_it_writes(run, tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    pictures = {"a": ["c", "d", "e"], "b": ["c", "d", "f"], "c": ["g", "h", "i"], "d": ["g"]}
    (tmp_path / "annotations.jsonl").write_text(
        "\n".join(json.dumps({"image": name, "objects": objects}) for name, objects in pictures.items())
    )
    status, out, err = run("build", "pope", "--annotations", "annotations.jsonl", "--out", "pope", "--count", 3, *more)
    assert (status, out) == (2, "")
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["annotations.jsonl"]
