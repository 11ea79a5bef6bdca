"""Texts as they are scored: cut after words, and without an unfinished last sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.amber.scorer import AmberScorer
from mgap.benchmarks.answer_texts import AnswerTexts, Dropped, cut_words, drop_unfinished, mean_words, unfinished_of
from mgap.benchmarks.chair.scorer import ChairScorer
from mgap.benchmarks.pope.scorer import PopeScorer
from mgap.errors import SettingError
from mgap.types import Sample

WRITTEN = st.text(alphabet="ab .!?\"')]\n", max_size=40)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("A dog. A cat sits on", "A dog."),
        ("A dog. A cat.", "A dog. A cat."),
        ("Is it? It is! And then", "Is it? It is!"),
        ("  A dog.\n\nA cat\nand ", "A dog."),
        ('It says "stop." And a car', 'It says "stop."'),
        ("It says \u201cstop.\u201d And a car", "It says \u201cstop.\u201d"),
        ("A dog (and a cat.) A car", "A dog (and a cat.)"),
        ("A dog [two.] A car", "A dog [two.]"),
        ('A dog ("two.") A car', 'A dog ("two.") A car'),  # two closing marks end no sentence
        ("A dog.A cat in the", "A dog.A cat in the"),  # neither does a full stop inside a word
        ("It costs 3.5 of", "It costs 3.5 of"),
        ("A dog and Mr. Smith on", "A dog and Mr."),  # an abbreviation does
        ("A dog... and a", "A dog..."),
        ("No end at all ", "No end at all"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_text_ends_with_its_last_whole_sentence(text, left):
    assert drop_unfinished(text) == left


@given(WRITTEN)
def test_dropping_twice_changes_nothing_and_only_the_end_goes(text):
    left = drop_unfinished(text)
    assert text.strip().startswith(left)
    assert drop_unfinished(left) == left
    assert bool(left) == bool(text.strip())


@given(st.text(), st.integers(1, 30))
def test_a_cut_text_has_so_many_words_and_cutting_twice_changes_nothing(text, words):
    cut = cut_words(text, words)
    assert cut.split() == text.split()[:words]
    assert cut_words(cut, words) == cut


def test_the_mean_length_is_in_words():
    assert mean_words(["one two three four", "one two three four five six", "one"]) == pytest.approx(11 / 3)
    assert mean_words([]) == 0.0


def test_what_the_model_ended_itself_stays_unless_it_is_cut():
    answers = AnswerTexts({"ended": "A dog. A cat", "limit": "A dog. A cat", "endless": "A dog"}, frozenset({"ended"}))
    assert answers.scored("keep") == answers.texts
    assert answers.scored("drop") == {"ended": "A dog. A cat", "limit": "A dog.", "endless": "A dog"}
    assert answers.dropped() == Dropped(shortened=1, without_end=1)
    assert answers.cut(4).scored("drop")["ended"] == "A dog. A cat"
    assert answers.cut(3).scored("drop")["ended"] == "A dog.", "cut first, then dropped"
    assert answers.cut(None) is answers


def test_the_setting_is_refused_where_nothing_is_described():
    question = [Sample("1", "1.png", "Is there a dog?", "existence", "no")]
    caption = [Sample("2", "2.png", "Describe it.", "generative", {"truth": [], "hallu": []})]
    drop = amber_scorer(unfinished="drop")
    assert unfinished_of(drop, question + caption) == "drop"
    with pytest.raises(SettingError, match="unfinished=drop acts on captions, and only questions are asked: leave it out"):
        unfinished_of(drop, question)
    assert unfinished_of(amber_scorer(), question) == unfinished_of(PopeScorer(), question) == unfinished_of(None, []) == "keep"
    with pytest.raises(SettingError, match="unknown setting 'unfinished'"):
        PopeScorer.of({}, unfinished="drop")


def amber_scorer(**settings):
    return AmberScorer.of({"relation": {"dog": [], "cat": []}, "safe_words": []}, **settings)


def test_ambers_descriptions_lose_an_unfinished_sentence_and_its_questions_nothing():
    caption = Sample("1", "1.png", "Describe it.", "generative", {"truth": ["dog"], "hallu": ["cat"]})
    question = Sample("2", "1.png", "Is there a cat?", "existence", "no")
    texts = {"1": "A dog. And a cat", "2": "Well. No"}
    for unfinished, hallucinated in (("keep", 1), ("drop", 0)):
        judged = amber_scorer(unfinished=unfinished, normaliser="lmms_eval").judge([caption, question], texts)
        assert len(judged["1"].hallucinated) == hallucinated
        assert judged["2"].is_right
    assert len(amber_scorer(unfinished="drop").judge([caption], texts, whole=["1"])["1"].hallucinated) == 1


def test_a_caption_without_a_limit_is_scored_alike_under_both():
    samples, texts = [Sample("1", "1.png", "", "captions", ["dog"])], {"1": "A dog and a cat."}
    kept, dropped = (ChairScorer(unfinished=each).tally(samples, texts)["captions"] for each in ("keep", "drop"))
    assert (kept.counts == dropped.counts).all()
