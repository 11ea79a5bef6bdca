"""The lens: the states that the model had, where the head reads, for as long as a forward lasts."""

import gc
import threading

import pytest
import torch

import mgap
from mgap.backbones.logit_lens import Lens
from mgap.errors import ModelError, SettingError

METHODS = {"dola": mgap.DoLa(layers=[0, 1, 2]), "deco": mgap.DeCo(layers=[0, 1, 2], alpha=40.0)}


@pytest.fixture(params=METHODS)
def method(request):
    return METHODS[request.param]


@pytest.fixture
def inputs(model, picture):
    return model.backbone.encode([picture, picture], ["Is there a dog in the image?", "What?"])


def logits(module, inputs, **options):
    with torch.no_grad():
        return module(**inputs, **options).logits


def hooks(model):
    """Everything that is hooked to the model, by module; transformers keeps hooks of its own, which do not change."""
    return {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in model.backbone.model.named_modules()}


@pytest.mark.parametrize("keep", [0, 1, 5, torch.tensor([3, -1])], ids=str)
def test_the_states_are_those_of_the_model_where_the_head_reads(model, inputs, keep):
    lens, seen = Lens(model.backbone, [0, 1, 2]), []
    handles = lens.hook()
    handles.append(model.backbone.head_module.register_forward_hook(lambda _m, args, _o: seen.append(lens.take(args[0]))))
    with torch.no_grad():
        out = model.backbone.model(**inputs, output_hidden_states=True, logits_to_keep=keep)
    for handle in handles:
        handle.remove()
    places = slice(-keep, None) if isinstance(keep, int) else keep
    text = ~model.backbone.image_mask(inputs)[:, places]  # some models add to a picture's states between two blocks
    for layer in range(3):
        assert torch.equal(seen[0][layer][text], out.hidden_states[layer][:, places][text])


def test_a_prefill_keeps_one_position_of_each_row(model, inputs):
    lens, kept = Lens(model.backbone, [1, 2]), []
    handles = lens.hook()

    def look(_module, args, _output):
        states = [state for frames in lens._frames.values() for frame in frames for state in frame.states.values()]
        kept.extend((tuple(state.shape), state.untyped_storage().nbytes() // state.element_size()) for state in states)
        lens.take(args[0])

    handles.append(model.backbone.head_module.register_forward_hook(look))
    model.backbone.model.generate(**inputs, max_new_tokens=1, do_sample=False)
    for handle in handles:
        handle.remove()
    width = model.backbone.config.get_text_config().hidden_size
    assert kept == [((2, 1, width), 2 * width)] * 2, "a view would hold the whole prompt in memory"


def test_every_position_of_a_forward_is_what_a_prefix_gives(model, method, picture):
    inputs = model.backbone.encode([picture], ["Is there a dog in the image, or is there none?"])
    with model.using(method):
        every = logits(model.backbone.model, inputs)
        for back in (1, 4, 11):
            last = logits(model.backbone.model, inputs, logits_to_keep=back)
            torch.testing.assert_close(last, every[:, -back:], rtol=1e-4, atol=1e-4)


def test_nothing_stays_after_detaching(model, method, inputs):
    plain = logits(model.backbone.model, inputs)
    before = hooks(model)  # with those that transformers itself sets up in the first forward
    with model.using(method):
        assert not torch.equal(logits(model.backbone.model, inputs), plain)
        assert hooks(model) != before
    assert hooks(model) == before
    assert torch.equal(logits(model.backbone.model, inputs), plain)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is Lens]


def test_a_forward_that_breaks_off_leaves_nothing_to_the_next(model, method, inputs):
    last = model.backbone.layers[-1]

    def fail(*_):
        raise ZeroDivisionError

    with model.using(method):
        whole = logits(model.backbone.model, inputs)
        handle = last.register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            logits(model.backbone.model, inputs, logits_to_keep=1)
        handle.remove()
        assert torch.equal(logits(model.backbone.model, inputs), whole)


def test_parts_of_the_model_called_by_hand_are_refused_or_right(model, method, inputs):
    own = model.backbone.model
    with model.using(method), torch.no_grad():
        whole = own(**inputs).logits
        assert torch.equal(own.forward(**inputs).logits, whole)
        with pytest.raises(ModelError, match="call the model itself"):
            own.forward(**inputs, logits_to_keep=1)
        with pytest.raises(ModelError, match="call the model itself"):
            model.backbone.head_module(torch.zeros(1, 1, 64))


def test_two_threads_do_not_meet(model, method, picture):
    if not hasattr(model.backbone.model, "multi_modal_projector"):
        return  # a model that keeps positions on itself cannot be shared between threads at all
    questions = ["Is there a dog?", "Describe what you can make out in this long and winding picture, please."]
    said = {}

    def work(question):
        said[question] = [model.answer(picture, question, max_new_tokens=12).token_ids for _ in range(5)]

    with model.using(method):
        alone = {q: [model.answer(picture, q, max_new_tokens=12).token_ids] * 5 for q in questions}
        threads = [threading.Thread(target=work, args=(q,)) for q in questions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert said == alone


def test_a_second_forward_inside_a_forward_does_not_disturb_it(model, method, picture):
    """A hook of somebody else's that asks the model for something in between."""
    inputs, other = (model.backbone.encode([picture], [q]) for q in ("Is there a dog in the image?", "What?"))
    own, nested = model.backbone.model, []
    with model.using(method):
        expected = logits(own, inputs), logits(own, other)

        def ask(*_):
            if not nested:
                nested.append(None)
                nested[0] = logits(own, other)

        handle = model.backbone.layers[1].register_forward_hook(ask)
        found = logits(own, inputs)
        handle.remove()
    assert torch.equal(found, expected[0])
    assert torch.equal(nested[0], expected[1])


@pytest.mark.parametrize("layers", [[], [3], [0, 9]])
def test_layers_that_the_model_does_not_have_are_refused(model, layers):
    with pytest.raises(SettingError, match="3 blocks"):
        Lens(model.backbone, layers)


def test_a_depth_without_a_candidate_is_refused_and_leaves_no_hook(model):
    before = hooks(model)
    with pytest.raises(SettingError, match="none is chosen"), model.using(_without_layers()):
        pass
    assert hooks(model) == before


def _without_layers():
    class Nowhere(mgap.DoLa):
        def early_layers(self, count, head):
            return ()

    return Nowhere()
