"""Benchmark readers: any file is a benchmark, or refused in a sentence that names it."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.amber.questions import read_amber
from mgap.benchmarks.caption_pairs import read_caption_pairs
from mgap.benchmarks.chair.questions import read_captions, read_chair
from mgap.benchmarks.hallusionbench.predictions import read_answers as read_hallusion_answers
from mgap.benchmarks.hallusionbench.questions import FILE, read_hallusionbench
from mgap.benchmarks.own import read_own
from mgap.benchmarks.pope.answer_files import MISSING, read_answers
from mgap.benchmarks.pope.builder import build_pope, read_annotations, to_lines
from mgap.benchmarks.pope.questions import SPLITS, read_pope, read_questions
from mgap.benchmarks.repope.new_labels import read_new_labels
from mgap.benchmarks.yesno_questions import YesNoQuestion
from mgap.errors import BenchmarkError
from mgap.io.record_files import read_rows
from tests.fuzz.damage import Refused, byte_files, cases, json_files, line_files, outcome

ASKED = [
    {"question_id": 1, "image": "a.jpg", "text": "Is there a dog in the imange?", "label": "yes"},
    {"question_id": "b-2", "image": "b.jpg", "text": "Is there an owl\nin the image?", "label": "No"},
]
QUESTIONS = [YesNoQuestion("1", "a.jpg", "Is there a dog?", "yes"), YesNoQuestion("2", "b.jpg", "Is there an owl?", "no")]
ANSWERED = [{"question_id": 1, "text": "Yes."}, {"question_id": "2", "text": "No"}]
IN_ORDER = [{"question": "Is there a dog?", "answer": "yes"}, {"question": "Is there an owl?", "answer": "no"}]
OWN = [
    {"id": 1, "image": "a.jpg", "question": "A dog?", "label": "yes", "group": "g"},
    {"id": "two", "image": "b.jpg", "question": "An owl?", "label": "NO ", "group": 7},
]
TABLE = b'image,question,label,id\r\na.jpg,"A dog, or ""two""?",yes,1\r\nb.jpg,An owl?,no,2\r\n'
PAIRS = [
    {"image": "a.jpg", "prompt": "Describe it.", "true": "A dog.", "false": "A dog and an owl."},
    {"image": "b.jpg", "true": "An owl.", "false": "An owl, and an ant."},
]
OBJECTS = [{"image": "a.jpg", "objects": ["car", "dog", "car"]}, {"image": "b.jpg", "objects": ["owl", "ant"]}]
CAPTIONS = [{"image_id": 1, "caption": "A dog."}, {"image_id": "000000000002", "caption": ""}]
TRUTH = {"1": {"segmentation": ["dog"], "caption_only": []}, "2": ["cat", "dog"], "3": []}
SETS = {"few": [1, 2], "haltrapper_fixed_500": ["1", "3"]}
INSTANCES = {
    "images": [{"id": 1}, {"id": 2}],
    "categories": [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}],
    "annotations": [{"image_id": 1, "category_id": 18}, {"image_id": 2, "category_id": 17}],
}
TOLD = {
    "images": [{"id": 1, "file_name": "COCO_val2014_000000000001.jpg"}, {"id": 2, "file_name": "b.jpg"}],
    "annotations": [{"image_id": 1, "caption": "A dog."}, {"image_id": 2, "caption": "A cat."}],
}
AMBER = {
    "annotations.json": [
        {"id": 1, "type": "generative", "truth": ["dog"], "hallu": ["cat"]},
        {"id": 2, "type": "discriminative-hallucination", "truth": "no"},
    ],
    "query/query_all.json": [
        {"id": 1, "image": "a.jpg", "query": "Describe {} this image."},
        {"id": 2, "image": "b.jpg", "query": "Is there an owl?"},
    ],
    "relation.json": {"dog": ["puppy"], "cat": []},
    "safe_words.txt": "sky\nsun\n",
}
_PLACE = {"category": "VS", "subcategory": "chart", "set_id": "0", "question_id": "0", "question": "A dog?"}
HALLUSION = [
    {**_PLACE, "figure_id": "0", "visual_input": "0", "gt_answer": "0", "filename": None},
    {**_PLACE, "figure_id": "1", "visual_input": "1", "gt_answer": "1", "filename": "./VS/chart/0_1.png"},
]
IDS = {"VS/chart/0/0/0": "A dog?", "VS/chart/0/1/0": "A dog?"}
BY_ID = [{"question_id": "VS_chart_0_0_0", "text": "No"}, {"question_id": "VS/chart/0/1/0", "text": ""}]
BY_PLACE = [{**HALLUSION[0], "model_prediction": "Yes"}, {**HALLUSION[1], "model_prediction": "No"}]


@pytest.fixture(scope="module")
def pictures(place):
    (place / "pictures" / "VS" / "chart").mkdir(parents=True)
    (place / "pictures" / "VS" / "chart" / "0_1.png").write_bytes(b"png")
    for name in ("a.jpg", "b.jpg", *(f"COCO_val2014_{number:012d}.jpg" for number in (1, 2, 3))):
        (place / "pictures" / name).write_bytes(b"jpeg")
    return place / "pictures"


def check_samples(found):
    if isinstance(found, Refused):
        return
    assert found.samples
    assert len({sample.id for sample in found.samples}) == len(found.samples)
    assert all(isinstance(text, str) and text for s in found.samples for text in (s.id, s.image, s.prompt, s.group))
    json.dumps([asdict(sample) for sample in found.samples], ensure_ascii=False).encode()


@cases(50)
@given(st.one_of(line_files(ASKED), json_files(ASKED), byte_files(TABLE)))
def test_rows_are_objects_with_their_place(place, data):
    (place / "rows").write_bytes(data)
    found = outcome(read_rows, place / "rows", names="rows")
    if not isinstance(found, Refused):
        assert found == [] or all(isinstance(row.data, dict) and row.where for row in found)


@cases(50)
@given(
    st.lists(
        st.dictionaries(st.text(), st.one_of(st.text(), st.integers(-(10**9), 10**9), st.booleans(), st.none()), min_size=1),
        min_size=1,
    )
)
def test_rows_that_were_written_as_lines_or_as_an_array_are_read_again(place, records):
    (place / "lines").write_text("".join(json.dumps(record) + "\n" for record in records))
    (place / "array").write_text(json.dumps(records))
    assert [row.data for row in read_rows(place / "lines")] == records
    assert [row.data for row in read_rows(place / "array")] == records


@cases(50)
@given(st.one_of(line_files(ASKED), json_files(ASKED)))
def test_popes_questions(place, pictures, data):
    (place / "coco_pope_random.json").write_bytes(data)
    found = outcome(read_questions, place / "coco_pope_random.json", names="coco_pope_random.json")
    if not isinstance(found, Refused):
        assert all(q.label in ("yes", "no") and q.id and q.text.strip() and q.image.strip() for q in found[0])
    check_samples(outcome(read_pope, place, pictures, splits=["random"]))


@cases(30)
@given(st.one_of(line_files(ASKED), json_files(ASKED)))
def test_repopes_labels_of_them(place, data):
    folder = place / "repope"
    folder.mkdir(exist_ok=True)
    for split in SPLITS:
        (folder / f"coco_pope_{split}.json").write_text(json.dumps(ASKED))
        (folder / f"coco_repope_{split}.json").write_bytes(data)
    labels = outcome(read_new_labels, folder, names="coco_repope_random.json")
    if not isinstance(labels, Refused):
        found = labels.look_up([(row["image"], f"{row['text']} Answer in a word.") for row in ASKED], "here")
        assert set(found) <= {"yes", "no", None}


@cases(50)
@given(st.one_of(line_files(ANSWERED), json_files(ANSWERED), line_files(IN_ORDER)), st.sampled_from(MISSING))
def test_answers_to_them(place, data, missing):
    (place / "answers").write_bytes(data)
    found = outcome(read_answers, place / "answers", QUESTIONS, missing, names="answers")
    if not isinstance(found, Refused):
        pairs, notes = found
        assert all(text is None or isinstance(text, str) for _, text in pairs)
        assert len(pairs) == 2 or missing == "skip"
        assert len(notes) == any(text is None for _, text in pairs) + (len(pairs) < 2)


@cases(50)
@given(st.one_of(line_files(OWN), json_files(OWN), byte_files(TABLE)), st.booleans(), st.sampled_from(("refuse", "skip")))
def test_own_questions(place, pictures, data, has_labels, missing):
    (place / "mine").write_bytes(data)
    check_samples(outcome(read_own, place / "mine", pictures, has_labels=has_labels, missing=missing))


@cases(30)
@given(st.one_of(line_files(PAIRS), json_files(PAIRS)))
def test_pairs_of_captions(place, pictures, data):
    (place / "pairs").write_bytes(data)
    found = outcome(read_caption_pairs, place / "pairs", pictures)
    if not isinstance(found, Refused):
        assert found[0]
        assert all(text.strip() for pair in found[0] for text in (pair.prompt, pair.true, pair.false))
        assert all(pair.image.is_file() for pair in found[0])


@cases(50)
@given(st.one_of(line_files(OBJECTS), json_files(OBJECTS)))
def test_annotations_that_pope_is_built_from(place, data):
    (place / "objects").write_bytes(data)
    found = outcome(read_annotations, place / "objects", names="objects")
    if isinstance(found, Refused):
        return
    built = outcome(build_pope, found[0], per_image=1, count=max(1, len(found[0])))
    if isinstance(built, Refused):
        return
    for questions in built.values():
        (place / "built").write_bytes(outcome(to_lines, questions).encode())
        again, _ = read_questions(place / "built")
        assert [(q.image, q.label) for q in again] == [(q.image, q.label) for q in questions]


@cases(50)
@given(st.one_of(line_files(CAPTIONS), json_files(CAPTIONS)))
def test_captions(place, data):
    (place / "captions").write_bytes(data)
    found = outcome(read_captions, place / "captions", names="captions")
    if not isinstance(found, Refused):
        assert all(isinstance(number, int) and isinstance(text, str) for number, text in found)


@cases(50)
@given(json_files(TRUTH), json_files(SETS), st.sampled_from((None, "few", "2", "1" * 5000, "x" * 300, "few.txt")), st.data())
def test_chairs_ground_truth_and_sets_of_pictures(place, pictures, truth, sets, chosen, data):
    folder = place / "chair-truth"
    folder.mkdir(exist_ok=True)
    (folder / "gt_val2014.json").write_bytes(truth if data.draw(st.booleans()) else json.dumps(TRUTH).encode())
    (folder / "image_sets.json").write_bytes(sets)
    if chosen == "few.txt":
        chosen = str(folder / chosen)
        lines = data.draw(byte_files(b"1\n\nCOCO_val2014_000000000002.jpg\n3.png\n"))
        (folder / "few.txt").write_bytes(lines)
    check_samples(outcome(read_chair, folder, pictures, image_set=chosen, missing="skip"))


@cases(50)
@given(json_files(INSTANCES), json_files(TOLD), st.booleans())
def test_cocos_annotations(place, pictures, instances, told, whole):
    folder = place / "coco"
    folder.mkdir(exist_ok=True)
    (folder / "instances_val2014.json").write_bytes(json.dumps(INSTANCES).encode() if whole else instances)
    (folder / "captions_val2014.json").write_bytes(told)
    check_samples(outcome(read_chair, folder, pictures, image_set="1", missing="skip", named=str.split))


@cases(50)
@given(st.sampled_from(sorted(AMBER)), st.data(), st.sampled_from(("a", "g", "de", "g,de")))
def test_ambers_files(place, pictures, name, data, kinds):
    (place / "amber" / "query").mkdir(parents=True, exist_ok=True)
    for each, value in AMBER.items():
        whole = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        (place / "amber" / each).write_bytes(whole)
    damaged = byte_files(AMBER[name].encode()) if isinstance(AMBER[name], str) else json_files(AMBER[name])
    (place / "amber" / name).write_bytes(data.draw(damaged))
    check_samples(outcome(read_amber, place / "amber", pictures, kinds=kinds, missing="skip"))


@cases(50)
@given(st.one_of(line_files(HALLUSION), json_files(HALLUSION)), st.sampled_from(("all", "only")))
def test_hallusionbenchs_questions(place, pictures, data, shown):
    (place / FILE).write_bytes(data)
    found = outcome(read_hallusionbench, place, pictures, pictures=shown, missing="skip")
    if not isinstance(found, Refused):
        assert all(s.id.count("/") == 4 and s.prompt.strip() and s.truth in ("yes", "no") for s in found.samples)
        assert all(bool(s.image) == (found.lexicon["visual_input"][s.id] > 0) for s in found.samples)
        json.dumps([asdict(sample) for sample in found.samples], ensure_ascii=False).encode()


@cases(50)
@given(st.one_of(line_files(BY_ID), json_files(BY_ID), json_files(BY_PLACE)), st.sampled_from(("refuse", "skip")))
def test_answers_to_hallusionbench(place, data, missing):
    (place / "answers").write_bytes(data)
    found = outcome(read_hallusion_answers, place / "answers", IDS, list(IDS), missing, names="answers")
    if not isinstance(found, Refused):
        texts, _ = found
        assert texts.keys() <= IDS.keys()
        assert all(isinstance(text, str) for text in texts.values())
        assert len(texts) == 2 or missing == "skip"


def test_a_file_that_is_no_file_is_refused(place):
    for path in (place, place / ("x" * 300), place / "none" / "such", "/dev/null"):
        with pytest.raises(BenchmarkError):
            read_rows(path)
