"""A chat template is a program of the checkpoint's: one that is wrong, forbidden or endless ends in a sentence."""

import threading

import pytest

from mgap.backbones import template_rendering
from mgap.errors import PromptError

BROKEN = {
    "{% for %}": "Expected an expression",
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{{ nothing.at.all }}": "undefined",
    "{{ messages.__class__.__mro__() }}": "unsafe",
    "{{ range(10**12) }}": "Range too big",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{{ 1 // 0 }}": "zero",
    "{{ messages + 1 }}": "concatenate",
    "{% include 'other' %}": "loader",
}
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}"


@pytest.fixture
def templated(model, monkeypatch):
    def use(template):
        monkeypatch.setattr(model.backbone.processor, "chat_template", template)
        return model

    return use


@pytest.mark.parametrize("template", BROKEN)
def test_a_template_that_fails_is_named_with_its_model(templated, picture, template):
    model = templated(template)
    with pytest.raises(PromptError, match=rf"its chat template cannot be used \(.*{BROKEN[template]}") as caught:
        model.answer(picture, "What is this?")
    assert model.backbone.name in str(caught.value)


def test_a_template_without_end_is_stopped(templated, picture, monkeypatch):
    monkeypatch.setattr(template_rendering, "SECONDS", 0.2)
    with pytest.raises(PromptError, match=r"its chat template was not done after 0\.2 s"):
        templated(NESTED).answer(picture, "What is this?")
    for thread in [one for one in threading.enumerate() if one.name == "mgap-template"]:
        thread.join(60)
        assert not thread.is_alive()


def test_a_template_that_writes_too_much_is_refused_before_it_is_tokenized(templated, picture):
    with pytest.raises(PromptError, match=r"1,000,000 characters"):
        templated("{% for i in range(100000) %}0123456789{% endfor %}").answer(picture, "What is this?")


def test_a_set_of_templates_without_the_usual_one_is_none(templated, picture, monkeypatch):
    model = templated({"tool_use": "x"})
    with pytest.raises(PromptError, match="has no chat template"):
        model.answer(picture, "What is this?")
