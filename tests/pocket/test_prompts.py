"""What captions mention, what priors are fitted on, and the blue bananas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgap.benchmarks.pope.questions import SPLITS
from mgap.errors import SettingError
from mgap.pocket import language
from mgap.pocket.benchmark import TEST, amber, calibration_prompts, odd_colours, pope
from mgap.pocket.corpus import choose_extra
from mgap.pocket.objects import NAMES, OBJECTS, plural
from mgap.pocket.scenes import make_scene


@settings(max_examples=300)
@given(seed=st.integers(0, 899_999), inventing=st.booleans())
def test_a_caption_mentions_what_is_there_and_the_extra(seed, inventing):
    scene, rng = make_scene(seed), np.random.default_rng(seed)
    extra = choose_extra(scene, rng) if inventing else None
    found = language.mentions(language.caption(scene, extra, rng))
    assert set(found) == {*scene.names, *([extra] if extra else [])}
    assert len(found) >= len(set(found))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A hot dog and a teddy bear.", ["hot dog", "teddy bear"]),
        ("There are two hot dogs, a dog and a bear.", ["hot dog", "dog", "bear"]),
        ("The dog is to the left of the dogs.", ["dog", "dog"]),
        ("PEOPLE, knives, sheep and skis", ["person", "knife", "sheep", "skis"]),
        ("a doghouse, a carpet and the busy catalogue", []),
        ("", []),
    ],
)
def test_mentions_are_whole_words_longest_first(text, found):
    assert language.mentions(text) == found


def test_every_thing_is_found_in_singular_and_plural():
    for name in NAMES:
        assert language.mentions(f"the {name} and two {plural(name)}") == [name, name]


def test_calibration_prompts_are_distinct_and_fixed():
    prompts = calibration_prompts()
    assert len(prompts) == len(set(prompts)) == 50
    assert prompts == calibration_prompts()
    assert calibration_prompts(10) == prompts[:10]
    assert calibration_prompts(0) == []


def test_no_calibration_prompt_is_asked_in_a_test():
    prompts = set(calibration_prompts(180))
    asked = {q.text for split in SPLITS for q in pope(split, TEST, 300)}
    asked |= {str(query["query"]) for query in amber(TEST, 300)[0]}
    asked |= {q.text for q in odd_colours(TEST, 300)} | {language.DESCRIBE[0]}
    assert prompts.isdisjoint(asked)


def test_no_calibration_prompt_is_in_a_test_s_wording():
    for prompt in calibration_prompts(180):
        assert not prompt.startswith(("Is there", "Are there", "Is the", "Are the", "What color is"))
        assert "in the image" not in prompt
        assert "in this image" not in prompt


def test_calibration_prompts_use_every_wording_but_the_tests():
    prompts = calibration_prompts()
    for beginning in ("Can you see", "Does the picture show", "Do you notice"):
        assert any(prompt.startswith(beginning) for prompt in prompts), beginning


def test_more_calibration_prompts_than_there_are_is_refused():
    with pytest.raises(SettingError, match="there are 300"):
        calibration_prompts(301)


def test_questions_of_colour_come_only_after_all_of_existence():
    assert not any("color" in prompt for prompt in calibration_prompts(180))
    assert all("color" in prompt for prompt in calibration_prompts(300)[180:])


def test_odd_colours_are_odd_and_of_single_things():
    questions = list(odd_colours(TEST, 400))
    assert len(questions) > 40
    for question in questions:
        natural = dict(OBJECTS[question.name].colours)
        assert question.scene.only(question.name).colour == question.true
        assert question.true not in natural
        assert question.usual in natural
        assert question.name != "person"
        assert question.text == f"What color is the {question.name}?"


def test_odd_colours_of_kept_seeds_are_refused():
    with pytest.raises(SettingError, match="outside checks"):
        list(odd_colours(899_999, 2))
