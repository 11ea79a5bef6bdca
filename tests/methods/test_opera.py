"""OPERA: against itself written out, with and without going back; its zero; batches; refusals; nothing left behind."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor

import mgap
from mgap.errors import ModelError, SettingError, UnsupportedDecoding
from mgap.methods.kinds.attention_interceptor import ARGUMENT, CAUSAL, attend
from mgap.methods.opera.beams import Beams
from mgap.methods.opera.last_block import LastBlockWeights
from mgap.methods.opera.overtrust import collapse, column_scores, lengthen, most_common
from mgap.methods.opera.retrospection import Retrospection, Strength
from tests.reference import opera as reference

QUESTIONS = ("Is there a dog in the image?", "What?", "Describe what you can make out in this long and winding picture.")
NEW = 14
SHORT = 12  # where every token of the vocabulary is a candidate; past the tenth, after which tokens are penalised
LONG = 30  # the search goes back to the eleventh token at the earliest
BACK = {"sigma": 40.0, "candidates": 2, "beams": 2}  # with a small r the tiny models go back


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32, and without placeholders in its answers, which the reference cannot read."""
    model = mgap.load(str(checkpoints[family]), dtype=torch.float32)
    names = [name for name in model.backbone.tokenizer.get_vocab() if "image" in name or "pad|" in name or "vision" in name]
    ids = torch.tensor(model.backbone.tokenizer.convert_tokens_to_ids(names))
    model.backbone.head_module.register_forward_hook(lambda _head, _args, logits: logits.index_fill(-1, ids, -1e4))
    return model


def tell(model, picture, question, new=NEW, **options):
    return model.answer(picture, question, max_new_tokens=new, **options).token_ids


@pytest.mark.parametrize(
    "settings",
    [{"alpha": 1.0, "sigma": 50.0, "candidates": 5, "beams": 3},
     {"alpha": 40.0, "sigma": 30.0, "candidates": 3, "beams": 2},
     {"alpha": 5e5, "sigma": 30.0, "candidates": 4, "beams": 1}],
    ids=["paper", "strong", "one beam"],
)  # fmt: skip
def test_opera_is_what_its_equations_say(exact, picture, settings):
    told, without = [], []
    for question in QUESTIONS[:2]:
        expected, _ = reference.decode(exact, exact.backbone.encode([picture], [question]), NEW, r=15, **settings)
        with exact.using(mgap.OPERA(**settings)):
            told.append(tell(exact, picture, question))
        assert told[-1] == expected
        with exact.using(replace(mgap.OPERA(**settings), alpha=0.0)):
            without.append(tell(exact, picture, question))
    assert max(map(len, told)) == NEW
    assert told != without, "the penalty must have had a say"


@pytest.mark.parametrize("r", [pytest.param(0, marks=[pytest.mark.product, pytest.mark.one_family]), 1])
def test_it_goes_back_where_its_rule_says(exact, picture, r):
    """Alone and in a batch of mixed lengths, in which some samples go back and others do not, each at its own time."""
    with exact.using(mgap.OPERA(**BACK, r=r)):
        alone = [exact.answer(picture, question, max_new_tokens=LONG, trace=True) for question in QUESTIONS]
        together = list(exact.answers([picture] * 3, QUESTIONS, max_new_tokens=LONG, trace=True))
    for one, other in zip(alone, together, strict=True):  # each step as its sample did it last, whatever the others did
        assert [step.values for step in one.trace] == [pytest.approx(step.values, rel=1e-2, abs=1e-4) for step in other.trace]
    expected = [
        reference.decode(exact, exact.backbone.encode([picture], [question]), LONG, r=r, alpha=1.0, **BACK)
        for question in QUESTIONS
    ]
    assert [answer.token_ids for answer in alone] == [tokens for tokens, _ in expected]
    assert [answer.trace[-1].values["returns"] for answer in alone] == [count for _, count in expected]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert sum(count for _, count in expected) > 1
    with exact.using(mgap.OPERA(**BACK, r=r, window=0)):
        assert [tell(exact, picture, question, LONG) for question in QUESTIONS] != [answer.token_ids for answer in alone]


def test_a_state_that_is_no_longer_kept_is_not_returned_to(exact, picture):
    with exact.using(mgap.OPERA(**BACK, r=2, window=3)):
        short = [exact.answer(picture, question, max_new_tokens=LONG, trace=True) for question in QUESTIONS]
    with exact.using(mgap.OPERA(**BACK, r=2)):
        long = [exact.answer(picture, question, max_new_tokens=LONG, trace=True) for question in QUESTIONS]
    counts = [sum(answer.trace[-1].values["returns"] for answer in answers) for answers in (short, long)]
    assert counts[0] < counts[1]


def own_zero(exact, beams):
    """Every token a candidate, no penalty, no way back."""
    return mgap.OPERA(alpha=0.0, candidates=exact.backbone.head_module.weight.shape[0], window=0, beams=beams)


@pytest.mark.parametrize(
    "beams",
    [pytest.param(1, marks=pytest.mark.product), 3, pytest.param(5, marks=[pytest.mark.product, pytest.mark.one_family])],
)
def test_its_zero_is_transformers_own_search(exact, picture, beams):
    plain = [tell(exact, picture, question, SHORT, num_beams=beams) for question in QUESTIONS]
    with exact.using(own_zero(exact, beams)):
        assert tell(exact, picture, QUESTIONS[0], SHORT) == plain[0]
        together = exact.answers([picture] * 3, QUESTIONS, max_new_tokens=SHORT)
        assert [answer.token_ids for answer in together] == plain


@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_beam_without_a_penalty_is_greedy_however_many_candidates_there_are(exact, picture, count):
    plain = [tell(exact, picture, question) for question in QUESTIONS]
    with exact.using(mgap.OPERA(alpha=0.0, candidates=count, window=0, beams=1)):
        assert [tell(exact, picture, question) for question in QUESTIONS] == plain


class Best(LogitsProcessor):
    """Beam search among a few tokens a beam: what is left of OPERA without a penalty."""

    def __call__(self, _ids, scores):
        best = scores.topk(4)
        return torch.full_like(scores, -999.0).scatter(1, best.indices, best.values).log_softmax(-1)


def test_without_a_penalty_it_is_beam_search_among_the_candidates(exact, picture):
    own = exact.backbone.model
    for question in QUESTIONS:
        inputs = exact.backbone.encode([picture], [question])
        plain = own.generate(**inputs, max_new_tokens=NEW, num_beams=3, logits_processor=[Best()])
        with exact.using(mgap.OPERA(alpha=0.0, candidates=4, window=0, beams=3)):
            assert torch.equal(own.generate(**inputs, max_new_tokens=NEW), plain)


@pytest.mark.parametrize(
    "options",
    [{"repetition_penalty": 1.5}, {"num_return_sequences": 3, "output_scores": True, "return_dict_in_generate": True},
     *(pytest.param(rest, marks=[pytest.mark.product, pytest.mark.one_family])
       for rest in ({}, {"length_penalty": -1.0}, {"early_stopping": True}, {"length_penalty": 0.0},
                    {"early_stopping": "never"}, {"min_new_tokens": 8}, {"bad_words_ids": [[65], [66, 67]]}))],
    ids=str,
)  # fmt: skip
def test_answers_end_as_in_transformers_own_search(exact, picture, options):
    """With many end tokens: batches in which samples end early, each by the rules that were asked for."""
    own, inputs = exact.backbone.model, exact.backbone.encode([picture] * 3, QUESTIONS)
    options = {"max_new_tokens": SHORT, "eos_token_id": list(range(20, 384, 12)), "pad_token_id": 1, **options}
    plain = own.generate(**inputs, **options, num_beams=3)
    made = plain if isinstance(plain, torch.Tensor) else plain.sequences
    assert (made[:, -1] == 1).any(), "some samples must end before others"
    with exact.using(own_zero(exact, 3)):
        ours = own.generate(**inputs, **options)
    if not options.get("return_dict_in_generate"):
        assert torch.equal(ours, plain)
        return
    assert torch.equal(ours.sequences, plain.sequences)
    assert torch.equal(ours.beam_indices, plain.beam_indices)
    torch.testing.assert_close(ours.sequences_scores, plain.sequences_scores, rtol=0, atol=1e-4)
    steps = [own.compute_transition_scores(made.sequences, made.scores, made.beam_indices) for made in (ours, plain)]
    torch.testing.assert_close(*steps, rtol=0, atol=1e-4)


def test_processors_know_their_rows_also_after_a_sample_went_back(exact, picture):
    """A prefix that depends on the sample: no token of another sample's gets in."""
    own, inputs = exact.backbone.model, exact.backbone.encode([picture] * 3, QUESTIONS)
    length = inputs["input_ids"].shape[1]
    with exact.using(mgap.OPERA(**BACK, r=0)) as attachment, attachment.record() as recorder:
        made = own.generate(
            **inputs, max_new_tokens=LONG, prefix_allowed_tokens_fn=lambda row, _ids: list(range(20 + row, 380, 3))
        )
    assert float(recorder.steps[-1].values["returns"].max()) > 0
    assert [set(((row - 20) % 3).tolist()) for row in made[:, length:]] == [{0}, {1}, {2}]


def test_scores_are_told_once_a_token_also_after_a_sample_went_back(exact, picture):
    own, inputs = exact.backbone.model, exact.backbone.encode([picture], QUESTIONS[:1])
    options = {"max_new_tokens": LONG, "output_scores": True, "return_dict_in_generate": True}
    with exact.using(mgap.OPERA(**BACK, r=0)) as attachment, attachment.record() as recorder:
        made = own.generate(**inputs, **options)
    assert float(recorder.steps[-1].values["returns"].max()) > 0
    assert len(made.scores) == made.sequences.shape[1] - inputs["input_ids"].shape[1]
    steps = own.compute_transition_scores(made.sequences, made.scores, made.beam_indices)
    length_penalty = own.generation_config.length_penalty or 1.0
    expected = float(steps.sum()) / len(made.scores) ** length_penalty
    assert float(made.sequences_scores) == pytest.approx(expected, rel=1e-3)


def test_of_states_the_newest_are_kept():
    sample = Retrospection(Strength(alpha=1.0, sigma=50.0, candidates=5, r=15, window=3), Beams.start(2, torch.device("cpu")))
    for length in range(6):
        sample.state = replace(sample.state, beams=replace(sample.beams, tokens=torch.zeros(2, length, dtype=torch.long)))
        sample.read(None)
    assert list(sample.saved) == [3, 4, 5]


def test_candidates_see_what_came_before_and_themselves_only(exact):
    block = exact.backbone.layers[-1].self_attn
    query, key, value = torch.randn(3, 1, 4, 8, 16).unbind()
    read, mask = LastBlockWeights("opera", block.layer_idx, candidates=True), torch.ones(1, 1, 3, 8).tril(5).bool()
    mask[..., 0] = False  # padding
    out, _ = attend(block, query[:, :, 5:], key[:, ::2], value[:, ::2], mask, **{ARGUMENT: read}, scaling=0.25)
    for n in range(3):
        seen = [1, 2, 3, 4, 5 + n]
        ours = read.weights[0, n]
        scores = torch.einsum("hd,hkd->hk", query[0, :, 5 + n], key[0, ::2].repeat_interleave(2, 0)[:, seen]) * 0.25
        weights = scores.softmax(-1)
        torch.testing.assert_close(ours[seen], weights.max(0).values / weights.max(0).values.sum())
        assert float(ours.sum()) == pytest.approx(1.0)
        expected = torch.einsum("hk,hkd->hd", weights, value[0, ::2].repeat_interleave(2, 0)[:, seen])
        torch.testing.assert_close(out[0, n], expected)


def test_looking_ahead_leaves_the_cache_alone(exact, picture):
    """The same answer whatever the candidates are, as long as nothing comes of them."""
    with exact.using(mgap.OPERA(alpha=0.0, candidates=40, window=0, beams=1)):
        assert tell(exact, picture, QUESTIONS[0]) == tell(exact, picture, QUESTIONS[0], num_beams=1)


def test_products_of_any_size_stay_numbers():
    rows = torch.rand(400, 400).tril() + 0.5
    columns = torch.zeros(0)
    for n in range(400):
        columns = lengthen(columns, rows[n, : n + 1], 50.0)
    phi, place = collapse(columns)
    assert torch.isfinite(phi)
    assert place == columns.argmax()
    assert column_scores(lengthen(columns, torch.zeros(401), 50.0)).eq(0).all()


def test_overflowing_penalties_leave_the_logits_their_say(exact, picture):
    """sigma so large that every candidate's product is: all are penalised alike, and the likeliest token is taken."""
    plain = tell(exact, picture, QUESTIONS[0])
    with exact.using(mgap.OPERA(sigma=1e30, window=0, beams=1)):
        told = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW, trace=True)
    late = [step for step in told.trace if step.values["penalty"] > 1e38]
    assert late
    assert all(step.after[0].token_id == step.before[0].token_id == step.token_id for step in late)
    assert len(plain) == len(told.token_ids)


def test_the_most_common_of_several_is_the_smallest():
    assert most_common(torch.tensor([[0, 6, 0, 1, 1], [3, 2, 3, 3, 3], [4, 3, 2, 1, 9]])).tolist() == [0, 3, 1]


def test_a_row_without_a_picture_is_penalised_but_not_rewarded(exact, picture):
    with exact.using(mgap.OPERA(alpha=30.0, beams=2)):
        seen, unseen = exact.answers([picture, None], QUESTIONS[:2], max_new_tokens=NEW, trace=True)
        assert unseen.token_ids == tell(exact, None, QUESTIONS[1])
        assert seen.token_ids == tell(exact, picture, QUESTIONS[0])
    assert all(step.values["image"] == 0 for step in unseen.trace)
    assert all(step.values["penalty"] == -step.values["image"] < 0 for step in seen.trace[:10])
    assert all(step.values["penalty"] > 0 for step in (*seen.trace[10:], *unseen.trace[10:]))


def test_the_trace_follows_the_answer_through_its_returns(exact, picture):
    """What a returning search shows is what it did last at each place: the chosen token was likely there."""
    with exact.using(mgap.OPERA(**{**BACK, "beams": 1}, r=0)):
        answer = exact.answer(picture, QUESTIONS[1], max_new_tokens=LONG, trace=True)
    assert answer.trace[-1].values["returns"] > 0
    assert [step.token_id for step in answer.trace] == list(answer.token_ids)
    assert [step.after[0].token_id for step in answer.trace] == list(answer.token_ids)
    counts = [step.values["returns"] for step in answer.trace]
    assert counts == sorted(counts)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_detaching_leaves_the_model_as_it_was(exact, picture, kernel):
    own = exact.backbone.model
    text, vision = own.config.text_config, own.config.vision_config
    usual, text._attn_implementation = text._attn_implementation, kernel

    def look():
        hooks = [(list(module._forward_hooks), list(module._forward_pre_hooks)) for module in own.modules()]
        kernels = [config._attn_implementation for config in (own.config, text, vision)]
        return (
            deepcopy(own.config.to_dict()),
            own.generation_config.to_dict(),
            list(own.modules()),
            hooks,
            kernels,
            vars(own).keys(),
        )

    try:
        exact.answer(picture, QUESTIONS[0], max_new_tokens=2)  # transformers adds hooks of its own once
        before = look()
        with exact.using(mgap.OPERA(beams=2)):
            assert text._attn_implementation == CAUSAL
            assert tell(exact, picture, QUESTIONS[0])
            with pytest.raises(UnsupportedDecoding):
                own.generate(**exact.backbone.encode([picture], ["What?"]), do_sample=True, max_new_tokens=2)
        assert look() == before
        assert own.generate == type(own).generate.__get__(own)
    finally:
        text._attn_implementation = usual


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flex_attention"])
def test_a_kernel_that_shows_no_weights_is_refused_by_name(exact, kernel):
    own, text = exact.backbone.model, exact.backbone.config.text_config
    usual, text._attn_implementation = text._attn_implementation, kernel
    try:
        with pytest.raises(ModelError, match=kernel), exact.using(mgap.OPERA()):
            pass
        assert text._attn_implementation == kernel
        assert "generate" not in vars(own)
    finally:
        text._attn_implementation = usual


def test_a_decoder_that_cannot_be_read_is_refused(exact, picture):
    """Its attention gets no argument, changes its scores by itself, or is never called in the last block."""
    block, states = exact.backbone.layers[-1].self_attn, torch.randn(3, 1, 4, 2, 16)
    with pytest.raises(ModelError, match="hand arguments on"):
        attend(block, *states, torch.ones(1, 1, 2, 2).bool())
    with pytest.raises(ModelError, match="softcap"):
        attend(block, *states, torch.ones(1, 1, 2, 2).bool(), **{ARGUMENT: LastBlockWeights("opera")}, softcap=50.0)
    usual, block.config = block.config, deepcopy(block.config)  # this block no longer follows the decoder's configuration
    try:
        block.config._attn_implementation = "sdpa"
        with exact.using(mgap.OPERA()), pytest.raises(ModelError, match="attention of its own"):
            exact.answer(picture, "What?", max_new_tokens=2)
    finally:
        block.config = usual


def test_a_generate_that_was_replaced_is_refused(exact, monkeypatch):
    own = exact.backbone.model
    monkeypatch.setattr(own, "generate", lambda: None)
    with pytest.raises(ModelError, match="replaced"), exact.using(mgap.OPERA()):
        pass
    assert not own._forward_pre_hooks


@pytest.mark.parametrize(
    "options",
    [{"cache_implementation": "static"}, {"cache_implementation": "offloaded"}, {"use_cache": False}, {"num_beams": 3},
     {"do_sample": True}, {"prompt_lookup_num_tokens": 2}, {"stop_strings": ["a"], "tokenizer": "a tokenizer"},
     {"custom_generate": print}, {"synced_gpus": True}, {"output_attentions": True, "return_dict_in_generate": True},
     {"output_hidden_states": True}, {"output_logits": True}, {"guidance_scale": 2.0}, {"penalty_alpha": 0.6, "top_k": 4},
     {"generation_config": GenerationConfig(num_beams=4)}],
    ids=str,
)  # fmt: skip
def test_your_own_generate_in_a_refused_way_is_refused(exact, picture, options):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.OPERA(beams=2)), pytest.raises(UnsupportedDecoding):
        exact.backbone.model.generate(**inputs, **options, **({} if "generation_config" in options else {"max_new_tokens": 4}))


def test_a_forward_that_is_not_the_searchs_is_refused(exact, picture):
    inputs = exact.backbone.encode([picture], ["What?"])
    with exact.using(mgap.OPERA()), pytest.raises(UnsupportedDecoding, match="call generate"):
        exact.backbone.model(**inputs)
    with exact.using(mgap.OPERA()), pytest.raises(UnsupportedDecoding, match="call generate"):
        type(exact.backbone.model).generate(exact.backbone.model, **inputs, max_new_tokens=2)


def test_the_number_of_beams_is_the_methods_own(exact, picture):
    with exact.using(mgap.OPERA(beams=3)):
        told = tell(exact, picture, QUESTIONS[0])
        assert tell(exact, picture, QUESTIONS[0], num_beams=3) == told
        with pytest.raises(UnsupportedDecoding, match="beams=2"):
            tell(exact, picture, QUESTIONS[0], num_beams=2)
    with exact.using(mgap.OPERA(beams=1)):
        assert tell(exact, picture, QUESTIONS[0]) != told


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"alpha": -1}, "alpha"), ({"sigma": 0}, "sigma"), ({"sigma": float("nan")}, "sigma"), ({"candidates": 0}, "candidates"),
     ({"r": -1}, "r=-1"), ({"r": 1.5}, "r=1.5"), ({"beams": 0}, "beams"), ({"window": -1}, "window"),
     ({"preset": "slow"}, "fast")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.OPERA(**settings)


def test_presets_fill_in_what_is_not_given():
    assert mgap.OPERA().strength == (1.0, 50.0, 5, 15, 512)
    assert mgap.OPERA(preset="fast", r=3).strength == (1.0, 50.0, 1, 3, 512)


def test_the_fast_preset_goes_back_only(exact, picture):
    """One candidate a beam: the penalty has nothing to choose from."""
    for question in QUESTIONS:
        with exact.using(mgap.OPERA(preset="fast", beams=1, window=0)):
            assert tell(exact, picture, question, LONG) == tell(exact, picture, question, LONG, num_beams=1)
    with exact.using(mgap.OPERA(preset="fast", beams=2, r=0, sigma=40.0)):
        answers = [exact.answer(picture, question, max_new_tokens=LONG, trace=True) for question in QUESTIONS]
    assert sum(answer.trace[-1].values["returns"] for answer in answers) > 0
