"""Pipelines from a text to dictionary forms: NLTK's, as published, and the one that needs nothing."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.language import find_language
from mgap.benchmarks.language.nltk_pipeline import Nltk, has_tables
from mgap.benchmarks.language.tokens import sentences, tokens
from mgap.errors import BenchmarkError, MissingExtra, SettingError
from tests.benchmarks.chair.published import read_fixtures

WORDS = ("skis", "ski", "tie", "bike", "man", "woman", "bus", "traffic light", "wine glass", "ferry", "ship", "seat", "leaf")


@pytest.fixture(scope="module")
def nltk(shared) -> Nltk:
    return find_language("nltk", data=shared / "data")


@pytest.fixture(scope="module")
def worked(shared) -> list[dict]:
    return json.loads((shared / "fixtures" / "benchmarks" / "chair" / "tokens.json").read_text())


def test_nltk_without_its_data_gives_the_published_tokens_and_tags(nltk, worked):
    for example in worked:
        found = nltk.split(example["caption"].lower())
        assert found == example["tokens"]
        assert [tag for _, tag in nltk.tag(found)] == example["tags"]


def test_nltk_without_its_data_gives_the_published_lemmas_of_the_words_it_looks_for(nltk, worked, shared):
    closed = json.loads((shared / "data" / "chair" / "lemma_table.json").read_text())
    compared = 0
    for example in worked:
        for token, lemma, published in zip(example["tokens"], nltk.lemmas(example["caption"]), example["lemmas"], strict=True):
            if token in closed:
                assert lemma == published
                compared += 1
    assert compared > 100


@pytest.mark.long
def test_with_its_own_data_nltk_gives_the_published_lemmas_of_every_word(nltk_data, worked):
    own = find_language("nltk")
    for example in worked:
        assert own.split(example["caption"].lower()) == example["tokens"]
        assert own.lemmas(example["caption"]) == example["lemmas"]


def test_the_tables_of_lemmas_are_wordnets(nltk_data, shared):
    from nltk.stem import WordNetLemmatizer

    lemma = WordNetLemmatizer().lemmatize
    table = json.loads((shared / "data" / "chair" / "lemma_table.json").read_text())
    assert len(table) > 1000
    assert {word: [lemma(word, part) for part in "nvar"] for word in table} == table
    nouns = json.loads((shared / "data" / "amber" / "noun_lemmas.json").read_text())
    assert len(nouns) > 800
    assert {word: lemma(word, "n") for word in nouns} == nouns


def test_our_tokens_are_nltks(nltk, shared):
    texts = [entry["caption"] for fixture in read_fixtures(shared) for entry in fixture.captions[::5]]
    for path in (shared / "fixtures" / "benchmarks" / "amber").glob("*generative*.responses.json"):
        texts += [entry["response"] for entry in json.loads(path.read_text())]
    texts += ["He said \"no,\" didn't he? (Yes.) It's 5,000 -- or 3:45... cannot; the dogs' toys/balls & 'quoted' U.S. flags*"]
    assert len(texts) > 1000
    assert [text for text in texts if tokens(text) != nltk.split(text)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A truck.In the sofa/couch.", ["A", "truck.In", "the", "sofa/couch", "."]),
        ("The dog's bowl. A well-lit room!", ["The", "dog", "'s", "bowl", ".", "A", "well-lit", "room", "!"]),
        ('He said "stop." Then', ["He", "said", "``", "stop", ".", "''", "Then"]),
        ("", []),
        ("...", ["..."]),
    ],
)
def test_tokens_by_hand(text, expected):
    assert tokens(text) == expected


@pytest.mark.parametrize(
    "parts",
    [
        ["On US Highway 395.", "The sign.", "By F. Scott!", "Yes?"],
        ["on us highway 395. the sign.", "by f. scott!", "yes?"],
        ["It has 5.", "Zebra stands"],
        ["A Boeing 747-400.", "There it is (see 5.)", "The end"],
        ["It is 5.", "6 dogs"],
        ["1.", "A dog 2.", "A cat"],
    ],
)
def test_an_initial_ends_no_sentence_and_a_number_none_that_goes_on_in_small_letters(parts):
    """As Punkt does with what it has learnt from English."""
    assert sentences(" ".join(parts)) == parts


@given(st.text(alphabet="abcDE.,!?'\"()-/ \n5", max_size=60))
def test_tokens_keep_every_letter_in_its_order(text):
    kept = "".join(tokens(text))
    letters = [c for c in text if c.isalnum()]
    assert [c for c in kept if c.isalnum()] == letters
    assert all(token and not any(c.isspace() for c in token) for token in tokens(text))


def test_a_very_long_text_is_split_in_time_that_grows_with_its_length():
    text = 'a "dog" 1. an (x) ' * 5_000  # no sentence ends in it
    assert len(tokens(text)) == 9 * 5_000


@given(st.text(max_size=80))
def test_builtin_takes_any_text(text):
    language = find_language("builtin", words=WORDS)
    assert len(language.lemmas(text)) == len(tokens(text.lower()))
    assert len(language.nouns(text)) <= len(tokens(text))


@pytest.mark.parametrize(
    ("text", "lemmas"),
    [
        ("women and men", ["woman", "and", "men"]),  # a quirk of the published scorers
        ("two buses, traffic lights", ["two", "bus", ",", "traffic", "light"]),
        ("He is skiing, tied and seated", ["he", "is", "ski", ",", "tie", "and", "seat"]),
        ("a skiing trip", ["a", "skiing", "trip"]),
        ("wine glasses on ferries", ["wine", "glass", "on", "ferry"]),
        ("shipped leaves", ["ship", "leaf"]),
        ("cats", ["cats"]),  # not looked for
    ],
)
def test_builtin_knows_forms_of_the_words_it_is_given(text, lemmas):
    assert find_language("builtin", words=WORDS).lemmas(text) == lemmas


def test_builtin_errs_with_the_published_scorers_unless_told_otherwise():
    assert find_language("builtin", words=["man", "person", "vase"], forms={}).lemmas("men, people, vases") == [
        "man", ",", "person", ",", "vase",
    ]  # fmt: skip
    assert find_language("builtin", words=["vase"]).lemmas("vases") == ["vases"]


def test_builtin_tells_nouns_from_their_neighbours():
    language = find_language("builtin", words=["can", "watch", "light", "TV"])
    assert language.nouns("A can of beans can be seen on the TV") == ["can", "TV"]
    assert language.nouns("They want to watch it; a silver watch") == ["watch"]
    assert language.nouns("a light blue wall, a light and a tv") == ["light"]
    language = find_language("builtin", words=["building", "painting"])
    assert language.nouns("building the wall, he sees a building") == ["building", "building"]
    assert language.nouns("painting the wall, he likes painting") == ["painting"]
    assert language.nouns("he is painting the wall beside a painting") == ["painting"]


def test_nltk_says_which_data_is_missing_and_how_to_get_it(monkeypatch, tmp_path):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(BenchmarkError, match=r"nltk\.downloader punkt_tab averaged_perceptron_tagger_eng wordnet"):
        find_language("nltk")


def test_nltk_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(MissingExtra, match=r"mgap\[bench\]"):
        find_language("nltk")


def test_tables_that_are_missing_or_broken_are_named(tmp_path, shared):
    assert has_tables(shared / "data")
    assert not has_tables(tmp_path)
    with pytest.raises(BenchmarkError, match=r"weights.json: not there"):
        find_language("nltk", data=tmp_path)
    tagger = tmp_path / "chair" / "tagger"
    tagger.mkdir(parents=True)
    (tagger / "weights.json").write_text("{")
    with pytest.raises(BenchmarkError, match=r"weights.json: no JSON"):
        find_language("nltk", data=tmp_path)
    for broken in ({"a": {"NN": 1.0}, "b": 3}, {"a": {"NN": 1.0, "VB": "x"}}):  # one of two
        (tagger / "weights.json").write_text(json.dumps(broken))
        with pytest.raises(BenchmarkError, match=r"weights.json: not a table"):
            find_language("nltk", data=tmp_path)
    for name in ("weights", "tagdict"):
        (tagger / f"{name}.json").write_text("{}")
    (tagger / "classes.json").write_text("[]")
    with pytest.raises(BenchmarkError, match=r"classes.json: not a table"):
        find_language("nltk", data=tmp_path)
    (tagger / "classes.json").write_text('["NN"]')
    language = find_language("nltk", data=tmp_path)  # tables of lemmas are read when they are needed
    with pytest.raises(BenchmarkError, match=r"lemma_table.json: not there"):
        language.lemmas("a dog")
    (tmp_path / "chair" / "lemma_table.json").write_text(json.dumps({"dog": ["dog"] * 4, "cat": ["cat"]}))
    with pytest.raises(BenchmarkError, match=r"lemma_table.json: not a table"):
        language.lemmas("a dog")
    with pytest.raises(BenchmarkError, match=r"noun_lemmas.json: not there"):
        language.nouns("a dog")


def test_an_unknown_language_is_refused():
    with pytest.raises(SettingError, match="choose from builtin, nltk"):
        find_language("spacy")


def test_nltk_gives_the_nouns_that_amber_keeps_and_builtin_most_of_them(nltk, shared):
    """Measured: nltk all of 203 responses, builtin 178 of them."""
    folder = shared / "fixtures" / "benchmarks" / "amber"
    annotations = json.loads((shared / "data" / "amber" / "annotations.json").read_text())
    relations = json.loads((shared / "data" / "amber" / "relation.json").read_text())
    vocabulary = {*relations, *(word for words in relations.values() for word in words)}
    for entry in annotations:
        if entry["type"] == "generative":
            vocabulary.update(entry["truth"], entry["hallu"])
    builtin, same = find_language("builtin", words=vocabulary), {"nltk": 0, "builtin": 0}
    for name in ("made_up_generative_exact", "real_llava15_7b_generative_1_83"):
        texts = {entry["id"]: entry["response"] for entry in json.loads((folder / f"{name}.responses.json").read_text())}
        for entry in json.loads((folder / f"{name}.expected.json").read_text())["per_response"]:
            for language in (nltk, builtin):
                kept = [noun for noun in language.nouns(texts[entry["id"]]) if noun in vocabulary]
                same[language.name] += kept == entry["kept"]
    assert same["nltk"] == 203
    assert same["builtin"] >= 175
