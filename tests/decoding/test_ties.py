"""Tokens that were chosen among equals are counted, in every loop that chooses greedily, up to the end of each answer."""

import pytest
import torch

import mgap
from mgap.decoding.fast.captured_loop import uses_captured_loop
from mgap.decoding.generate import end_ids, generation_config, until_end
from mgap.decoding.ties import TieCounter
from mgap.errors import UnsupportedDecoding
from mgap.types import Decoding
from tests.decoding.test_prefill import ASKED, A, B
from tests.methods.builders import build

NEW = 12
ROWS = [A, B, A], ASKED[:3]


@pytest.fixture(scope="module")
def twins(family, checkpoints):
    """A model whose head has two equal rows, for a token that it says and one that occurs nowhere."""
    model = mgap.load(str(checkpoints[family]), dtype=torch.float32)
    plain = [answer.token_ids for answer in model.answers(*ROWS, batch_size=3, max_new_tokens=NEW)]
    asked = model.backbone.encode(*ROWS)["input_ids"].unique().tolist()
    weight = model.backbone.head_module.weight
    twin = max(set(range(len(weight))) - {token for row in plain for token in row} - set(asked))
    with torch.no_grad():
        weight[twin] = weight[plain[1][2]]
    return model


@pytest.fixture
def ending(twins):
    """The same, and the rows end at different tokens."""
    config = twins.backbone.model.generation_config
    before = config.eos_token_id
    said = [answer.token_ids for answer in twins.answers(*ROWS, batch_size=3, max_new_tokens=NEW)]
    config.eos_token_id = [said[1][3], said[0][6]]
    yield twins
    config.eos_token_id = before


def recount(model, rows=ROWS, **options):
    """The same from the scores that transformers hands out: the two best of a step are equal."""
    config = generation_config(model.backbone, Decoding(max_new_tokens=NEW, **options))
    config.output_scores = True
    inputs = model.backbone.encode(*rows)
    with torch.no_grad():
        out = model.backbone.model.generate(**inputs, generation_config=config)
    said = out.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    counts = []
    for row, tokens in enumerate(said):
        best = [scores[row].sort(descending=True).values[:2].tolist() for scores in out.scores]
        counts.append(sum(first == second for first, second in best[: len(until_end(tokens, end_ids(model.backbone)))]))
    return counts


def counted(model, rows=ROWS, **options):
    answers = model.answers(*rows, batch_size=3, max_new_tokens=NEW, count_ties=True, **options)
    return [answer.ties for answer in answers]


def test_a_tie_is_two_best_scores_that_are_equal_and_scores_stay_as_they_are():
    counter, inf = TieCounter(), float("inf")
    scores = torch.tensor([[1.0, 3.0, 3.0], [3.0, 1.0, 1.0], [2.0, 2.0, 2.0], [-inf, -inf, 0.0], [0.0, 1.0, 1.0 + 1e-6]])
    assert counter(None, scores) is scores
    counter(None, scores.flip(0))
    assert counter.rows() == [[True, False], [False, False], [True, True], [False, False], [False, True]]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", [None, "mgap", "vcd"])
def test_as_many_as_the_scores_of_the_choice_say(twins, name, static):
    if name is None:
        expected, found = recount(twins), counted(twins, static_cache=static)
        assert 0 < sum(expected) < 3 * NEW
    else:
        with twins.using(build(name, mgap.Subspace.fit(twins, mgap.default_prompts()))):
            expected, found = recount(twins), counted(twins, static_cache=static)
    assert found == expected


@pytest.mark.parametrize("static", [False, True])
def test_what_follows_the_end_of_a_row_does_not_count(ending, static):
    assert uses_captured_loop(ending.backbone, Decoding(static_cache=static).modes(rows=3)) is static
    answers = list(ending.answers(*ROWS, batch_size=3, max_new_tokens=NEW, count_ties=True, static_cache=static))
    assert len({len(answer.token_ids) for answer in answers}) > 1
    assert [answer.ties for answer in answers] == recount(ending)
    assert sum(answer.ties for answer in answers) > 0


@pytest.mark.parametrize("static", [False, True])
def test_scores_are_taken_after_the_repetition_penalty(twins, static):
    """Of two equal tokens the one that was said is punished: it is no tie the second time."""
    expected = recount(twins, repetition_penalty=1.3)
    assert expected != recount(twins)
    assert counted(twins, repetition_penalty=1.3, static_cache=static) == expected


def test_rounding_to_sixteen_bits_makes_ties(family, checkpoints):
    model = mgap.load(str(checkpoints[family]), dtype=torch.bfloat16)
    assert counted(model) == recount(model)
    with torch.no_grad():
        model.backbone.head_module.weight.mul_(0)
    assert counted(model) == [NEW] * 3, "all logits are 0"


def test_a_shared_prefill_counts_the_same(twins):
    rows = [A, A, A], ASKED[:3]
    assert counted(twins, rows, prefill="shared") == counted(twins, rows) == recount(twins, rows)


def test_nothing_is_counted_unless_it_is_asked_for(twins):
    assert twins.answer(A, ASKED[0], max_new_tokens=2).ties is None
    answer = twins.answer(A, ASKED[0], max_new_tokens=NEW, count_ties=True)
    assert [answer.ties] == recount(twins, ([A], ASKED[:1]))


@pytest.mark.parametrize("options", [{"sample": True}, {"num_beams": 3}, {"prompt_lookup": 3}], ids=str)
def test_sampling_beams_and_drafts_refuse_to_count(twins, options):
    with pytest.raises(UnsupportedDecoding, match=r"counted in greedy decoding only.*leave count_ties out"):
        next(twins.answers([A], ASKED[:1], batch_size=1, count_ties=True, **options))
    with pytest.raises(UnsupportedDecoding, match=r"counted in greedy decoding only.*leave count_ties out"):
        twins.answer(A, ASKED[0], count_ties=True, **options)


def test_a_draft_model_and_a_search_refuse_to_count(twins):
    with pytest.raises(UnsupportedDecoding, match="this is assisted decoding"):
        twins.answer(A, ASKED[0], assistant=twins, count_ties=True)
    with twins.using(mgap.OPERA()), pytest.raises(UnsupportedDecoding, match="opera is a search of its own"):
        twins.answer(A, ASKED[0], count_ties=True)
