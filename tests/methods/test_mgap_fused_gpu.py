"""The fused step on a CUDA device: agreement at real sizes, CUDA graphs, streams, and that decoding takes it."""

from dataclasses import replace

import pytest
import torch

import mgap
from mgap.methods.mgap_fused import FusedStep
from tests.methods.fused_cases import CASES, HALF, LARGE, Case, compare, draw, steps

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES | LARGE)
def test_a_card_agrees_with_the_plain_step(name):
    compare((CASES | LARGE)[name], "cuda")


@pytest.mark.parametrize("batch", [1, 32])
def test_a_captured_step_replays_on_new_inputs_with_its_own_alpha(batch):
    case = Case((batch, 1), 32064, 1024, 5, HALF)
    replayed = []
    for alpha in (0.5, 2.0):
        case = replace(case, settings=replace(case.settings, alpha=alpha))
        head, basis, h, output = draw(case, "cuda")
        plain, quick = steps(case, head, basis)
        with torch.no_grad():
            quick(None, (h,), output)  # builds the kernels
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = quick(None, (h,), output)
            for seed in (1, 2):
                _, _, other, fresh = draw(case, "cuda", seed)
                h.copy_(other), output.copy_(fresh), logits.fill_(torch.nan)
                graph.replay()
                torch.testing.assert_close(logits, plain(None, (h,), output), rtol=torch.finfo(HALF).eps, atol=3e-5)
        replayed.append(logits.clone())
    assert not torch.allclose(*map(torch.Tensor.float, replayed), atol=1e-2)


def test_a_step_on_another_stream_or_card_than_the_current_one_is_right():
    case = Case((4, 1), 5000, 256, 5, HALF)
    device = f"cuda:{torch.cuda.device_count() - 1}"  # another one, where there are several
    head, basis, h, output = draw(case, device)
    plain, quick = steps(case, head, basis)
    expected, here = plain(None, (h,), output), quick(None, (h,), output)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        there = quick(None, (h,), output)
    torch.cuda.synchronize(device)
    for logits in (here, there):
        torch.testing.assert_close(logits, expected, rtol=torch.finfo(HALF).eps, atol=3e-5)


def test_an_attached_model_takes_the_fused_step_on_a_card(model, prior, picture, monkeypatch):
    calls = []
    launch = FusedStep.launch
    monkeypatch.setattr(FusedStep, "launch", lambda self, *given: calls.append(given[1].shape) or launch(self, *given))
    with model.using(mgap.MGAP(prior)):
        answer = model.answer(picture, "What is this?", max_new_tokens=8)
    assert len(calls) >= len(answer.token_ids)
