"""CHAIR's pictures, prompts, ground truth and captions as they are read, and what is refused."""

import json

import pytest

from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.chair.questions import PROMPTS, read_captions, read_chair, read_lexicon
from mgap.benchmarks.chair.scorer import ChairScorer
from mgap.benchmarks.chair.truth import find_truth
from mgap.errors import BenchmarkError, SettingError

TRUTH = {
    "73": {"segmentation": ["motorcycle"], "caption_only": ["bicycle", "chair"]},
    "74": {"segmentation": ["dog", "person"], "caption_only": []},
    "133": {"segmentation": [], "caption_only": ["bed"]},
}


@pytest.fixture
def data(tmp_path):
    (tmp_path / "chair").mkdir()
    (tmp_path / "chair" / "gt_val2014.json").write_text(json.dumps(TRUTH))
    return tmp_path


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "val2014"
    folder.mkdir()
    for name in TRUTH:
        (folder / f"COCO_val2014_{int(name):012d}.jpg").write_bytes(b"a picture")
    return folder


@pytest.fixture
def annotations(tmp_path):
    """COCO's own files, with two pictures in both kinds and one in the instances only."""
    folder = tmp_path / "annotations"
    folder.mkdir()
    pictures = [{"id": number, "file_name": f"COCO_val2014_{number:012d}.jpg"} for number in (73, 74, 133)]
    instances = {
        "images": pictures,
        "categories": [{"id": 4, "name": "motorcycle"}, {"id": 18, "name": "dog"}],
        "annotations": [
            {"image_id": 73, "category_id": 4},
            {"image_id": 73, "category_id": 4},
            {"image_id": 133, "category_id": 18},
        ],
    }
    captions = {
        "images": pictures[:2],
        "annotations": [{"image_id": 73, "caption": "A bike by two chairs"}, {"image_id": 74, "caption": "Women with dogs."}],
    }
    (folder / "instances_val2014.json").write_text(json.dumps(instances))
    (folder / "captions_val2014.json").write_text(json.dumps(captions))
    return tmp_path


def listed(folder, *lines):
    path = folder / "mine.txt"
    path.write_text("\n".join(lines))
    return str(path)


def test_a_list_of_pictures_becomes_samples(data, images):
    found = read_chair(data, images, image_set=listed(data, "74", "", "COCO_val2014_000000000073.jpg"), prompt="opera")
    assert (found.name, found.task) == ("chair mine", "captions")
    first, second = found.samples
    assert (first.id, first.image, first.group) == ("74", "COCO_val2014_000000000074.jpg", "captions")
    assert first.truth == ["dog", "person"]
    assert second.truth == ["bicycle", "chair", "motorcycle"]
    assert first.prompt == "Please describe this image in detail."
    assert found.picture(first.image) == images / first.image
    assert list(found.sources) == [str(data / "chair" / "gt_val2014.json")]
    assert ChairScorer.of(found.lexicon).mentions("Dogs").nodes == ("dog",)


def test_a_benchmark_is_plain_json_but_for_its_pictures(data, images):
    found = read_chair(data, images, image_set="3")
    assert json.loads(json.dumps(dict(found.lexicon)))["double_words"]["baby dog"] == "dog"


def test_drawn_pictures_depend_on_the_seed_only(data, images):
    names = [[s.id for s in read_chair(data, images, image_set="2", seed=seed).samples] for seed in (0, 0, 1, 2, 3)]
    assert names[0] == names[1]
    assert len({tuple(name) for name in names}) > 1
    assert read_chair(data, images, image_set="2", seed=5).name == "chair 2 drawn with seed 5"


def test_train_pictures_are_known_and_not_drawn(data, images):
    (data / "chair" / "gt_train2014.json").write_text(json.dumps({"9": ["bowl"]}))
    assert {s.id for s in read_chair(data, images, image_set="3").samples} == set(TRUTH)
    truth = find_truth(data, Lexicon.coco())
    assert (truth.of([9]), truth.pictures[9]) == ({9: ["bowl"]}, "COCO_train2014_000000000009.jpg")


def test_published_sets_go_by_their_name_and_the_papers_is_the_default(data, images):
    (data / "chair" / "image_sets.json").write_text(json.dumps({"haltrapper_fixed_500": [133, 73], "opera_500": [74]}))
    assert [s.id for s in read_chair(data, images).samples] == ["133", "73"]
    assert [s.id for s in read_chair(data, images, image_set="opera_500").samples] == ["74"]
    with pytest.raises(SettingError, match="choose from haltrapper_fixed_500, opera_500; or give a file"):
        read_chair(data, images, image_set="mod_500")


def test_without_a_published_set_pictures_are_drawn_with_a_note(data, images, monkeypatch):
    monkeypatch.setattr("mgap.benchmarks.chair.questions.SAMPLE", 2)
    found = read_chair(data, images)
    assert len(found.samples) == 2
    assert "drawn with seed 0" in found.notes[0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [(["74", "5"], "1 of 2 image ids have no ground truth, first 5"), (["74", "74"], "twice"), (["a dog"], "line 1: 'a dog'")],
)
def test_lists_that_cannot_be_used_are_refused(data, images, lines, message):
    with pytest.raises(BenchmarkError, match=message):
        read_chair(data, images, image_set=listed(data, *lines))


def test_missing_pictures_are_refused_or_left_out(data, images):
    (images / "COCO_val2014_000000000074.jpg").unlink()
    with pytest.raises(BenchmarkError, match="1 of 3 pictures are missing"):
        read_chair(data, images, image_set="3")
    found = read_chair(data, images, image_set="3", missing="skip")
    assert len(found.samples) == 2
    assert "1 of 3 samples are left out" in found.notes[-1]


@pytest.mark.parametrize(("settings", "message"), [({"prompt": "gpt"}, "unknown prompt"), ({"image_set": "4"}, "there are 3")])
def test_settings_that_do_not_exist_are_refused(data, images, settings, message):
    with pytest.raises(SettingError, match=message):
        read_chair(data, images, **settings)


def test_the_prompts_of_the_paper_and_of_opera_differ():
    assert PROMPTS["mgap"] == PROMPTS["pai"] == PROMPTS["haltrapper"] != PROMPTS["opera"]


def test_ground_truth_is_built_from_cocos_annotations(annotations):
    truth = find_truth(annotations, Lexicon.coco(), ChairScorer().finder.classes)
    assert truth.of([74, 73]) == {74: ["dog", "person"], 73: ["bicycle", "chair", "motorcycle"]}
    with pytest.raises(BenchmarkError, match="first 133"):  # no captions: half a ground truth is none
        truth.of([133])
    with pytest.raises(BenchmarkError, match="give `named`"):
        find_truth(annotations, Lexicon.coco())


def test_built_ground_truth_is_the_published_one(shared, tmp_path):
    images = json.loads((shared / "fixtures" / "benchmarks" / "chair" / "ground_truth_build.json").read_text())
    names = sorted({name for image in images for name in image["segmentation"]})
    pictures = [{"id": image["image_id"], "file_name": f"{image['image_id']}.jpg"} for image in images]
    shown = [{"image_id": i["image_id"], "category_id": names.index(name)} for i in images for name in i["segmentation"]]
    told = [{"image_id": i["image_id"], "caption": caption} for i in images for caption in i["captions"]]
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    files = {
        "instances_val2014.json": {"images": pictures, "categories": categories, "annotations": shown},
        "captions_val2014.json": {"images": pictures, "annotations": told},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    scorer = ChairScorer(language="nltk", language_data=str(shared / "data"))
    found = find_truth(tmp_path, Lexicon.coco(), scorer.finder.classes).of([image["image_id"] for image in images])
    assert len(images) == 150
    assert found == {image["image_id"]: image["union"] for image in images}
    for image in images:
        named = {name for caption in image["captions"] for name in scorer.finder.classes(caption)}
        assert sorted(named) == image["from_captions"]


def test_the_published_ground_truth_has_every_published_picture(shared):
    truth = find_truth(shared / "data", read_lexicon(shared / "data"))
    sets = json.loads((shared / "data" / "chair" / "image_sets.json").read_text())
    for name, ids in sets.items():
        found = truth.of(ids)
        assert 3.0 < sum(map(len, found.values())) / len(ids) < 3.2, name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ('{"73": {"segmentation": []}}', "not of CHAIR's ground truth"),
        ('{"73": ["unicorn"]}', "'unicorn' is none of the classes"),
    ],
)
def test_a_broken_ground_truth_is_refused(data, text, message):
    (data / "chair" / "gt_val2014.json").write_text(text)
    with pytest.raises(BenchmarkError, match=message):
        find_truth(data, Lexicon.coco())


def test_a_folder_without_ground_truth_is_refused(tmp_path):
    with pytest.raises(BenchmarkError, match="no ground truth of CHAIR in it"):
        find_truth(tmp_path, Lexicon.coco())


def test_annotations_of_other_things_or_of_another_form_are_refused(annotations):
    path = annotations / "annotations" / "instances_val2014.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "categories": [{"id": 4, "name": "unicorn"}]}))
    with pytest.raises(BenchmarkError, match="'unicorn' is none of the classes"):
        find_truth(annotations, Lexicon.coco(), ChairScorer().finder.classes)
    path.write_text(json.dumps({"images": []}))
    with pytest.raises(BenchmarkError, match="not as COCO writes annotations"):
        find_truth(annotations, Lexicon.coco(), ChairScorer().finder.classes)


def test_a_picture_without_a_name_is_refused(annotations):
    path = annotations / "annotations" / "captions_val2014.json"
    data = json.loads(path.read_text())
    data["images"][0]["file_name"] = None
    path.write_text(json.dumps(data))
    with pytest.raises(BenchmarkError, match="None where str belongs"):
        find_truth(annotations, Lexicon.coco(), ChairScorer().finder.classes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"image_id": 1, "caption": "a dog"}\n{"image_id": 2, "capt', "line 2: the last line is cut off"),
        ('{"image_id": 1}', "line 1: no 'caption'"),
        ('{"caption": "a dog"}', "no 'image_id'"),
        ('{"image_id": "dog.jpg", "caption": "a dog"}', "is no image id"),
        ("", "empty"),
    ],
)
def test_captions_that_cannot_be_read_are_named(tmp_path, text, message):
    path = tmp_path / "captions.jsonl"
    path.write_text(text)
    with pytest.raises(BenchmarkError, match=message):
        read_captions(path)


def test_captions_are_lines_or_an_array_and_may_repeat_a_picture(tmp_path):
    path = tmp_path / "captions.json"
    path.write_text('[{"id": 1, "text": "a dog"}, {"id": "1", "text": ""}]')
    assert read_captions(path, "id", "text") == [(1, "a dog"), (1, "")]
