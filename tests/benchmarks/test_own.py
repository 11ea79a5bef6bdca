"""A user's own questions, as JSON lines and as CSV, with every mistake pointed to by its line."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.own import read_own
from mgap.errors import BenchmarkError, MgapError

GUIDE = Path(__file__).parents[2] / "docs" / "benchmarks" / "own.md"
HEADER = "image,question,label\n"
LINE = '{"image": "a.jpg", "question": "A?", "label": "yes"}'


@pytest.fixture
def folder(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"pixels")
    return tmp_path


def write(folder, text, name="own.csv"):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_table_and_lines_give_the_same_benchmark(folder):
    table = write(folder, 'image,question,label,id,group\na.jpg,"Is it red, or not?",Yes,q1,colour\nb.jpg,A dog?,no,q2,thing\n')
    records = [
        {"image": "a.jpg", "question": "Is it red, or not?", "label": "Yes", "id": "q1", "group": "colour"},
        {"image": "b.jpg", "question": "A dog?", "label": "no", "id": "q2", "group": "thing"},
    ]
    lines = write(folder, "\n".join(map(json.dumps, records)), "own.jsonl")
    one, other = read_own(table), read_own(lines)
    assert one.samples == other.samples
    assert (one.name, one.task) == ("own", "yesno")
    first = one.samples[0]
    assert (first.id, first.image, first.prompt, first.group, first.truth) == (
        "q1",
        "a.jpg",
        "Is it red, or not?",
        "colour",
        "yes",
    )
    assert one.picture("a.jpg") == folder / "a.jpg"
    assert "1 labels are written 'Yes'" in one.notes[0]


def test_ids_and_groups_are_optional_and_other_columns_are_told(folder, tmp_path):
    path = write(folder, "image,question,label,who\na.jpg,A dog?,yes,me\n\nb.jpg,A cat?,no,you\n")
    found = read_own(path, prompt="llava")
    assert [(sample.id, sample.group) for sample in found.samples] == [("1", "all"), ("2", "all")]
    assert found.samples[0].prompt == "A dog?\nAnswer the question using a single word or phrase."
    assert found.notes == (f"{path}: not used: who",)


def test_pictures_may_lie_elsewhere_and_missing_ones_are_named(folder):
    (folder / "data").mkdir()
    path = write(folder / "data", HEADER + "a.jpg,A dog?,yes\nc.jpg,A cat?,no\n")
    assert len(read_own(path, folder, missing="skip").samples) == 1
    with pytest.raises(BenchmarkError, match=r"1 of 2 pictures are missing, first c\.jpg"):
        read_own(path, folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (HEADER, "with a record below its header"),
        ("image,label\na.jpg,yes\n", "line 2: no 'question' among 'image', 'label'; a record has image, question, label"),
        ("image;question;label\na.jpg;A dog?;yes\n", "no 'image' among 'image;question;label'"),
        (HEADER + "a.jpg,A dog?\n", "line 2: 2 cells under 3 columns; cut off"),
        (HEADER + "a.jpg,A dog, or a cat?,yes\n", "line 2: 4 cells under 3 columns"),
        (HEADER + 'a.jpg,"A dog?,yes\n', "line 2: unexpected end of data; cut off"),
        (HEADER + "a.jpg,A dog?,yes\na.jpg,A cat?,dunno\n", r"1 of 2 labels .* first in line 3: 'dunno' \(1\)"),
        (HEADER + "a.jpg,,yes\n", "line 2: question is ''"),
        ("image,question,label,id\na.jpg,A,yes,1\na.jpg,B,no,1\n", "1 ids stand more than once, first '1' in line 2"),
        ("image,image,label\n", "line 1: a column stands twice"),
        (b"image,question,label\na.jpg,caf\xe9?,yes\n", "line 2: not UTF-8"),
        (f"{LINE}\n{LINE[:12]}", "line 2: the last line is cut off"),
        (f'{LINE[:-1]}, "id": 1}}\n{LINE}', "line 2: no 'id'"),
    ],
)
def test_mistakes_are_pointed_to_by_their_line(folder, text, message):
    with pytest.raises(BenchmarkError, match=message):
        read_own(write(folder, text))


@given(st.one_of(st.binary(max_size=80), st.text(alphabet='abimage,questionlabel\n"yes{}[]:', max_size=80).map(str.encode)))
def test_any_bytes_are_questions_or_one_of_our_errors(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(data)
    try:
        found = read_own(path)
    except MgapError:
        return
    assert found.samples


def convert(heading):
    """Run the guide's block below this heading."""
    block = re.search(rf"^## {heading}\n.*?^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[1]
    exec(compile(block, str(GUIDE), "exec"), {})


def test_dash_b_becomes_own_questions_as_the_guide_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, names in (("pos", ["1.png", "2.png"]), ("neg", ["3.png"])):
        place = tmp_path / "images" / folder / "coco" / "teddy bear"
        place.mkdir(parents=True)
        for name in names:
            (place / name).write_bytes(b"pixels")
        (tmp_path / "images" / f"dash_benchmark_{folder}.json").write_text(json.dumps({"coco": {"teddy bear": names}}))
    convert("DASH-B")
    found = read_own("dash-b.jsonl", "images")
    assert [(s.image, s.truth) for s in found.samples] == [
        ("pos/coco/teddy bear/1.png", "yes"), ("pos/coco/teddy bear/2.png", "yes"), ("neg/coco/teddy bear/3.png", "no"),
    ]  # fmt: skip
    assert {s.prompt for s in found.samples} == {"Can you see a teddy bear in this image? Please answer only with yes or no."}


def test_r_bench_becomes_own_questions_as_the_guide_says(folder, monkeypatch):
    monkeypatch.chdir(folder)
    records = [
        {"question_id": 7, "image": "a.jpg", "text": "Is the dog on the bed?", "label": "Yes"},
        {"question_id": 9, "image": "b.jpg", "text": "Is the cup under the table?", "label": "no"},
    ]
    Path("image-level_filterd.json").write_text(json.dumps(records))
    convert("R-Bench")
    found = read_own("r-bench.jsonl", folder)
    assert [(s.id, s.prompt, s.truth) for s in found.samples] == [
        ("7", "Is the dog on the bed?", "yes"), ("9", "Is the cup under the table?", "no"),
    ]  # fmt: skip
    assert found.notes == ()
