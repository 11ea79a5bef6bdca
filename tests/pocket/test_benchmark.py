"""Pocket-POPE: balanced, true, and refused on seeds that are not for it."""

from collections import Counter

import pytest

from mgap.errors import SettingError
from mgap.pocket.benchmark import ASKED, SPLITS, TEST, pope, scenes, world_statistics
from mgap.pocket.corpus import FIRST_TRAINING_SEED


@pytest.fixture(scope="module")
def questions():
    return {split: list(pope(split, count=60)) for split in SPLITS}


@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_true_and_balanced(questions, split):
    asked = questions[split]
    assert all((q.name in q.scene.names) == (q.label == "yes") for q in asked)
    assert Counter(q.label for q in asked)["yes"] == len(asked) / 2
    assert max(Counter(q.scene.seed for q in asked).values()) == ASKED
    assert len({(q.scene.seed, q.text) for q in asked}) == len(asked)


def test_the_positive_questions_are_the_same_in_every_split(questions):
    positive = [[(q.scene.seed, q.text) for q in questions[split] if q.label == "yes"] for split in SPLITS]
    assert positive[0] == positive[1] == positive[2]


def test_popular_things_are_frequent_and_adversarial_ones_are_seen_together(questions):
    frequency, together = world_statistics()

    def mean_frequency(split):
        return sum(frequency[q.name] for q in questions[split] if q.label == "no") / len(questions[split])

    def mean_together(split):
        negatives = [q for q in questions[split] if q.label == "no"]
        return sum(together[frozenset((q.name, seen))] for q in negatives for seen in q.scene.names) / len(negatives)

    assert mean_frequency("popular") > 2 * mean_frequency("random")
    assert mean_together("adversarial") > 1.5 * mean_together("popular") > 3 * mean_together("random")


def test_a_record_is_written_as_pope_writes_it(questions):
    record = questions["random"][0].record(1)
    assert list(record) == ["question_id", "image", "text", "label"]
    assert record["text"].startswith("Is there a")
    assert record["text"].endswith("in the image?")


@pytest.mark.parametrize(("first", "count"), [(899_990, 20), (950_000, 1), (FIRST_TRAINING_SEED - 1, 2)])
def test_seeds_that_are_kept_or_trained_on_are_refused(first, count):
    with pytest.raises(SettingError, match="seeds"):
        list(scenes(first, count))


def test_an_unknown_split_names_the_known_ones():
    with pytest.raises(SettingError, match="adversarial"):
        list(pope("hard"))


def test_the_held_out_version_asks_the_same(questions):
    held_out = list(pope("random", TEST, 60, held_out=True))
    assert [q.text for q in held_out] == [q.text for q in questions["random"]]
    assert {t.style for q in held_out for t in q.scene.things} == {"sketch"}
