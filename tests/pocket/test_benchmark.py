"""Pocket-POPE, -CHAIR and -AMBER: balanced, true, and refused on seeds that are not for them."""

import re
from collections import Counter
from pathlib import Path

import pytest

from mgap.benchmarks.pope.questions import SPLITS
from mgap.errors import SettingError
from mgap.pocket import benchmark
from mgap.pocket.benchmark import QUESTIONS_PER_SCENE, TEST, amber, chair_truth, pope, scenes, world_statistics
from mgap.pocket.corpus import FIRST_TRAINING_SEED
from mgap.pocket.language import NUMBERS, ask_existence, mentions
from mgap.pocket.objects import plural
from mgap.pocket.samples import chair_samples, true_captions


@pytest.fixture(scope="module")
def questions():
    return {split: list(pope(split, count=60)) for split in SPLITS}


@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_true_and_balanced(questions, split):
    asked = questions[split]
    assert all((q.name in q.scene.names) == (q.label == "yes") for q in asked)
    assert Counter(q.label for q in asked)["yes"] == len(asked) / 2
    assert max(Counter(q.scene.seed for q in asked).values()) == QUESTIONS_PER_SCENE
    assert len({(q.scene.seed, q.text) for q in asked}) == len(asked)


def test_the_positive_questions_are_the_same_in_every_split(questions):
    positive = [[(q.scene.seed, q.text) for q in questions[split] if q.label == "yes"] for split in SPLITS]
    assert positive[0] == positive[1] == positive[2]


def test_what_was_counted_over_the_world_is_what_its_scenes_hold():
    counted = benchmark.count_world()
    assert world_statistics() == counted
    assert (Path(benchmark.__file__).parent / benchmark.COUNTS).read_text() == benchmark.counts_text(*counted)


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


def test_the_truth_for_captions_is_what_is_drawn():
    truth = chair_truth(count=20)
    for scene in scenes(TEST, 20):
        assert truth[str(scene.seed)] == {"segmentation": sorted(scene.names), "caption_only": []}


def test_amber_asks_every_kind_in_its_own_format():
    queries, annotations = amber(count=80)
    assert [q["id"] for q in queries] == [a["id"] for a in annotations] == list(range(1, len(queries) + 1))
    assert all(list(q) == ["id", "image", "query"] for q in queries)
    kinds = Counter((a["type"], a["truth"]) for a in annotations if a["type"] != "generative")
    assert [a["type"] for a in annotations[:81]].count("generative") == 80
    assert all(set(a["truth"]).isdisjoint(a["hallu"]) for a in annotations[:80])
    assert kinds["discriminative-attribute-state", "yes"] == kinds["discriminative-attribute-state", "no"] > 40
    assert kinds["discriminative-attribute-number", "yes"] == kinds["discriminative-attribute-number", "no"] > 40
    assert kinds["discriminative-relation", "yes"] == kinds["relation", "no"] > 20
    assert kinds["discriminative-hallucination", "no"] > 150
    assert len(kinds) == 7


def test_ambers_truths_hold():
    queries, annotations = amber(count=80)
    by_image = {f"pocket_{scene.seed}.png": scene for scene in scenes(TEST, 80)}
    checked = Counter()
    for query, annotation in zip(queries, annotations, strict=True):
        scene, text = by_image[query["image"]], query["query"]
        if match := re.match(r"(?:Is|Are) the ([a-z ]+) (\w+) in this image\?", text):
            holds = scene.only(match[1]).colour == match[2]
        elif match := re.match(r"(?:Is|Are) there (one|two|three) ([a-z ]+) in this image\?", text):
            wanted = NUMBERS.index(match[1])
            holds = any(scene.count(name) == wanted and match[2] in (name, plural(name)) for name in scene.names)
        elif annotation["type"] == "discriminative-hallucination":
            holds = any(text == ask_existence(name) for name in scene.names)
        else:
            continue
        checked[annotation["type"]] += 1
        assert holds == (annotation["truth"] == "yes"), text
    assert len(checked) == 3


def test_true_captions_name_everything_that_is_drawn_and_nothing_else():
    samples = chair_samples(6).samples
    told = true_captions(samples, wordings=8)
    assert list(told) == [sample.id for sample in samples]
    for sample in samples:
        assert 1 < len(told[sample.id]) <= 8
        assert all(set(mentions(text)) == set(sample.truth) for text in told[sample.id])
    assert true_captions(samples, wordings=8) == told
