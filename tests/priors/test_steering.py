"""Steering vectors: what captions say, saved and read back, and refused for another model."""

from dataclasses import replace

import pytest
import torch

import mgap
from mgap.errors import BackboneMismatch, CorruptFile, PromptError
from mgap.priors.steering import Caption, read_caption

PIECES = (("is there ", True), ("a dog ", False), ("in the ", None), ("picture", True))


@pytest.fixture
def captions(picture):
    return [
        Caption(picture, "What?", PIECES),
        Caption(picture.rotate(90, expand=True), "Describe it.", [("the image ", False), ("is the picture", True)]),
    ]


def test_vectors_are_the_difference_of_means_over_the_labelled_tokens(model, captions):
    """Against the model's own hidden states, token by token; the last block's come before the final norm."""
    backbone, factual, invented = model.backbone, [], []
    for caption in captions:
        inputs, labels = read_caption(backbone, caption)
        caught = []
        handle = backbone.final_norm.register_forward_pre_hook(lambda _norm, args, caught=caught: caught.append(args[0]))
        with torch.no_grad():
            states = backbone.model(**inputs, output_hidden_states=True, use_cache=False).hidden_states
        handle.remove()
        for t, label in enumerate(labels, start=inputs["input_ids"].shape[1] - len(labels)):
            rows = [state[0, t].double() for state in (*states[1:-1], caught[0])]
            if label is not None:
                (factual if label else invented).append(torch.stack(rows))
    found = mgap.Steering.fit(model, iter(captions))
    assert found.counts == (len(factual), len(invented))
    expected = sum(factual) / len(factual) - sum(invented) / len(invented)
    torch.testing.assert_close(found.vectors, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.units.norm(dim=-1), torch.ones(3, dtype=torch.float64))
    assert not any(block._forward_hooks and "catch" in str(block._forward_hooks) for block in backbone.layers)


def test_a_token_has_the_label_of_the_piece_that_it_ends(model, captions):
    inputs, labels = read_caption(model.backbone, captions[0])
    ids = inputs["input_ids"][0, -len(labels) :].tolist()
    said = {label: model.backbone.tokenizer.decode([i for i, given in zip(ids, labels, strict=True) if given is label])
            for label in (True, False)}  # fmt: skip
    assert "dog" in said[False]
    assert "dog" not in said[True]
    assert "picture" in said[True].replace(" ", "")


def test_saved_vectors_come_back_and_belong_to_their_model(model, captions, tmp_path):
    made = mgap.Steering.fit(model, captions)
    made.save(tmp_path)
    back = mgap.Steering.load(tmp_path)
    assert torch.equal(back.vectors, made.vectors)
    assert (back.counts, back.identity, back.origin) == (made.counts, made.identity, made.origin)
    assert back.origin["captions"] == len(captions)
    back.require(model.backbone)
    other = replace(back, identity=replace(back.identity, sample=tuple(-x for x in back.identity.sample)))
    with pytest.raises(BackboneMismatch, match="weights differ"):
        other.require(model.backbone)


def test_damaged_vectors_are_refused(tmp_path):
    mgap.Steering.from_states(torch.randn(2, 3, 8), torch.randn(3, 3, 8)).save(tmp_path)
    path = tmp_path / "steering.json"
    path.write_text(path.read_text().replace('"counts"', '"numbers"'))
    with pytest.raises(CorruptFile, match="fit them again"):
        mgap.Steering.load(tmp_path)


@pytest.mark.parametrize(("label", "missing"), [(True, "invented"), (False, "true")])
def test_a_class_without_a_token_is_refused(model, picture, label, missing):
    with pytest.raises(PromptError, match=missing):
        mgap.Steering.fit(model, [Caption(picture, "What?", [("a dog", label)])])


def test_a_caption_without_text_is_refused(model, picture):
    with pytest.raises(PromptError, match="no text"):
        mgap.Steering.fit(model, [Caption(picture, "What?", [])])
