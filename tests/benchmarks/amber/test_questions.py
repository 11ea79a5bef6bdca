"""AMBER's files as they are read: kinds, prompts, and what is refused."""

import json
import shutil
from collections import Counter

import pytest
from PIL import Image

from mgap.benchmarks.amber.questions import FILES, KINDS, read_amber
from mgap.errors import BenchmarkError, SettingError

QUERIES = [
    {"id": 1, "image": "AMBER_1.jpg", "query": "Describe this image."},
    {"id": 2, "image": "AMBER_1.jpg", "query": "Is the sky sunny in this image?"},
    {"id": 3, "image": "AMBER_2.jpg", "query": "Is there a dog in this image?"},
    {"id": 4, "image": "AMBER_2.jpg", "query": "Is there direct contact between the dog and the cat?"},
]
TRUTHS = [
    {"id": 1, "type": "generative", "truth": ["sky", "sky"], "hallu": ["dog"]},
    {"id": 2, "type": "discriminative-attribute-state", "truth": "yes"},
    {"id": 3, "type": "discriminative-hallucination", "truth": "no"},
    {"id": 4, "type": "anything else", "truth": "no"},
]


@pytest.fixture
def folder(tmp_path):
    """A small benchmark in AMBER's shape; with the parts that are given."""

    def make(queries=QUERIES, truths=TRUTHS, relation='{"sky": [], "dog": ["puppy"]}'):
        root = tmp_path / "amber"
        (root / "query").mkdir(parents=True, exist_ok=True)
        (root / "query" / "query_all.json").write_text(json.dumps(queries))
        (root / "annotations.json").write_text(json.dumps(truths))
        (root / "relation.json").write_text(relation)
        (root / "safe_words.txt").write_text("orange\nline")
        return root

    return make


def test_samples_have_their_groups_truths_and_words(folder):
    benchmark = read_amber(folder())
    assert [(s.id, s.image, s.group, s.truth) for s in benchmark.samples] == [
        ("1", "AMBER_1.jpg", "generative", {"truth": ["sky", "sky"], "hallu": ["dog"]}),
        ("2", "AMBER_1.jpg", "attribute-state", "yes"),
        ("3", "AMBER_2.jpg", "existence", "no"),
        ("4", "AMBER_2.jpg", "relation", "no"),  # a type that has no name of its own
    ]
    assert (benchmark.name, benchmark.task) == ("amber a", "amber")
    assert benchmark.lexicon == {"relation": {"sky": [], "dog": ["puppy"]}, "safe_words": ["orange", "line"]}
    assert len(benchmark.sources) == 4
    assert all(len(digest) == 64 for digest in benchmark.sources.values())
    json.dumps([benchmark.lexicon, dict(benchmark.sources), [s.truth for s in benchmark.samples]])


def test_a_clone_of_the_project_is_read_too(folder, tmp_path):
    clone = tmp_path / "AMBER"
    shutil.copytree(folder(), clone / "data")
    assert len(read_amber(clone).samples) == 4


@pytest.mark.parametrize(
    ("kinds", "ids"), [("a", "1234"), ("g", "1"), ("d", "234"), ("de", "3"), ("da", "2"), ("dr", "4"), ("g,dr", "14"),
                       (("de", "da"), "23")]
)  # fmt: skip
def test_kinds_can_be_chosen(folder, kinds, ids):
    assert "".join(sample.id for sample in read_amber(folder(), kinds=kinds).samples) == ids


def test_prompts_by_the_name_of_who_asks_so(folder):
    original = [sample.prompt for sample in read_amber(folder()).samples]
    assert original == [query["query"] for query in QUERIES]
    for name in ("haltrapper", "mgap"):
        assert [sample.prompt for sample in read_amber(folder(), prompt=name).samples] == [
            "Please help me describe the image in detail.",
            *(f"{query['query']} Please answer this question with one word." for query in QUERIES[1:]),
        ]


def test_pictures_are_looked_for(folder, tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.new("RGB", (8, 8)).save(pictures / "AMBER_1.jpg")
    with pytest.raises(BenchmarkError, match=r"1 of 2 pictures are missing, first AMBER_2\.jpg"):
        read_amber(folder(), pictures)
    some = read_amber(folder(), pictures, missing="skip")
    assert [sample.id for sample in some.samples] == ["1", "2"]
    assert "2 of 4 samples are left out" in some.notes[0]
    assert some.picture("AMBER_1.jpg") == pictures / "AMBER_1.jpg"
    assert read_amber(folder(), pictures, kinds="da").notes == ()
    with pytest.raises(BenchmarkError, match=r"AMBER_1\.jpg: no folder of pictures was named"):
        read_amber(folder()).picture("AMBER_1.jpg")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"queries": [*QUERIES, {**QUERIES[0], "id": 9}]}, r"query_all\.json item 5: id 9 is not in annotations\.json"),
        ({"queries": [*QUERIES, QUERIES[0]]}, r"query_all\.json item 5: id 1 stands at item 1 already"),
        ({"truths": [*TRUTHS, TRUTHS[3]]}, r"annotations\.json item 5: id 4 stands at item 4 already"),
        ({"queries": [{"id": "1", "image": "a", "query": "b"}]}, "id is '1', and must be a whole number"),
        ({"queries": [{"id": 1, "query": "b"}]}, "no 'image' among"),
        ({"queries": [{"id": 1, "image": "a.jpg", "query": " "}]}, "query is ' '"),
        ({"truths": [{**TRUTHS[0], "hallu": "dog"}, *TRUTHS[1:]]}, "hallu is 'dog', and must be a list of words"),
        ({"truths": [*TRUTHS[:3], {**TRUTHS[3], "truth": "No"}]}, "truth is 'No', and a question's is yes or no"),
        ({"truths": [{"id": 1}]}, "no 'type' among"),
        ({"relation": "[]"}, r"relation\.json: not an object"),
        ({"relation": "{"}, r"relation\.json: no JSON"),
    ],
)
def test_broken_files_are_refused(folder, parts, message):
    with pytest.raises(BenchmarkError, match=message):
        read_amber(folder(**parts))


def test_missing_files_and_unknown_choices_are_refused(folder, tmp_path):
    with pytest.raises(BenchmarkError, match=r"no annotations\.json in it.*mgap fetch amber"):
        read_amber(tmp_path)
    root = folder()
    (root / "relation.json").unlink()
    with pytest.raises(BenchmarkError, match=r"no relation\.json in it"):
        read_amber(root)
    with pytest.raises(SettingError, match="unknown kind 'x' of AMBER: choose from a, g, d, de, da, dr"):
        read_amber(folder(), kinds="g,x")
    with pytest.raises(SettingError, match="unknown prompt 'llava' of AMBER: choose from original, haltrapper, mgap"):
        read_amber(folder(), prompt="llava")
    with pytest.raises(BenchmarkError, match="asks nothing of kind dr"):
        read_amber(folder(queries=QUERIES[:3]), kinds="dr")


def test_the_published_files_hold_what_they_are_known_to_hold(shared):
    data = shared / "data" / "amber"
    whole = read_amber(data)
    assert Counter(sample.group for sample in whole.samples) == {
        "generative": 1004, "existence": 4924, "attribute-state": 4764, "attribute-number": 2072, "attribute-action": 792,
        "relation": 975 + 689,
    }  # fmt: skip
    relation = whole.lexicon["relation"]
    assert (len(relation), len({*relation, *(word for words in relation.values() for word in words)})) == (340, 418)
    assert len(whole.lexicon["safe_words"]) == 9
    parts = {
        "g": "generative",
        "d": "discriminative",
        **{f"d{p[0]}": f"discriminative-{p}" for p in ("existence", "attribute", "relation")},
    }
    for kind, name in parts.items():  # the project's own subsets
        subset = json.loads((data / "query" / f"query_{name}.json").read_text())
        chosen = [sample for sample in whole.samples if sample.group in KINDS[kind]]
        assert [(str(q["id"]), q["image"]) for q in subset] == [(s.id, s.image) for s in chosen]
        others = [s.id for q, s in zip(subset, chosen, strict=True) if q["query"] != s.prompt]
        assert others == (["13193"] if kind in ("d", "de") else [])  # a computer in query_all, a chair in these
    assert all((data / file).is_file() for file in FILES)
