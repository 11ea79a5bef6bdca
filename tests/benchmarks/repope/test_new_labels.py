"""RePOPE's labels on POPE's questions: the published counts, how a question is found, and what is refused."""

import json
import shutil

import pytest

from mgap.benchmarks.pope.questions import SPLITS, read_questions
from mgap.benchmarks.published_files import fetch, published
from mgap.benchmarks.repope.new_labels import Relabelling, labels_at_hand, read_new_labels
from mgap.benchmarks.repope.questions import read_repope
from mgap.errors import BenchmarkError
from mgap.types import Sample

CHANGES = {  # kept, dropped, turned to no, turned to yes
    "random": Relabelling(2774, 226, 139, 5),
    "popular": Relabelling(2727, 273, 139, 39),
    "adversarial": Relabelling(2684, 316, 139, 33),
}
POSITIVES = {"random": 1159, "popular": 1193, "adversarial": 1187}


@pytest.fixture(scope="module")
def labels(shared):
    return read_new_labels(shared / "data" / "repope")


def pairs(questions):
    return [(question.image, question.text) for question in questions]


def write(folder, **files):
    """A small RePOPE: by the part of the file's name before the split, the label of each question by its text."""
    folder.mkdir(exist_ok=True)
    for name, labelled in files.items():
        for split in SPLITS:
            rows = labelled if isinstance(labelled, dict) else labelled[SPLITS.index(split)]
            lines = [
                json.dumps({"question_id": number, "image": "a.jpg", "text": text, "label": label})
                for number, (text, label) in enumerate(rows.items(), start=1)
            ]
            (folder / f"coco_{name}_{split}.json").write_text("\n".join(lines) + "\n")
    return folder


DOG, CAT, CUP = (f"Is there a {name} in the image?" for name in ("dog", "cat", "cup"))


@pytest.mark.parametrize("split", SPLITS)
def test_the_published_files_change_popes_labels_as_the_paper_counts(shared, labels, split):
    questions, _ = read_questions(shared / "data" / "pope" / "coco" / f"coco_pope_{split}.json")
    new = labels.look_up(pairs(questions), "here")
    assert Relabelling.of(zip((q.label for q in questions), new, strict=True)) == CHANGES[split]
    assert new.count("yes") == POSITIVES[split]
    assert len({q.image for q, label in zip(questions, new, strict=True) if label}) == 500
    assert labels.note_on_ids(f"coco_pope_{split}.json", questions) == []


def test_there_is_one_table_for_all_splits(labels):
    assert sum(len(of_picture) for of_picture in labels.labels.values()) == 5127


def test_the_first_release_is_found_by_its_texts_though_its_ids_are_others(shared, labels):
    path = shared / "data" / "pope" / "coco" / "coco_pope_random_2910.json"
    questions, _ = read_questions(path)
    new = labels.look_up(pairs(questions), path)
    assert Relabelling.of(zip((q.label for q in questions), new, strict=True)) == Relabelling(2687, 223, 139, 5)
    assert labels.note_on_ids(path, questions) == [], "it does not claim to be the split"
    (note,) = labels.note_on_ids("copies/coco_pope_random.json", questions)
    assert "2893 of 2910 questions have another id in random" in note


@pytest.mark.parametrize("dataset", ["aokvqa", "gqa"])
def test_questions_about_other_datasets_are_refused(shared, labels, dataset):
    path = shared / "data" / "pope" / dataset / f"{dataset}_pope_seem_popular.json"
    with pytest.raises(
        BenchmarkError, match=r"of 3000 questions are not among those that RePOPE labelled, first .*COCO's three"
    ):
        labels.look_up(pairs(read_questions(path)[0]), path)


def test_words_behind_the_question_and_imange_do_no_harm(tmp_path):
    labels = read_new_labels(write(tmp_path, pope={DOG: "yes", CAT: "no", CUP: "yes"}, repope={DOG: "no", CAT: "no"}))
    asked = [DOG.replace("image", "imange") + "\nAnswer the question using a single word or phrase.", CAT, CUP]
    assert labels.look_up([("a.jpg", text) for text in asked], "here") == ["no", "no", None]
    for image, text in (("b.jpg", DOG), ("a.jpg", "Is there a bus in the image?"), ("a.jpg", DOG[:-1])):
        with pytest.raises(BenchmarkError, match="here: 1 of 1 questions are not among"):
            labels.look_up([(image, text)], "here")


def test_samples_get_their_new_truth_and_are_counted_by_split(tmp_path):
    labels = read_new_labels(write(tmp_path, pope={DOG: "yes", CAT: "no", CUP: "yes"}, repope={DOG: "no", CAT: "yes"}))
    truths = {DOG: "yes", CAT: "no", CUP: "yes"}
    samples = [Sample(f"{split}/{text}", "a.jpg", text, split, truths[text]) for split in SPLITS[:2] for text in truths]
    kept, changes = labels.relabel(samples, "here")
    assert [(sample.group, sample.truth) for sample in kept] == [
        ("random", "no"),
        ("random", "yes"),
        ("popular", "no"),
        ("popular", "yes"),
    ]
    assert changes == {"random": Relabelling(2, 1, 1, 1), "popular": Relabelling(2, 1, 1, 1)}
    assert str(changes["random"]) == "2 of 3 questions, labelled by RePOPE: 1 dropped, 1 turned to no, 1 to yes"


@pytest.mark.parametrize(
    "repope",
    [{DOG: "yes", CUP: "no"}, ({DOG: "yes"}, {DOG: "no"}, {DOG: "yes"}), ({DOG: "yes", CAT: "no"}, {DOG: "yes"}, {DOG: "yes"})],
    ids=["a question that POPE does not ask", "two labels", "dropped in one split"],
)
def test_files_that_contradict_each_other_are_refused(tmp_path, repope):
    with pytest.raises(
        BenchmarkError, match=r"coco_repope_\w+\.json: 1 questions are not in coco_pope.*, or are labelled otherwise"
    ):
        read_new_labels(write(tmp_path, pope={DOG: "yes", CAT: "no"}, repope=repope))


def test_the_six_files_are_fetched_and_a_wrong_one_is_refused(run, shared, tmp_path):
    (tmp_path / "repope").mkdir()
    for path in (shared / "data" / "repope").iterdir():
        shutil.copyfile(path, tmp_path / "repope" / path.name)
    assert fetch(published("repope"), tmp_path / "repope") == tmp_path / "repope"
    status, out, _ = run("fetch", "repope", "--to", tmp_path / "repope")
    assert status == 0
    assert out.count("(YanNeu/RePOPE, none stated)") == 6
    assert labels_at_hand([tmp_path / "pope" / "coco" / "coco_pope_random.json"]) == tmp_path / "repope"
    wrong = tmp_path / "repope" / "coco_repope_popular.json"
    wrong.write_text(wrong.read_text().replace('"yes"', '"no"', 1))
    status, _, told = run("fetch", "repope", "--to", tmp_path / "repope")
    assert status == 2
    assert f"{wrong}: not the published file" in told
    assert labels_at_hand([tmp_path / "pope" / "coco" / "coco_pope_random.json"]) is None, "labels that nobody published"


def test_the_benchmark_asks_what_was_kept_in_popes_words(shared, tmp_path):
    (tmp_path / "coco").mkdir()
    for image in {question.image for question in read_questions(shared / "data" / "repope" / "coco_pope_random.json")[0]}:
        (tmp_path / "coco" / image).write_bytes(b"pixels")
    found = read_repope(shared / "data", tmp_path / "coco", splits=["adversarial", "random"], prompt="vcd")
    assert (found.name, found.task, len(found.samples), len(found.sources)) == ("repope coco", "yesno", 2684 + 2774, 6)
    published_labels = {
        f"{split}/{q.id}": (q.image, f"{q.text} Please answer this question with one word.", q.label)
        for split in ("random", "adversarial")
        for q in read_questions(shared / "data" / "repope" / f"coco_repope_{split}.json")[0]
    }
    assert {s.id: (s.image, s.prompt, s.truth) for s in found.samples} == published_labels
    assert found.notes == tuple(f"{split}: {CHANGES[split]}" for split in ("adversarial", "random"))


def test_a_folder_without_the_files_is_refused(tmp_path):
    with pytest.raises(BenchmarkError, match=r"coco_pope_random\.json: no such file"):
        read_repope(tmp_path, tmp_path)
    with pytest.raises(BenchmarkError, match="no such folder of repope's files"):
        read_repope(tmp_path / "none", tmp_path)
