"""On a CUDA device: half precision, CUDA graphs, and agreement with the CPU."""

import pytest
import torch

import mgap

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:alpha=")]
QUESTION = "Is there a dog in the image?"


@pytest.fixture(scope="module")
def on_cpu(family, checkpoints):
    return mgap.load(str(checkpoints[family]), device="cpu")


def test_a_model_goes_to_the_gpu_by_itself(model):
    assert model.backbone.device.type == "cuda"


def test_the_gpu_and_the_cpu_give_the_same_prior_and_answer(model, on_cpu, prior, picture):
    there = mgap.Subspace.fit(on_cpu, mgap.default_prompts())
    torch.testing.assert_close(prior.projector, there.projector, rtol=0, atol=1e-3)
    for device in (model, on_cpu):
        with device.using(mgap.MGAP(prior, alpha=1.0)):
            device.tokens = device.answer(picture, QUESTION, max_new_tokens=8).token_ids
    assert model.tokens == on_cpu.tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"static_cache": True}, {"compile": True}, {"num_beams": 3}])
def test_half_precision_decodes_with_mgap(family, checkpoints, prior, picture, dtype, options):
    model = mgap.load(str(checkpoints[family]), dtype=dtype)
    plain = model.answer(picture, QUESTION, max_new_tokens=12, **options).token_ids
    with model.using(mgap.MGAP(prior, alpha=8.0)):
        assert model.answer(picture, QUESTION, max_new_tokens=12, **options).token_ids != plain
    assert model.answer(picture, QUESTION, max_new_tokens=12, **options).token_ids == plain


def test_a_captured_graph_follows_every_change_of_alpha(model, prior, picture):
    """Compiled decoding replays CUDA graphs: each strength must reach them, in any order."""
    expected = {}
    for alpha in (0.0, 4.0, 8.0):
        with model.using(mgap.MGAP(prior, alpha=alpha)):
            expected[alpha] = model.answer(picture, QUESTION, max_new_tokens=12).token_ids
    assert len(set(expected.values())) == 3
    for alpha in (8.0, 0.0, 4.0, 8.0):
        with model.using(mgap.MGAP(prior, alpha=alpha)):
            assert model.answer(picture, QUESTION, max_new_tokens=12, compile=True).token_ids == expected[alpha]
