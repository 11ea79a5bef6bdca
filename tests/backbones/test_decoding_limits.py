"""What a model cannot take is refused before it runs, with the numbers: tokens, characters, beams, memory."""

from types import SimpleNamespace

import pytest
import torch

import mgap
from mgap.backbones import decoding_limits
from mgap.backbones.decoding_limits import positions_of
from mgap.errors import NotEnoughMemory, PromptError, SettingError
from tests.decoding.test_prefill import ASKED, A

LONG = "Is there a dog in the picture? " * 240


@pytest.fixture
def short(family, checkpoints):
    """A model with few positions left behind a question."""
    model = mgap.load(str(checkpoints[family]), dtype=torch.float32)
    length = model.backbone.encode([A], ASKED[:1])["input_ids"].shape[1]
    model.backbone.config.get_text_config().max_position_embeddings = length + 5
    model.backbone.model.generation_config.eos_token_id = None
    return model


@pytest.fixture
def unused(model):
    """No forward may run."""

    def run(*_):
        raise AssertionError("the model ran")

    handle = model.backbone.model.register_forward_pre_hook(run)
    yield model
    handle.remove()


@pytest.mark.parametrize("prefill", ["own", "shared"])
def test_a_prompt_longer_than_the_positions_is_refused_before_the_model_runs(unused, prefill):
    with pytest.raises(PromptError, match=r"the prompt has \d,\d+ tokens, with its picture, .* has 1,024 positions"):
        list(unused.answers([A], [LONG], prefill=prefill))
    with pytest.raises(PromptError, match="1,024 positions"):
        next(unused.stream(A, LONG))


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(unused, monkeypatch):
    def tokenize(*_, **__):
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(type(unused.backbone.tokenizer), "__call__", tokenize)
    longest = 1024 * max(map(len, unused.backbone.tokenizer.get_vocab()))
    with pytest.raises(PromptError, match=rf"400,\d+ characters, .* reads {longest:,} at most"):
        unused.answer(None, "x" * 400_000)


@pytest.mark.parametrize(
    "options", [{}, {"static_cache": True}, {"num_beams": 2}, {"sample": True}, {"prompt_lookup": 3}], ids=str
)
def test_an_answer_goes_up_to_the_last_position_and_stops_for_its_length(short, options):
    answer = short.answer(A, ASKED[0], max_new_tokens=100, **options)
    assert (len(answer.token_ids), answer.stop) == (5, "length")
    assert len(short.answer(A, ASKED[0], max_new_tokens=3, **options).token_ids) == 3


@pytest.mark.parametrize("options", [{}, {"prefill": "shared"}, {"prefill": "shared", "static_cache": True}], ids=str)
def test_rows_of_a_batch_go_as_far_as_the_longest_can(short, options):
    answers = short.answers([A, A], [ASKED[0], ASKED[2]], batch_size=2, max_new_tokens=100, **options)
    assert {len(answer.token_ids) for answer in answers} == {5}


def test_a_stream_goes_up_to_the_last_position(short):
    told = "".join(short.stream(A, ASKED[0], max_new_tokens=100)).strip()
    assert told == short.answer(A, ASKED[0], max_new_tokens=5).text


def test_a_stretched_rope_reaches_as_far_as_it_is_stretched():
    def reach(most, rope=None):
        text = SimpleNamespace(max_position_embeddings=most, rope_parameters=rope)
        return positions_of(SimpleNamespace(get_text_config=lambda: text))

    assert reach(1024) == reach(1024, {"rope_type": "default", "rope_theta": 1e4}) == 1024
    assert reach(1024, {"rope_type": "linear", "factor": 4.0}) == 4096
    assert reach(4096, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}) == 4096
    assert reach(1024, {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {}}) == 8192
    assert reach(None) is None
    assert reach("many") is None


def test_more_beams_than_tokens_are_refused(unused, prior):
    with pytest.raises(SettingError, match=r"num_beams=100,000 is more than the 384 tokens"):
        unused.answer(A, ASKED[0], num_beams=100_000)
    with unused.using(mgap.OPERA(beams=1000)), pytest.raises(SettingError, match="num_beams=1,000 is more than"):
        unused.answer(A, ASKED[0])


@pytest.mark.parametrize("options", [{"num_beams": 300}, {"sample": True, "num_return_sequences": 300}], ids=str)
def test_rows_that_memory_cannot_hold_are_refused_with_the_figures(unused, monkeypatch, options):
    monkeypatch.setattr(decoding_limits, "GIB", 2**10)
    monkeypatch.setattr(decoding_limits, "_free_on", lambda _device: 2**10)
    with pytest.raises(NotEnoughMemory, match=r"rows of \d+ tokens need at least [\d,]+\.\d GiB .* 1\.0 GiB are free"):
        unused.answer(A, ASKED[0], max_new_tokens=900, **options)


def test_a_step_of_its_own_that_memory_cannot_hold_is_refused_and_a_kept_one_takes_no_more(short, monkeypatch):
    short.answer(A, ASKED[0], max_new_tokens=5, static_cache=True)
    room = decoding_limits.bytes_of_rows(short.backbone, 1, short.backbone.encode([A], ASKED[:1])["input_ids"].shape[1] + 2)
    monkeypatch.setattr(decoding_limits, "GIB", 1)
    monkeypatch.setattr(decoding_limits, "_free_on", lambda _device: room)
    short.answer(A, ASKED[0], max_new_tokens=5, static_cache=True)
    with pytest.raises(NotEnoughMemory, match="1 row of"):
        short.answer(A, ASKED[0], max_new_tokens=4, static_cache=True)


def test_a_run_halves_a_batch_that_memory_cannot_hold():
    assert issubclass(NotEnoughMemory, MemoryError)


def test_what_is_counted_is_what_a_cache_takes(model):
    inputs = model.backbone.encode([A], ASKED[:1])
    with torch.no_grad():
        cache = model.backbone.model(**inputs, use_cache=True).past_key_values
    taken = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))
    assert decoding_limits.bytes_of_rows(model.backbone, 1, inputs["input_ids"].shape[1]) == taken + 4 * 384
    assert decoding_limits._free_on(torch.device("cpu")) > 2**20
    assert decoding_limits._free_on(torch.device("meta")) is None
