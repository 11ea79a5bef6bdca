"""Lists of words, prompts and figures that a user writes: any file is one, or is refused."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from mgap.benchmarks.amber.similarity import PairTable, find_similarity
from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.chair.mentions import Finder
from mgap.benchmarks.language import find_language
from mgap.benchmarks.pope.printed_figures import Printed, imply, read_table
from mgap.errors import BenchmarkError
from mgap.io.prompt_files import read_prompts
from mgap.methods.given.evidence import TEMPLATE, EvidenceTable
from mgap.priors.object_words import Vocabulary
from tests.fuzz.damage import ODD_TEXTS, VALUES, Refused, byte_files, damaged_value, json_files, outcome

EVIDENCE = b"""{"image": "a.jpg", "objects": ["dog", "cat"]}
{"image": "b/c.jpg", "prompt": "Is it?", "text": "What?", "objects": null}
"""
THINGS = "person, man, woman\nhot dog\n\nc\u00f4te, coast\n".encode()
PAIRS = {"versions": {"spacy": "3"}, "pairs": [["dog", "puppy", 0.9], ["cat", "kitten", 0.85]]}
LEXICON = {"synonyms": {"dog": ["puppy"], "hot dog": []}, "double_words": {"hot dog": "hot dog"}, "forms": {"men": "men"}}
TABLE = b"table,method,accuracy,precision,f1,questions,positives\n1,Vanilla,88.88,89.70,89.76,3000,1500\n1,VCD,87.57,88,88,,\n"


@given(byte_files(THINGS))
@example(b"\xef\xbb\xbfperson\n")
def test_a_vocabulary_of_a_file(place, data):
    (place / "things.txt").write_bytes(data)
    found = outcome(Vocabulary.of, str(place / "things.txt"))
    if not isinstance(found, Refused):
        assert found.names
        assert all(name == name.strip() and "\ufeff" not in name[:1] for name in found.names)
        assert [mention.name for mention in found.mentions(found.names[0])][:1] in ([found.names[0]], [])


@given(VALUES | st.sampled_from(ODD_TEXTS))
def test_a_vocabulary_of_anything(value):
    found = outcome(Vocabulary.of, value)
    assert isinstance(found, Refused) or found.names


@given(byte_files(EVIDENCE))
@example(b"\xef\xbb\xbf" + EVIDENCE)
@example(b'{"image": "\\ud800", "text": "x"}')
def test_a_file_of_evidence(place, data):
    (place / "evidence.jsonl").write_bytes(data)
    found = outcome(EvidenceTable.load, place / "evidence.jsonl", names="evidence.jsonl")
    if not isinstance(found, Refused):
        assert all(found.find(line.image, line.prompt) is line for line in found.lines)
        assert all(line.evidence("Is it?", TEMPLATE) for line in found.lines)


@given(byte_files("Is there a dog?\nDescribe it.\n\u00c4?\n".encode()))
@example(b"\xef\xbb\xbfWhat?\r\nWhere?")
def test_calibration_prompts(place, data):
    (place / "prompts.txt").write_bytes(data)
    found = outcome(lambda: list(read_prompts(place / "prompts.txt")), names="prompts.txt")
    if not isinstance(found, Refused):
        assert found
        assert all(prompt.strip() and "\n" not in prompt and not prompt.startswith("\ufeff") for prompt in found)


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1).filter(str.strip), min_size=1))
def test_prompts_that_were_written_a_line_each_are_read_again(place, prompts):
    prompts = [prompt.lstrip("\ufeff") or "x" for prompt in prompts]
    (place / "prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
    assert list(read_prompts(place / "prompts.txt")) == prompts


@given(json_files(PAIRS) | json_files(PAIRS["pairs"]))
def test_a_table_of_similar_words(place, data):
    (place / "pairs.json").write_bytes(data)
    found = outcome(PairTable.read, place / "pairs.json", names="pairs.json")
    if not isinstance(found, Refused):
        assert found("dog", "dog")
        assert all(found(one, other) == found(other, one) for one, other in found.values)
        assert find_similarity(found.about()) == found


@given(st.sampled_from(ODD_TEXTS) | st.dictionaries(st.sampled_from(("name", "file", "sha256", "model")), VALUES))
def test_a_choice_of_similarity(choice):
    outcome(find_similarity, choice)


@given(byte_files(TABLE))
@example(b"accuracy,precision,f1,questions,positives\n50,50,50,1000000000000,500000000000\n")
def test_a_table_of_printed_figures(place, data):
    (place / "table.csv").write_bytes(data)
    rows = outcome(read_table, place / "table.csv")
    if not isinstance(rows, Refused):
        assert rows
        for row in rows:
            found = outcome(imply, row)
            assert found.verdict in ("exact", "near", "inconsistent")


@given(st.floats(), st.floats(), st.floats(), st.integers(), st.integers())
@example(50.0, 50.0, 50.0, 10**12, 10**11)
def test_printed_figures_imply_something_or_are_refused(accuracy, precision, f1, questions, positives):
    row = outcome(Printed, accuracy, precision, f1, questions, positives)
    assert isinstance(row, Refused) or outcome(imply, row).verdict in ("exact", "near", "inconsistent")


@given(damaged_value(LEXICON))
def test_a_lexicon_of_a_runs_plan(data):
    lexicon = outcome(Lexicon.of, data)
    if isinstance(lexicon, Refused):
        return
    finder = Finder(lexicon, find_language("builtin", words=lexicon.meanings(), forms=lexicon.forms))
    found = outcome(finder.find, "A puppy eats a hot dog near two men.")
    assert set(found.nodes) <= set(lexicon.synonyms)
    assert Lexicon.of(json.loads(json.dumps(lexicon.to_json()))).meanings() == lexicon.meanings()


@given(byte_files(b"dog, puppy, pup\nhot dog, hotdog\n"), json_files(LEXICON["double_words"]))
def test_the_published_lists_of_words(place, words, pairs):
    (place / "synonyms.txt").write_bytes(words)
    (place / "double_words.json").write_bytes(pairs)
    lexicon = outcome(Lexicon.read, place)
    if isinstance(lexicon, Refused):
        assert isinstance(lexicon.error, BenchmarkError)
        return
    finder = Finder(lexicon, find_language("builtin", words=lexicon.meanings()))
    assert set(outcome(finder.classes, "A puppy eats a hot dog.")) <= set(lexicon.synonyms)
