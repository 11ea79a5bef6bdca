"""Every published way to read an answer, against the verdicts of the projects' own code."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.yesno_parsers import DEFAULT, PARSERS, find_parser, yes_or_no
from mgap.errors import SettingError

LABELS = ("yes", "no")
ANSWERS = st.one_of(
    st.text(), st.lists(st.sampled_from(["Yes", "no", "not", "isn't", ".", ",", " ", "\n", "snow", "1,2"])).map("".join)
)


def test_every_published_verdict_holds(shared):
    cases = json.loads((shared / "fixtures" / "benchmarks" / "pope" / "parser_edge_cases.json").read_text())
    checked = 0
    for case in cases:
        for name, verdicts in case["verdicts"].items():
            for label in LABELS:
                expected = verdicts if isinstance(verdicts, str) else verdicts[f"if_label_{label}"]
                assert (PARSERS[name](case["text"], label) or "unparsed") == expected, (name, case["text"], label)
                checked += 1
    assert checked == len(cases) * 7 * 2


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Yes", "yes"),
        ("No.", "no"),
        ("NO!", "no"),
        ('"no"', "no"),
        ("(Yes)", "yes"),
        ("Yes,no", None),  # the comma touches no space, so it becomes one
        ("Yes, there is no cat", None),
        ("There is not a dog", None),
        ("No.Yes", None),  # one word, once the full stop is gone
        ("no.5", None),  # a full stop before a digit stays
        ("no-one", "no"),
        ("no-one - really", None),  # a hyphen touches a space, so all of them are deleted
        ("no-one- really", None),  # on one side is enough
        ("no/1,000", None),  # and so is every mark beside such a number
        ("." * 32 + "no.", None),  # only so many full stops are deleted
        ("." * 31 + "no.", "no"),
        ("", None),
    ],
)
def test_vlmevalkit_wants_one_of_both_words(text, verdict):
    assert PARSERS["vlmevalkit"](text, "yes") == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("YES", "yes"),
        ("There is no eyesore", "yes"),
        ("A snowboard", "no"),
        ("Not one", "no"),
        ("It isn't there", None),
        ("", None),
    ],
)
def test_repope_looks_for_the_letters_yes_before_the_letters_no(text, verdict):
    assert PARSERS["repope"](text, "yes") == PARSERS["repope"](text, "no") == verdict


@given(ANSWERS, st.sampled_from(sorted(PARSERS)))
def test_every_parser_reads_any_text(text, name):
    verdicts = [PARSERS[name](text, label) for label in LABELS]
    assert all(verdict in ("yes", "no", None) for verdict in verdicts)
    assert verdicts[0] == verdicts[1] or PARSERS[name].needs_label


@given(ANSWERS, st.sampled_from(LABELS))
def test_a_parser_that_needs_the_label_only_asks_whether_its_letters_are_there(text, label):
    for name in ("vcd", "mgap"):
        assert (PARSERS[name](text, label) == label) == (label in text.lower())


@pytest.mark.parametrize("word", ["Yes", "No", "yes", "no"])
def test_all_agree_on_a_bare_word(word):
    assert {parser(word, label) for parser in PARSERS.values() for label in LABELS} == {word.lower()}


def test_the_default_is_our_own():
    assert find_parser(DEFAULT)("There isn't a dog.", "yes") == yes_or_no("There isn't a dog.") == "no"
    assert [parser.name for parser in PARSERS.values() if parser.needs_label] == ["vcd", "mgap"]
    assert all("LABEL" in PARSERS[name].summary for name in ("vcd", "mgap"))


def test_an_unknown_parser_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match="unknown parser 'strict': choose from first-sentence, original"):
        find_parser("strict")
