"""The log-odds of yes against no at the first token: of the plain prediction, without its rounding, in every loop."""

import pytest
import torch

import mgap
from mgap.backbones.head_states import catch_states
from mgap.decoding.generate import generate
from mgap.errors import UnsupportedDecoding
from mgap.methods.bias import Bias
from mgap.types import Decoding
from tests.decoding.test_prefill import ASKED, A, B

ROWS = [A, B, A], ASKED[:3]


@pytest.fixture(scope="module")
def expected(tiny_model):
    """From the states that the head reads."""
    backbone = tiny_model.backbone
    up, down = (sorted(ids) for ids in Bias(shift=0.0).tokens(backbone.tokenizer))
    with catch_states(backbone) as states:
        generate(backbone, backbone.encode(*ROWS), Decoding(max_new_tokens=1))
    logits = states[0].double() @ backbone.head_module.weight.double().T
    return (logits[:, up].amax(-1) - logits[:, down].amax(-1)).tolist()


def read(model, rows=ROWS, **options):
    answers = model.answers(*rows, batch_size=3, max_new_tokens=3, log_odds=True, **options)
    return [answer.log_odds for answer in answers]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_cache": True},
        {"sample": True, "temperature": 3.0, "top_p": 0.1},
        {"sample": True, "num_return_sequences": 2},
        {"num_beams": 2},
        {"repetition_penalty": 2.0},
    ],
    ids=str,
)
def test_they_are_those_of_the_prompt_however_tokens_are_chosen(tiny_model, expected, options):
    assert read(tiny_model, **options) == pytest.approx(expected, abs=1e-4)
    assert len({round(odds, 3) for odds in expected}) > 1


def test_a_shared_prefill_reads_the_same(tiny_model):
    rows = [A, A, A], ASKED[:3]
    assert read(tiny_model, rows, prefill="shared") == pytest.approx(read(tiny_model, rows), abs=1e-4)


def test_a_bias_turns_the_choice_between_yes_and_no_where_the_log_odds_say_so(tiny_model, expected):
    up, down = Bias(shift=0.0).tokens(tiny_model.backbone.tokenizer)
    for image, prompt, odds in zip(*ROWS, expected, strict=True):
        for near, side in ((0.01, up), (-0.01, down)):
            with tiny_model.using(mgap.Bias(shift=near - odds)), torch.no_grad():
                logits = tiny_model.backbone.model(**tiny_model.backbone.encode([image], [prompt])).logits[0, -1]
            assert max(up | down, key=lambda token: float(logits[token])) in side


def test_the_logits_rounding_to_sixteen_bits_has_no_part_in_them(tiny):
    found = read(mgap.load(str(tiny), dtype=torch.bfloat16))
    assert all(odds != float(torch.tensor(odds).bfloat16()) for odds in found)


def test_what_is_not_plain_decoding_refuses_them(tiny_model):
    with tiny_model.using(mgap.VCD()), pytest.raises(UnsupportedDecoding, match=r"plain decoding, and vcd is on.*log_odds out"):
        tiny_model.answer(A, ASKED[0], log_odds=True)
    with pytest.raises(UnsupportedDecoding, match="several tokens at once"):
        tiny_model.answer(A, ASKED[0], log_odds=True, prompt_lookup=3)
    assert tiny_model.answer(A, ASKED[0], max_new_tokens=1).log_odds is None


@pytest.mark.one_family
def test_a_model_without_the_words_refuses_them(family, checkpoints):
    model = mgap.load(str(checkpoints[family]))
    with pytest.raises(UnsupportedDecoding, match="'Yes' is not one token"):
        model.answer(A, ASKED[0], log_odds=True)
