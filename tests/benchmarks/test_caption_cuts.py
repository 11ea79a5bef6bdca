"""Captions cut to the length or the recall of others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.amber.scorer import AmberScorer
from mgap.benchmarks.answer_texts import UNFINISHED, AnswerTexts, mean_words
from mgap.benchmarks.caption_cuts import CaptionCuts
from mgap.benchmarks.chair.scorer import ChairScorer
from mgap.benchmarks.tally import Figure, Tally
from mgap.errors import SettingError
from mgap.types import Sample

TRUTH = ["cat", "dog", "bus"]
KEEP, DROP = (ChairScorer(unfinished=each) for each in UNFINISHED)
CAPTIONS = st.lists(
    st.lists(st.sampled_from(["dog", "cat.", "bus", "the", "tree."]), min_size=1, max_size=8).map(" ".join),
    min_size=1,
    max_size=4,
)


def described(*texts):
    samples = [Sample(str(number), f"{number}.png", "", "captions", TRUTH) for number in range(len(texts))]
    return samples, AnswerTexts({sample.id: text for sample, text in zip(samples, texts, strict=True)})


def recall(scorer, samples, captions):
    tally = captions.tally(scorer, samples)["captions"]
    return float(tally.figures["recall"].value(tally.counts.sum(0)))


def test_the_cut_brings_a_baseline_to_the_length_of_a_method():
    cuts = CaptionCuts(KEEP, *described("one two three four", "one two three four five six", "one"))
    assert cuts.to_length(described("one two", "one two", "one two three")[1]) == 3  # means of 1, 5/3, 7/3, 3, ...
    assert cuts.to_length(described("one two three")[1]) == 4
    assert cuts.to_length(described("one two three four five six")[1]) is None
    assert CaptionCuts(KEEP, *described()).to_length(described("one")[1]) is None


def test_equal_length_is_that_of_the_captions_as_they_are_scored():
    samples, plain = described("A dog here. A cat there. A bus")
    assert CaptionCuts(KEEP, samples, plain).to_length(described("A dog. A cat and then")[1]) == 6
    assert CaptionCuts(DROP, samples, plain).to_length(described("A dog. A")[1]) == 2  # "A dog." of two words beside "A dog"
    assert CaptionCuts(DROP, samples, plain).to_length(described("One two three four five six. A")[1]) is None


def test_the_cut_brings_a_baseline_to_the_recall_of_a_method():
    samples, plain = described("a dog and a cat and a tree and a bus", "a cat")
    cuts = CaptionCuts(KEEP, samples, plain)  # after 1, 2, 5 and 11 words they recall 0, 2, 3 and 4 of 6

    def cut_to(*texts):
        return cuts.to_recall(described(*texts)[1].tally(KEEP, samples))

    assert cut_to("a dog", "a cat and a bus") == 5  # 3 of 6
    assert cut_to("a dog", "a cat") == 2
    assert cut_to("a dog", "nothing") == 1  # 1 of 6: between 0 and 2, the fewer words
    assert cut_to("nothing", "nothing") == 1
    assert cut_to("a dog and a cat", "a dog and a cat") is None, "it recalls no more, whole"
    assert cuts.tally(5)["captions"].rates()["recall"].value == 0.5
    assert cuts.tally(None)["captions"].rates()["recall"].value == pytest.approx(4 / 6)


def test_equal_recall_drops_unfinished_sentences_after_cutting():
    samples, plain = described("A dog. A cat and a bus.")
    (_, told) = described("A dog. A cat")
    assert CaptionCuts(KEEP, samples, plain).to_recall(told.tally(KEEP, samples)) == 4
    assert CaptionCuts(DROP, samples, plain).to_recall(told.tally(DROP, samples)) == 2


@given(CAPTIONS, st.lists(st.sampled_from(["dog", "bus", "cat"]), max_size=3), st.sampled_from([KEEP, DROP]))
def test_no_cut_comes_nearer_in_recall_or_in_length_and_none_as_near_is_shorter(texts, own, scorer):
    samples, plain = described(*texts)
    (sample, *_), method = described(" and ".join(own))
    for name in ("recall", "length"):
        if name == "recall":
            words = CaptionCuts(scorer, samples, plain).to_recall(method.tally(scorer, [sample]))
            measure = [recall(scorer, samples, plain.cut(cut)) for cut in (*range(1, 9), None)]
            target = recall(scorer, [sample], method)
        else:
            words = CaptionCuts(scorer, samples, plain).to_length(method)
            measure = [mean_words(plain.cut(cut).scored(scorer.unfinished).values()) for cut in (*range(1, 9), None)]
            target = mean_words(method.scored(scorer.unfinished).values())
        if measure[-1] <= target:
            assert words is None
        else:
            assert words == 1 + int(np.argmin([abs(value - target) for value in measure[:-1]]))


def test_ambers_recall_is_its_cover():
    samples = [Sample("0", "0.png", "Describe it.", "generative", {"truth": ["dog", "cat"], "hallu": []})]
    scorer = AmberScorer.of({"relation": {"dog": [], "cat": []}, "safe_words": []})
    told = AnswerTexts({"0": "There is a cat."}).tally(scorer, samples)
    assert CaptionCuts(scorer, samples, AnswerTexts({"0": "a dog and a cat"})).to_recall(told) == 2


def test_captions_without_a_recall_cannot_be_brought_to_equal_recall():
    samples, plain = described("a dog")
    tally = Tally(("0.png",), np.ones((1, 1)), {"words": Figure(lambda c: c[..., 0], lambda c: 1.0)}, {"0": True})
    with pytest.raises(SettingError, match="equal recall needs the figure recall or cover; here there are words"):
        CaptionCuts(KEEP, samples, plain).to_recall({"captions": tally})
