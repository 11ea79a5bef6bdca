"""What every method of the registry declares, and that it is true."""

from dataclasses import fields

import pytest
import torch

import mgap
from mgap.errors import SettingError
from mgap.registry import LEARNT, METHODS
from tests.methods.builders import NEEDED, build, build_at_zero

WITH_A_ZERO = [name for name in METHODS.names() if METHODS.get(name).zero is not None]


@pytest.mark.parametrize("name", METHODS.names())
def test_needs_and_zero_name_settings_and_kinds_that_there_are(name):
    method = METHODS.get(name)
    settings = {f.name for f in fields(method)}
    assert {*method.needs, *(method.zero or {})} <= settings
    for need in method.needs.values():
        assert need.kind in LEARNT
        assert not need.only_with or need.only_with in settings
    unlearnt = [setting for setting in method.needed() if setting not in method.needs]
    assert unlearnt == list(NEEDED.get(name, ())), "a setting without a default that nothing can learn"


@pytest.mark.parametrize("name", METHODS.names())
def test_it_can_be_built_from_what_it_declares(prior, name):
    assert build(name, prior).name == name


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.mark.parametrize("name", WITH_A_ZERO)
def test_at_its_zero_it_says_what_the_plain_model_says(exact, prior, picture, name):
    plain = exact.answer(picture, "What is in the picture?", max_new_tokens=6).token_ids
    with exact.using(build_at_zero(name, prior)):
        assert exact.answer(picture, "What is in the picture?", max_new_tokens=6).token_ids == plain


def test_what_is_needed_depends_on_the_settings():
    assert list(mgap.Tether.learnt_settings({})) == ["bank"]
    assert list(mgap.Tether.learnt_settings({"alpha": 0.5})) == ["bank", "prior"]
    assert list(mgap.Tether.learnt_settings()) == ["bank", "prior"]
    assert mgap.Tether.takes_prior()
    assert not mgap.ASD.takes_prior()


@pytest.mark.parametrize("name", [name for name in METHODS.names() if METHODS.get(name).learnt_settings()])
def test_a_value_that_no_model_can_make_right_is_refused_before_anything_is_learnt(name):
    method = METHODS.get(name)
    method.check_values({})
    for setting in set(method.setting_names()) - set(method.learnt_settings()):
        with pytest.raises(SettingError, match=setting):
            method.check_values({setting: "no such value"})
