"""Which words count as the same: identical ones, a table's pairs, vectors where spaCy is installed."""

import importlib.util
import json
import os

import pytest

from mgap.benchmarks.amber.similarity import Identical, PairTable, contradictions, find_similarity
from mgap.errors import BenchmarkError, MissingExtra, SettingError


@pytest.fixture
def write(tmp_path):
    def table(content):
        path = tmp_path / "table.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return table


@pytest.fixture(scope="session")
def dissimilar(shared):
    """Pairs that a public run shows to be at most 0.8 similar."""
    return json.loads((shared / "data" / "amber" / "certified_dissimilar_pairs.json").read_text())


def test_by_default_only_the_same_word_is_the_same():
    similar = find_similarity("identical")
    assert (similar("dog", "dog"), similar("dog", "puppy")) == (True, False)
    assert similar.about() == "identical"


@pytest.mark.parametrize(
    ("value", "is_similar"), [(0.95, True), (0.81, True), (0.8000001, True), (0.8, False), (0.79, False), (0.5, False)]
)
def test_a_pair_of_a_table_has_to_be_strictly_above_the_threshold(write, value, is_similar):
    similar = find_similarity(write([["dog", "puppy", value]]))
    assert similar("dog", "puppy") is similar("puppy", "dog") is is_similar
    assert similar("dog", "dog")
    assert not similar("dog", "cat")


def test_a_table_says_where_its_numbers_come_from(write):
    path = write({"versions": {"spacy": "3.8", "en_core_web_lg": "3.8.0"}, "pairs": [["dog", "puppy", 0.9]]})
    about = find_similarity(path).about()
    assert (about["name"], about["file"], len(about["sha256"])) == ("table", str(path), 64)
    assert about["notes"] == {"versions": {"spacy": "3.8", "en_core_web_lg": "3.8.0"}}
    assert find_similarity(about).about() == about
    path.write_text("[]")
    with pytest.raises(BenchmarkError, match="not what the score was made with"):
        find_similarity(about)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[", "no table of similar words can be read"),
        ('"dog"', "no table of similar words; write"),
        ({"pair": []}, "no table of similar words; write"),
        ([["dog", "cat"]], "entry 1 is"),
        ([["dog", "cat", 0.9], ["dog", "cat", "near"]], "entry 2 is"),
        ([["dog", "cat", True]], "entry 1 is"),
        ([["dog", "cat", 0.9], ["cat", "dog", 0.7]], "cat and dog stand there with two similarities"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(write, content, message):
    with pytest.raises(SettingError, match=message):
        PairTable.read(write(content))


def test_an_unknown_choice_is_refused():
    with pytest.raises(SettingError, match=r"similarity='wordnet'.*identical, spacy"):
        find_similarity("wordnet")
    with pytest.raises(SettingError, match="name=table"):
        find_similarity({"name": "magic"})


@pytest.mark.skipif(importlib.util.find_spec("spacy") is not None, reason="spaCy is installed")
def test_without_spacy_its_vectors_are_refused_with_what_to_install():
    with pytest.raises(MissingExtra, match=r"spacy.*mgap\[vectors\]"):
        find_similarity("spacy")


def test_no_table_may_contradict_what_is_known(write, dissimilar):
    assert len(dissimilar) == 1391
    assert contradictions(Identical(), dissimilar) == []
    one, other = dissimilar[7]
    wrong = find_similarity(write([[other, one, 0.81], ["apple", "pear", 0.9], [*dissimilar[8], 0.8]]))
    assert contradictions(wrong, dissimilar) == [(one, other)]


def test_your_own_table_or_vectors_do_not_contradict_what_is_known(dissimilar):
    choice = os.environ.get("MGAP_TEST_SIMILARITY")
    if choice is None:
        pytest.skip("set MGAP_TEST_SIMILARITY to the file of a table, or to spacy:MODEL, to check it")
    assert contradictions(find_similarity(choice), dissimilar) == []


@pytest.fixture
def vectors(tmp_path):
    """A model of spaCy's with vectors of four words: cat and dog 0.9 alike, cat and cow 0.8, exactly the threshold."""
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'mgap[vectors]'")
    import numpy as np

    nlp = spacy.blank("en")
    for word, vector in {"cat": (3, 0), "dog": (0.9, 0.19**0.5), "cow": (0.4, 0.3), "sky": (0, 1)}.items():
        nlp.vocab.set_vector(word, np.asarray(vector, dtype=np.float32))
    nlp.to_disk(tmp_path / "model")
    return tmp_path / "model"


def test_word_vectors_make_words_similar_above_the_threshold(vectors, tmp_path):
    similar = find_similarity(f"spacy:{vectors}")
    assert similar("cat", "dog")
    assert similar("dog", "cat")
    assert not similar("cat", "sky")
    assert not similar("cat", "zebra")  # a word without a vector is like no other
    assert similar("zebra", "zebra")
    assert similar.cosine("cat", "cow") == pytest.approx(0.8, abs=1e-6)
    assert similar.about()["versions"]["spacy"]
    table = tmp_path / "table.json"
    table.write_text(json.dumps(similar.table(["cat", "dog", "sky"])))
    assert find_similarity(table)("dog", "cat")


def test_a_model_without_vectors_is_refused(tmp_path):
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'mgap[vectors]'")
    spacy.blank("en").to_disk(tmp_path / "small")
    with pytest.raises(SettingError, match="has no word vectors"):
        find_similarity(f"spacy:{tmp_path / 'small'}")


@pytest.mark.parametrize("about", [{"name": "table"}, {"file": "table.json"}, {}])
def test_a_similarity_that_is_told_in_part_is_refused(about):
    with pytest.raises(SettingError, match="give name=table with file"):
        find_similarity(about)
