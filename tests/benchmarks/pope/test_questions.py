"""POPE's published files in both containers, and everything that can be wrong with a file of questions."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.pope.questions import PROMPTS, SPLITS, find_files, read_pope, read_questions
from mgap.errors import BenchmarkError, MgapError, SettingError

PUBLISHED = [(name, split) for name in ("coco", "aokvqa", "gqa") for split in SPLITS] + [("coco", "random_2910")]


def question(number, label="yes", image="a.jpg", text="Is there a dog in the image?"):
    return {"question_id": number, "image": image, "text": text, "label": label}


def write(path, records, array=False):
    path.write_text(json.dumps(records) if array else "".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(b"pixels")
    return folder


@pytest.mark.parametrize(("dataset", "split"), PUBLISHED)
def test_the_published_files_are_read(shared, dataset, split):
    path = find_files(shared / "data" / "pope", dataset, [split])[split]
    questions, notes = read_questions(path)
    assert len(questions) == (2910 if split == "random_2910" else 3000)
    assert sum(q.label == "yes" for q in questions) == 1500
    assert len({q.image for q in questions}) == 500
    assert not [q for q in questions if "imange" in q.text]
    mended = [note for note in notes if "imange" in note]
    assert mended == ([f'{path}: "imange" is read as "image" in 144 questions'] if split == "random_2910" else [])
    assert any("second time" in note for note in notes) == (dataset != "coco" and split == "adversarial")


def test_the_yes_questions_of_the_splits_of_a_dataset_are_the_same(shared):
    for dataset in ("coco", "aokvqa", "gqa"):
        files = find_files(shared / "data" / "pope", dataset)
        asked = [[(q.image, q.text) for q in read_questions(path)[0] if q.label == "yes"] for path in files.values()]
        assert asked[0] == asked[1] == asked[2]


def test_a_benchmark_of_three_splits(tmp_path, pictures):
    for split in SPLITS:
        records = [question(1), question(2, "no", "b.jpg", "Is there an apple in the imange?")]
        write(tmp_path / f"coco_pope_{split}.json", records, array=split == "popular")
    found = read_pope(tmp_path, pictures, prompt="vcd")
    assert (found.name, found.task, len(found.samples)) == ("pope coco", "yesno", 6)
    last = found.samples[-1]
    assert (last.id, last.group, last.truth, last.image) == ("adversarial/2", "adversarial", "no", "b.jpg")
    assert last.prompt == "Is there an apple in the image? Please answer this question with one word."
    assert found.picture("b.jpg") == pictures / "b.jpg"
    assert len(found.notes) == 3
    first = tmp_path / "coco_pope_random.json"
    assert found.sources[str(first)] == hashlib.sha256(first.read_bytes()).hexdigest()
    one = read_pope(tmp_path, pictures, splits=["popular"])
    assert {sample.group for sample in one.samples} == {"popular"}
    assert one.samples[0].prompt == "Is there a dog in the image?"


def test_every_way_to_ask_ends_in_its_own_words():
    assert PROMPTS["llava"] == PROMPTS["lmms_eval"] == "\nAnswer the question using a single word or phrase."
    assert PROMPTS["vcd"] == " Please answer this question with one word."
    assert PROMPTS["cd_rethink"] == " Answer the question using a single word or phrase."
    assert PROMPTS["yes-please"] == PROMPTS["cd_rethink"] + " Answer yes whenever possible."
    assert PROMPTS["no-please"] == PROMPTS["cd_rethink"] + " Answer no whenever possible."
    alone = {name for name, after in PROMPTS.items() if not after}
    assert alone == {"question", "original", "opera", "avisc", "deco", "mod", "mgap"}


def test_files_may_be_named_one_by_one(tmp_path, pictures):
    paths = [write(tmp_path / name, [question(1)]) for name in ("own_pope_random.json", "night.jsonl")]
    assert [sample.id for sample in read_pope(paths, pictures, dataset="own").samples] == ["random/1", "night/1"]
    assert [sample.id for sample in read_pope(paths[0], pictures).samples] == ["random/1"]
    with pytest.raises(BenchmarkError, match="both the split 'random'"):
        read_pope([paths[0], paths[0]], pictures)
    with pytest.raises(BenchmarkError, match=r"no split 'popular'.*there are random, night"):
        read_pope(paths, pictures, splits=["popular"])


def test_the_name_without_seem_and_the_folder_of_a_dataset_are_found(tmp_path, pictures):
    (tmp_path / "gqa").mkdir()
    write(tmp_path / "gqa" / "gqa_pope_random.json", [question(1)])
    assert list(find_files(tmp_path, "gqa", "random")) == ["random"]
    with pytest.raises(BenchmarkError, match="no POPE files of 'coco' in it; there are gqa"):
        read_pope(tmp_path, pictures)
    with pytest.raises(BenchmarkError, match="no split 'popular' of gqa; there are random"):
        read_pope(tmp_path, pictures, dataset="gqa")
    with pytest.raises(BenchmarkError, match=r"called such as coco_pope_random\.json"):
        read_pope(pictures, pictures)


def test_missing_pictures_are_refused_or_left_out_with_a_note(tmp_path, pictures):
    path = write(tmp_path / "coco_pope_random.json", [question(1), question(2, image="c.jpg"), question(3, image="c.jpg")])
    with pytest.raises(BenchmarkError, match=r"1 of 2 pictures are missing, first c\.jpg"):
        read_pope(path, pictures)
    found = read_pope(path, pictures, missing="skip")
    assert [sample.id for sample in found.samples] == ["random/1"]
    assert "1 pictures are missing, first c.jpg; 2 of 3 samples are left out" in found.notes[-1]
    with pytest.raises(BenchmarkError, match="no such folder of pictures"):
        read_pope(path, tmp_path / "none")
    with pytest.raises(SettingError, match="unknown prompt 'polite': choose from question, original, llava"):
        read_pope(path, pictures, prompt="polite")


def test_labels_in_another_case_are_read_with_a_note(tmp_path):
    questions, notes = read_questions(write(tmp_path / "q.json", [question(1, "Yes"), question(2, "NO "), question(3)]))
    assert [q.label for q in questions] == ["yes", "no", "yes"]
    assert "2 labels are written 'Yes', 'NO ' and read as yes and no" in notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" \n\n", "empty"),
        ('{"question_id": 1, "ima', "line 1: the last line is cut off"),
        (json.dumps(question(1)) + "\n" + json.dumps(question(2))[:30], "line 2: the last line is cut off"),
        ('{"question_id": \n' + json.dumps(question(2)), "line 1: no JSON"),
        (json.dumps([question(1)])[:-4], "begins as a JSON array and is none"),
        ("[1]", "item 1: 1 is no JSON object"),
        ("[" * 100_000, "begins as a JSON array and is none"),
        ("hello", "neither JSON nor a CSV table"),
        (
            json.dumps({"question_id": 1, "image": "a.jpg", "label": "yes"}),
            "line 1: no 'text' among 'question_id', 'image', 'label'",
        ),
        (json.dumps(question(1, image="")), "line 1: image is ''; a question has question_id"),
        (json.dumps(question(None)), "line 1: question_id is None"),
        (json.dumps(question(True)), "line 1: question_id is True"),
        (
            json.dumps([question(1, "maybe"), question(2, "maybe"), question(3, None), question(4)]),
            r"3 of 4 labels .* 'maybe' \(2\), None \(1\)",
        ),
        (
            json.dumps([question(7), question("7"), question(8), question(8)]),
            "2 question ids stand more than once, first '7' in item 1",
        ),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, text, message):
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(BenchmarkError, match=message):
        read_questions(tmp_path / "q.json")


def test_a_file_that_is_missing_or_no_utf8_is_refused(tmp_path):
    with pytest.raises(BenchmarkError, match="no such file"):
        read_questions(tmp_path / "none.json")
    (tmp_path / "q.json").write_bytes(b'{"a": 1}\n{"b": "\xff"}\n')
    with pytest.raises(BenchmarkError, match="line 2: not UTF-8"):
        read_questions(tmp_path / "q.json")


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    (tmp_path / "q.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(question(1)).encode() + b"\r\n")
    assert read_questions(tmp_path / "q.json")[0][0].id == "1"


RECORDS = st.dictionaries(
    st.sampled_from(["question_id", "image", "text", "label", "x"]),
    st.one_of(
        st.integers(),
        st.text(max_size=5),
        st.sampled_from(["yes", "No", "a.jpg"]),
        st.none(),
        st.lists(st.integers(), max_size=1),
    ),
)


@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(RECORDS).map(lambda r: json.dumps(r).encode()),
        st.lists(RECORDS).map(lambda r: "\n".join(map(json.dumps, r)).encode()),
    )
)
def test_any_bytes_are_questions_or_one_of_our_errors(tmp_path_factory, data):
    path = Path(tmp_path_factory.getbasetemp()) / "any.json"
    path.write_bytes(data)
    try:
        questions, _ = read_questions(path)
    except MgapError:
        return
    assert all(q.label in ("yes", "no") and q.text and q.image for q in questions)
