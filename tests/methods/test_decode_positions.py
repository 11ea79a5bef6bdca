"""What a step of a branch is handed as its mask: nothing, a bias made once, or the usual mask, and always the same answer."""

import pytest
import torch
from transformers import DynamicCache

import mgap
from mgap.methods.kinds import decode_positions
from mgap.methods.kinds.decode_positions import DecodePositions

QUESTION = "Is there a dog in the image?"


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def masks_of(model, picture, method, **options):
    """What the text decoder is handed at every step after the prompt, and the answer."""
    seen = []

    def look(_language, _args, kwargs):
        if kwargs["inputs_embeds"].shape[1] == 1:
            seen.append(kwargs["attention_mask"])

    handle = model.backbone.language.register_forward_pre_hook(look, with_kwargs=True)
    try:
        with model.using(method):
            answer = model.answer(picture, QUESTION, max_new_tokens=6, **options)
    finally:
        handle.remove()
    return seen, answer.token_ids


def test_rows_of_one_length_are_read_without_a_mask(exact, picture):
    for method in (mgap.VCD(), mgap.Blind(), mgap.MoD(rho=0.1)):
        seen, _ = masks_of(exact, picture, method)
        assert seen
        assert all(mask is None for mask in seen)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_a_ready_bias_hides_what_the_usual_mask_hides(exact, picture, monkeypatch, options):
    for method in (mgap.ICD(alpha=4.0), mgap.M3ID(lam=0.4), mgap.ICD(alpha=4.0, with_vcd=True, branch_mode="sequential")):
        ready, told = masks_of(exact, picture, method, **options)
        with monkeypatch.context() as patch:
            patch.setattr(decode_positions, "takes_bias", lambda _kernel: False)
            usual, expected = masks_of(exact, picture, method, **options)
        assert told == expected
        pairs = [(bias, mask) for bias, mask in zip(ready, usual, strict=True) if bias is not None and bias.ndim == 4]
        assert pairs
        for bias, mask in pairs:
            assert torch.equal(bias[:, 0, 0] == 0, mask.bool())
            assert bias.stride(0) % 8 == 0, "fused attention copies rows that are not aligned"


@pytest.mark.parametrize(("kernel", "hidden"), [("sdpa", -torch.inf), ("flash_attention_2", 0)])
def test_a_long_answer_outgrows_its_mask_and_beams_take_it_along(monkeypatch, kernel, hidden):
    monkeypatch.setattr(decode_positions, "_STEPS_AHEAD", 8)
    cache = DynamicCache()
    cache.update(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4), 0)
    rows = DecodePositions(torch.tensor([[0, 1, 1], [1, 1, 1]]), torch.tensor([[0, 0, 1], [0, 1, 2]]))

    def places():
        return (rows.arguments(cache, kernel)["attention_mask"].flatten(1) == hidden).nonzero().tolist()

    for step in range(1, 30):
        rows.step()
        given = rows.arguments(cache, kernel)
        assert given["attention_mask"].shape[-1] == 3 + step
        assert given["position_ids"].tolist() == [[1 + step], [2 + step]]
        assert places() == [[0, 0]]
    rows.reorder(torch.tensor([1, 0]))
    assert places() == [[1, 0]]
    assert rows.whole_mask().tolist() == [[1] * 32, [0] + [1] * 31]
