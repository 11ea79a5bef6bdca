"""Hooks come and go: also after an error, also around compiled models, never twice, never silently skipped."""

import pytest
import torch

import mgap
from mgap.decoding.attach import attached
from mgap.errors import SettingError

pytestmark = pytest.mark.filterwarnings("ignore:alpha=")


def logits(module, inputs):
    with torch.no_grad():
        return module(**inputs).logits


@pytest.fixture
def inputs(model, picture):
    return model.backbone.encode([picture], ["Is there a dog in the image?"])


def test_the_hook_is_gone_after_an_error(model, prior):
    with pytest.raises(ZeroDivisionError), model.using(mgap.MGAP(prior)):
        raise ZeroDivisionError
    assert not model.backbone.head_module._forward_hooks
    assert not attached(model.backbone.model)


def test_the_hook_is_gone_after_generate_failed(model, prior):
    with pytest.raises(mgap.MgapError), model.using(mgap.MGAP(prior)):
        model.answer("nowhere.png", "What is this?")
    assert not model.backbone.head_module._forward_hooks


def test_detaching_twice_does_no_harm(model, prior, inputs):
    before = logits(model.backbone.model, inputs)
    handle = mgap.attach(model, mgap.MGAP(prior))
    handle.detach()
    handle.detach()
    assert torch.equal(logits(model.backbone.model, inputs), before)


def test_a_second_method_on_the_same_model_is_refused(model, prior, inputs):
    with model.using(mgap.MGAP(prior, alpha=0.5)):
        once = logits(model.backbone.model, inputs)
        with pytest.raises(SettingError, match="already attached"):
            mgap.attach(model, mgap.MGAP(prior))
        assert torch.equal(logits(model.backbone.model, inputs), once)


def test_something_that_is_no_method_is_refused(model, prior):
    with pytest.raises(SettingError, match="not a method"):
        mgap.attach(model, prior)


def test_something_that_is_no_model_is_refused(prior):
    with pytest.raises(mgap.MgapError, match="not a model"):
        mgap.attach("llava-hf/llava-1.5-7b-hf", mgap.MGAP(prior))


@pytest.mark.long
@pytest.mark.parametrize("attach_to", ["the module", "the compiled wrapper"])
def test_a_model_compiled_before_the_hook_came_does_not_skip_it(model, prior, attach_to):
    module, inputs = model.backbone.model, model.backbone.encode([None], ["What is this?"])
    compiled = torch.compile(module, backend="eager")
    plain = logits(compiled, inputs)
    with mgap.attach(module if attach_to == "the module" else compiled, mgap.MGAP(prior, alpha=8.0)):
        eager = logits(module, inputs)
        assert not torch.allclose(eager, plain, atol=1e-2)
        torch.testing.assert_close(logits(compiled, inputs), eager, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(compiled, inputs), plain, rtol=1e-4, atol=1e-4)


def test_the_consumer_of_a_stream_may_leave_early(model, picture):
    stream = model.stream(picture, "Describe the picture.", max_new_tokens=200)
    next(stream)
    stream.close()
    assert model.answer(picture, "Is it free again?", max_new_tokens=2).token_ids


def test_an_error_inside_a_stream_reaches_the_consumer(model, picture, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(type(model.backbone.model), "generate", fail)  # undone on an object it would stay, as its own
    with pytest.raises(RuntimeError, match="out of memory"):
        list(model.stream(picture, "What is this?"))
