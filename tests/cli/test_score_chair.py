"""`mgap score chair` as a user types it."""

import json

import pytest

from mgap.benchmarks.chair.lexicon import Lexicon


@pytest.fixture
def data(tmp_path):
    truth = {"1": {"segmentation": ["dog"], "caption_only": ["person"]}, "2": {"segmentation": [], "caption_only": ["cat"]}}
    (tmp_path / "gt_val2014.json").write_text(json.dumps(truth))
    return tmp_path


@pytest.fixture
def captions(tmp_path):
    path = tmp_path / "captions.jsonl"
    rows = [(1, "A woman with two dogs and a traffic light."), (2, "A cat."), (2, "Nothing much")]
    path.write_text("".join(json.dumps({"image_id": i, "caption": text}) + "\n" for i, text in rows))
    return path


@pytest.mark.parametrize("name", [pytest.param("popecap_I1_instructblip", marks=pytest.mark.long), "popecap_I2_minigpt-4"])
def test_the_published_figures_come_out_of_the_command(run, shared, name, tmp_path):
    folder = shared / "fixtures" / "benchmarks" / "chair"
    found = tmp_path / "found.jsonl"
    command = ("score", "chair", "--captions", folder / f"{name}.captions.jsonl", "--data", shared / "data")
    status, out, err = run(*command, "--json", "--per-caption", found)
    assert (status, err) == (0, "")
    told, expected = json.loads(out), json.loads((folder / f"{name}.expected.json").read_text())
    assert told["language"] == "nltk"
    assert told["counts"] == expected["counts"]
    length = told["overall"].pop("Len")
    assert length == pytest.approx(expected["overall"].pop("Len"), abs=1e-4)
    assert told["overall"] == pytest.approx(expected["overall"], abs=1e-12)
    published = [json.loads(line) for line in (folder / f"{name}.sentences.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in found.read_text().splitlines()] == published


def test_every_score_names_its_language_and_its_length(run, data, captions):
    status, out, _ = run("score", "chair", "--captions", captions, "--data", data, "--language", "builtin")
    assert status == 0
    assert "3 captions; language builtin, unfinished keep" in out
    assert "CHAIRs      33.33" in out
    assert "Len          4.67" in out


def test_captions_are_cut_or_matched_or_tabled(run, data, captions, tmp_path):
    command = ("score", "chair", "--captions", captions, "--data", data, "--language", "builtin", "--json")
    cut = json.loads(run(*command, "--cut", 5)[1])
    assert (cut["cut"], cut["overall"]["CHAIRs"], cut["counts"]["mentions"]) == (5, 0.0, 3)
    other = tmp_path / "short.jsonl"
    other.write_text('{"image_id": 9, "caption": "Two words"}\n')  # of any picture
    assert json.loads(run(*command, "--match", other)[1])["cut"] == 2
    other.write_text('{"image_id": 1, "caption": "A woman."}\n')
    equal = json.loads(run(*command, "--match-recall", other)[1])
    assert (equal["cut"], equal["overall"]["Recall"]) == (2, 0.5)  # a woman, a cat: 2 of 4; 1 of 2 there
    table = json.loads(run(*command, "--lengths")[1])["lengths"]
    assert list(table) == ["25", "40", "50", "60", "80", "all"]
    plain = run(*command[:-1], "--lengths")[1]
    assert plain.splitlines()[-1].split()[0] == "all"


def test_an_unfinished_last_sentence_is_dropped_after_cutting_and_both_are_told(run, data, tmp_path):
    path = tmp_path / "unfinished.jsonl"
    rows = [(1, "A dog. A cat is there."), (2, "A cat. A dog and"), (2, "a dog and no end")]
    path.write_text("".join(json.dumps({"image_id": i, "caption": text}) + "\n" for i, text in rows))
    command = ("score", "chair", "--captions", path, "--data", data, "--language", "builtin")

    def told(*words):
        scores = json.loads(run(*command, *words, "--json")[1])
        return scores["unfinished"], scores["counts"]["hallucinated_captions"], scores["dropped"]

    assert told() == ("keep", 3, None)
    assert told("--unfinished", "drop") == ("drop", 2, {"shortened": 1, "without_end": 1})
    assert told("--unfinished", "drop", "--cut", 5) == ("drop", 1, {"shortened": 2, "without_end": 1})
    _, out, _ = run(*command, "--unfinished", "drop", "--lengths")
    assert "3 captions; language builtin, unfinished drop" in out
    assert "1 lost an unfinished last sentence; 1 without an end were kept whole" in out
    assert out.splitlines()[-1].split()[:2] == ["all", "66.7"], "the table of lengths too"


def test_nothing_mentioned_is_said_to_be_zero_out_of_zero(run, data, tmp_path):
    path = tmp_path / "empty.json"
    path.write_text('[{"image_id": 1, "caption": ""}]')
    command = ("score", "chair", "--captions", path, "--data", data, "--language", "builtin")
    assert json.loads(run(*command, "--json")[1])["undefined"] == ["CHAIRi", "Precision"]
    assert "CHAIRi       0.00  [0.00, 100.00]  (0 out of 0)" in run(*command)[1]


def test_ground_truth_from_cocos_annotations_is_read_by_the_same_language(run, tmp_path, captions):
    pictures = [{"id": number, "file_name": f"{number}.jpg"} for number in (1, 2)]
    instances = {
        "images": pictures,
        "categories": [{"id": 18, "name": "dog"}],
        "annotations": [{"image_id": 1, "category_id": 18}],
    }
    told = [{"image_id": 1, "caption": "A woman below traffic lights"}, {"image_id": 2, "caption": "kittens"}]
    (tmp_path / "instances_val2014.json").write_text(json.dumps(instances))
    (tmp_path / "captions_val2014.json").write_text(json.dumps({"images": pictures, "annotations": told}))
    status, out, _ = run("score", "chair", "--captions", captions, "--data", tmp_path, "--language", "builtin", "--json")
    assert status == 0
    assert json.loads(out)["overall"]["CHAIRs"] == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"image_id": 1, "caption": "a"}\n{"image_id": 9, "caption": "b"}\n',
            "1 of 2 image ids have no ground truth, first 9",
        ),
        ('{"image_id": 1, "caption": "a"}\n{"image_id": 2, "ca', "the last line is cut off"),
        ("[]", "no caption in it"),
    ],
)
def test_captions_that_cannot_be_scored_are_refused(run, data, tmp_path, text, message):
    path = tmp_path / "captions.jsonl"
    path.write_text(text)
    status, _, err = run("score", "chair", "--captions", path, "--data", data, "--language", "builtin")
    assert status == 2
    assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cut", "0"), "at least 1 word"),
        (("--cut", "5", "--lengths"), "give one of them"),
        (("--match", "a.jsonl", "--match-recall", "b.jsonl"), "give one of them"),
        (("--unfinished", "cut"), "unfinished='cut': choose from keep, drop"),
        (("--language", "spacy"), "builtin, nltk"),
    ],
)
def test_options_that_cannot_be_used_are_refused(run, data, captions, words, message):
    status, _, err = run("score", "chair", "--captions", captions, "--data", data, *words)
    assert status == 2
    assert message in err


def test_nltk_without_data_says_what_to_do(run, data, captions, monkeypatch, tmp_path):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    status, _, err = run("score", "chair", "--captions", captions, "--data", data)
    assert status == 2
    assert "python -m nltk.downloader" in err
    assert "builtin" in err


def test_a_folder_that_is_not_there_is_named(run, captions, tmp_path):
    status, _, err = run("score", "chair", "--captions", captions, "--data", tmp_path / "nowhere")
    assert status == 2
    assert "no such folder" in err


def test_words_of_the_folder_are_used(run, data, captions):
    (data / "synonyms.txt").write_text("dog, hound\ncat\nperson\n")
    assert set(Lexicon.read(data).synonyms) == {"dog", "cat", "person"}
    _, out, _ = run("score", "chair", "--captions", captions, "--data", data, "--language", "builtin", "--json")
    assert json.loads(out)["counts"]["mentions"] == 2  # neither woman nor traffic light
