"""HallusionBench's file: what is in it, what is asked, and what is refused."""

import json
from collections import Counter

import pytest
from PIL import Image

from mgap.benchmarks.hallusionbench.questions import FILE, QuestionId, read_file, read_hallusionbench
from mgap.errors import BenchmarkError, SettingError

ROW = {
    "category": "VD", "subcategory": "illusion", "visual_input": "1", "set_id": "0", "figure_id": "0", "sample_note": "",
    "question_id": "0", "question": "Is it?", "gt_answer_details": "", "gt_answer": "1",
    "filename": "./hallusion_bench/VD/illusion/0_0.png",
}  # fmt: skip
UNSHOWN = {**ROW, "category": "VS", "subcategory": "chart", "visual_input": "0", "gt_answer": "0", "filename": None}


def write(folder, *rows):
    (folder / FILE).write_text(json.dumps(rows))
    (folder / "VD" / "illusion").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32)).save(folder / "VD" / "illusion" / "0_0.png")
    return folder


def test_the_published_file_has_the_published_counts(shared):
    questions = read_file(shared / "data" / "hallusionbench")
    assert len(questions) == len({q.id for q in questions}) == 1129
    assert Counter(q.label for q in questions) == {"yes": 484, "no": 645}
    places = {q.id: QuestionId.of(q.id) for q in questions}
    by_kind = Counter((places[q.id].category, q.visual_input) for q in questions)
    assert by_kind == {("VD", 1): 277, ("VD", 2): 314, ("VS", 0): 178, ("VS", 1): 170, ("VS", 2): 190}
    figures = {place.whole_figure for place in places.values()} - {None}
    pairs, sets = (Counter(getattr(place, kind) for place in places.values()) for kind in ("pair", "whole_set"))
    assert Counter(name[:2] for name in figures) == {"VD": 230, "VS": 116}
    assert Counter(name[:2] for name in pairs) == {"VD": 277, "VS": 178}
    assert Counter(pairs.values()) == {1: 3, 2: 256, 3: 170, 4: 26}
    assert len(sets) == 167
    assert len({q.image for q in questions if q.image}) == 346
    assert all(bool(q.image) == (q.visual_input > 0) for q in questions)


def test_a_question_without_a_picture_names_none_and_the_prompt_is_the_question(tmp_path):
    benchmark = read_hallusionbench(write(tmp_path, ROW, UNSHOWN), tmp_path)
    assert [(s.id, s.image, s.prompt, s.group, s.truth) for s in benchmark.samples] == [
        ("VD/illusion/0/0/0", "VD/illusion/0_0.png", "Is it?", "VD", "yes"),
        ("VS/chart/0/0/0", "", "Is it?", "VS", "no"),
    ]
    assert benchmark.notes == ("1 questions of the file come without a picture, and are asked as text alone",)
    only = read_hallusionbench(tmp_path, tmp_path, pictures="only", prompt="yes-or-no")
    assert [(s.id, s.prompt) for s in only.samples] == [("VD/illusion/0/0/0", "Is it? Please answer yes or no.")]
    assert (only.lexicon["pictures"], only.lexicon["prompt"]) == ("only", "yes-or-no")


def test_missing_pictures_are_refused_or_left_out_and_questions_without_one_stay(tmp_path):
    other = {**ROW, "set_id": "1", "filename": "./VD/illusion/1_0.png"}
    write(tmp_path, ROW, other, UNSHOWN)
    with pytest.raises(BenchmarkError, match=r"1 of 2 pictures are missing, first VD/illusion/1_0\.png"):
        read_hallusionbench(tmp_path, tmp_path)
    assert len(read_hallusionbench(tmp_path, tmp_path, missing="skip").samples) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"visual_input": "3"}, "visual_input '3', gt_answer '1'"),
        ({"gt_answer": "2"}, "gt_answer '2'"),
        ({"filename": None}, "which is null where visual_input is 0"),
        ({"visual_input": "0"}, "which is null where visual_input is 0"),
        ({"category": "VX"}, "'VX/illusion/0/0/0' is no id"),
        ({"subcategory": "a/b"}, "no part has a slash"),
        ({"question": " "}, "question is ' '"),
        ({"set_id": None}, "set_id is None"),
        ({"filename": "../../etc/passwd.png"}, "is not below"),
    ],
)
def test_what_a_question_must_not_be_is_refused_with_its_place(tmp_path, change, message):
    with pytest.raises(BenchmarkError) as refusal:
        read_hallusionbench(write(tmp_path, {**ROW, **change}), tmp_path)
    assert message in str(refusal.value)
    assert "item 1" in str(refusal.value) or "is not below" in message


def test_repeats_and_unknown_settings_are_refused(tmp_path):
    with pytest.raises(BenchmarkError, match="1 ids stand more than once, first 'VD/illusion/0/0/0' in item 1 and item 2"):
        read_hallusionbench(write(tmp_path, ROW, ROW), tmp_path)
    write(tmp_path, ROW)
    for name, value in (("pictures", "none"), ("prompt", "short")):
        with pytest.raises(SettingError, match=f"{name}='{value}': choose from"):
            read_hallusionbench(tmp_path, tmp_path, **{name: value})
