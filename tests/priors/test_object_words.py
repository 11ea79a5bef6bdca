"""Words that name things: which, where, in which form, and in whose list."""

import pytest

from mgap.errors import SettingError
from mgap.pocket.objects import NAMES, plural
from mgap.priors.object_words import Mention, Vocabulary


def test_coco_has_eighty_classes_and_every_thing_of_the_pocket_world():
    coco = Vocabulary.of("coco")
    assert len(coco.names) == 80
    assert set(NAMES) <= set(coco.names)
    for name in NAMES:
        assert [found.name for found in coco.mentions(f"There are two {plural(name)}.")] == [name]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A hot dog and a Dog.", ["hot dog", "dog"]),
        ("Two men, three women and their children's knives", ["person", "person", "person", "knife"]),
        ("a baby elephant on the sofa/couch, a teddy bear", ["elephant", "couch", "couch", "teddy bear"]),
        ("dog-like, hotdogs, catalogue", []),
        ("puppies, mice, geese; TVs and wine glasses", ["dog", "mouse", "bird", "tv", "wine glass"]),
        ("", []),
    ],
)
def test_a_text_mentions_what_it_names(text, names):
    assert [found.name for found in Vocabulary.of("coco").mentions(text)] == names


def test_places_are_those_of_the_text_also_where_lower_case_is_longer():
    text = "İ A Dog, a cat, a DOG"
    things = Vocabulary.of(["cat", "dog"])
    assert things.mentions(text) == [Mention("dog", 4), Mention("cat", 11), Mention("dog", 18)]
    assert things.first_mentions(text) == {"dog": 4, "cat": 11}


def test_a_name_means_itself_and_other_words_the_first_that_has_them():
    things = Vocabulary({"car": ["truck", "van"], "truck": ["van", "cars"]})
    assert [found.name for found in things.mentions("truck van cars vans")] == ["truck", "car", "car", "car"]


def test_a_list_of_ones_own_from_a_file_a_list_or_a_mapping(tmp_path):
    (tmp_path / "things.txt").write_text("fox, vixen ,  reynard\n\nLamp Post\n", encoding="utf-8")
    from_file = Vocabulary.of(str(tmp_path / "things.txt"))
    assert from_file.synonyms == {"fox": ("vixen", "reynard"), "lamp post": ()}
    assert Vocabulary.of({"fox": ["vixen", "reynard"], "lamp  post": None}).synonyms == from_file.synonyms
    assert Vocabulary.of({"fox": "vixen"}).synonyms == {"fox": ("vixen",)}
    assert Vocabulary.of(["fox", "lamp post"]).names == from_file.names


def test_lists_that_name_nothing_are_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes("Bär, ours".encode("latin-1"))
    for words, why in ((str(tmp_path / "empty.txt"), "without words"), (str(tmp_path / "latin.txt"), "UTF-8"),
                       (str(tmp_path), "vocabulary="), ([" "], "names nothing"), ({}, "without words")):  # fmt: skip
        with pytest.raises(SettingError, match=why):
            Vocabulary.of(words)
