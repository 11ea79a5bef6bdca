import pytest

from mgap.decoding.model import load
from mgap.errors import SettingError, UnsupportedDecoding
from mgap.methods.bias import Bias
from mgap.serving.sampling import logit_bias, refuse_decoding, sampling_fields
from mgap.types import Decoding


def test_greedy_decoding_is_temperature_zero_and_ends_at_the_models_own_tokens():
    fields = sampling_fields(Decoding(max_new_tokens=7), {5, 2}, "random/1")
    assert fields["temperature"] == 0
    assert fields["max_tokens"] == 7
    assert fields["stop_token_ids"] == [2, 5]
    assert fields["ignore_eos"]  # a tokenizer's other one ends nothing in transformers
    assert "seed" not in fields


def test_sampling_takes_all_that_was_asked_for():
    decoding = Decoding(
        sample=True, temperature=0.7, top_p=0.9, top_k=40, min_p=0.2, seed=3, repetition_penalty=1.1, num_return_sequences=4
    )
    fields = sampling_fields(decoding, {2}, "random/1")
    expected = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.2, "repetition_penalty": 1.1, "n": 4}
    assert {name: fields[name] for name in expected} == expected


def test_every_sample_draws_its_own_numbers_and_the_same_ones_in_any_batch():
    def seed(name, number):
        return sampling_fields(Decoding(sample=True, seed=number), {2}, name)["seed"]

    assert seed("a", 0) == seed("a", 0)
    assert len({seed("a", 0), seed("b", 0), seed("a", 1), seed("b", 1)}) == 4
    assert 0 <= seed("a", 0) < 2**63 - 1000


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_beams": 2}, "no beams"),
        ({"prompt_lookup": 3}, "speculative_config"),
        ({"static_cache": True}, "in pages"),
        ({"compile": True}, "compiles by itself"),
    ],
)
def test_what_vllm_does_otherwise_is_refused_with_what_it_has_instead(options, told):
    with pytest.raises(UnsupportedDecoding, match=told):
        refuse_decoding(Decoding(**options))


def test_a_bias_moves_the_odds_of_its_words_by_the_whole_shift():
    tokenizer = load("pocket/llava").backbone.tokenizer
    method = Bias(shift=-3.0)
    added, (up, down) = logit_bias(method, tokenizer), method.tokens(tokenizer)
    assert set(added) == up | down
    assert all(added[one] - added[other] == -3 for one in up for other in down)


def test_a_bias_that_vllm_would_cut_is_refused():
    with pytest.raises(SettingError, match="at most 100 to a token, a shift of 200"):
        logit_bias(Bias(shift=201.0), None)
