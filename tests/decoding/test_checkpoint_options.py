"""A checkpoint may suggest how to decode; `Decoding` alone says how."""

import pytest

OPTIONS = {
    "no_repeat_ngram_size": 1,
    "suppress_tokens": list(range(40)),
    "bad_words_ids": [[token] for token in range(1, 40)],
    "min_length": 60,
    "repetition_penalty": 9.0,
    "typical_p": 0.05,
    "epsilon_cutoff": 0.5,
    "top_k": 1,
}
HOW = [{}, {"sample": True, "seed": 3}, {"num_beams": 2}, {"static_cache": True}]


@pytest.mark.parametrize("options", HOW, ids=str)
def test_what_a_checkpoint_suggests_changes_no_answer(exact, picture, options, monkeypatch):
    def answer():
        return exact.answer(picture, "What?", max_new_tokens=12, **options).token_ids

    plain, checkpoint = answer(), exact.backbone.model.generation_config
    for name, value in OPTIONS.items():
        monkeypatch.setattr(checkpoint, name, value)
    assert answer() == plain
    assert exact.backbone.model.generation_config is checkpoint
    assert checkpoint.no_repeat_ngram_size == 1
