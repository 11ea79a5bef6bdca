"""POPE from annotations, against the published builder's questions and by hand."""

import json

import pytest

from mgap.benchmarks.pope.builder import Annotated, ask_for, build_pope, companions, frequencies, read_annotations, to_lines
from mgap.benchmarks.pope.questions import SPLITS, read_questions
from mgap.errors import BenchmarkError, SettingError

STREET = [
    Annotated("a.jpg", ("car", "person")),
    Annotated("b.jpg", ("car", "person", "dog")),
    Annotated("c.jpg", ("person", "umbrella")),
    Annotated("d.jpg", ("apple", "knife", "fork")),
]


def records(questions):
    return [{"question_id": int(q.id), "image": q.image, "text": q.text, "label": q.label} for q in questions]


def test_the_published_builders_questions_come_out(shared, tmp_path):
    folder = shared / "fixtures" / "benchmarks" / "pope"
    given, expected = (json.loads((folder / f"build_{name}.json").read_text()) for name in ("input", "expected"))
    path = tmp_path / "annotations.jsonl"
    path.write_text("\n".join(map(json.dumps, given["images"])))
    pictures, notes = read_annotations(path)
    assert notes == []
    built = build_pope(pictures, per_image=given["per_image"], count=given["count"], seed=given["seed"])
    assert records(built["popular"]) == expected["popular"]
    assert records(built["adversarial"]) == expected["adversarial"]
    assert records(built["random"]) == expected["random_same_call_order"]
    order = {name: place for place, name in enumerate(given["drawn"])}
    drawn = sorted((picture for picture in pictures if picture.image in order), key=lambda picture: order[picture.image])
    assert list(dict.fromkeys(q.image for q in built["random"])) == given["drawn"]
    assert list(frequencies(drawn).items()) == list(expected["object_frequency"].items())
    assert companions(drawn) == expected["co_occurrence_order"]


def test_every_split_by_hand():
    built = build_pope(STREET, per_image=2, count=4, seed=3)
    assert {split: len(questions) for split, questions in built.items()} == dict.fromkeys(SPLITS, 16)
    for questions in built.values():
        assert [q.label for q in questions] == ["yes", "no"] * 8
        assert [q.id for q in questions] == [str(number) for number in range(1, 17)]
        assert all((q.text.split()[-4] in dict(STREET)[q.image]) == (q.label == "yes") for q in questions)
        assert len({(q.image, q.text) for q in questions}) == 16
    of_d = [q.text for q in built["popular"] if q.image == "d.jpg" and q.label == "no"]
    assert of_d == ["Is there a person in the image?", "Is there a car in the image?"]
    of_a = [q.text for q in built["adversarial"] if q.image == "a.jpg" and q.label == "no"]
    assert of_a == ["Is there a dog in the image?", "Is there an umbrella in the image?"]


def test_a_ranking_that_runs_out_is_filled_up_at_random():
    apart = [Annotated("a.jpg", ("car",)), Annotated("b.jpg", ("dog",)), Annotated("c.jpg", ("cup",))]
    built = build_pope(apart, per_image=1, count=3)  # nothing is ever beside anything
    assert [q.label for q in built["adversarial"]] == ["yes", "no"] * 3


def test_the_same_seed_gives_the_same_questions_and_another_seed_others():
    assert build_pope(STREET, per_image=2, count=4, seed=1) == build_pope(STREET, per_image=2, count=4, seed=1)
    assert len({to_lines(build_pope(STREET, per_image=2, count=4, seed=seed)["random"]) for seed in range(5)}) > 1


def test_only_the_article_changes():
    assert ask_for("apple") == "Is there an apple in the image?"
    assert ask_for("Umbrella") == "Is there an Umbrella in the image?"
    assert ask_for("car") == "Is there a car in the image?"


def test_what_is_written_is_read_again(tmp_path):
    questions = build_pope(STREET, per_image=2, count=4)["popular"]
    (tmp_path / "own_pope_popular.json").write_text(to_lines(questions))
    assert read_questions(tmp_path / "own_pope_popular.json") == (questions, [])


def test_too_little_to_ask_about_is_refused():
    with pytest.raises(BenchmarkError, match="2 of 4 pictures have at least 3 objects, and 9 are to be drawn"):
        build_pope(STREET, count=9)
    assert build_pope(STREET, count=2)["random"]  # three others are just enough
    with pytest.raises(BenchmarkError, match="shows 3 of the 3 objects of the drawn pictures: there are no 3 others"):
        build_pope(STREET, count=1)


def test_impossible_numbers_are_refused():
    with pytest.raises(SettingError, match="per_image=0"):
        build_pope(STREET, per_image=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"image": "a.jpg"}', "line 1: objects is None, no list of names"),
        ('{"image": "a.jpg", "objects": ["car", 1]}', "no list of names"),
        ('{"image": "a.jpg", "objects": "car"}', "no list of names"),
        ('{"objects": ["car"]}', "line 1: no 'image'"),
        (
            '[{"image": "a.jpg", "objects": []}, {"image": "a.jpg", "objects": []}]',
            "1 pictures stand more than once, first 'a.jpg'",
        ),
    ],
)
def test_annotations_that_cannot_be_used_are_refused(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BenchmarkError, match=message):
        read_annotations(tmp_path / "a.json")


def test_an_object_listed_twice_counts_once(tmp_path):
    (tmp_path / "a.json").write_text('{"image": "a.jpg", "objects": ["car", "dog", " car"]}')
    pictures, notes = read_annotations(tmp_path / "a.json")
    assert pictures == [Annotated("a.jpg", ("car", "dog"))]
    assert "1 pictures list an object more than once" in notes[0]
