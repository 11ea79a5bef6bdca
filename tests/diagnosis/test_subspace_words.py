"""What directions do to words: by hand on a head of unit vectors, and on real heads of both families."""

import numpy as np
import pytest
import torch
from torch import nn

import mgap
from mgap.backbones.head import Head
from mgap.diagnosis.model_comparison import Side, compare_sides
from mgap.diagnosis.principal_angles import Overlap, orthonormal
from mgap.diagnosis.subspace_words import (
    MovedOdds,
    answer_line,
    average_step,
    extremes,
    orient,
    read_answers,
    read_directions,
    spellings,
    word_table,
)
from mgap.errors import BackboneMismatch, SettingError
from mgap.pocket.tiny import build_tiny

SPELLED = {0: "Yes", 1: "No", 2: " dog", 3: " cat", 4: " tree"}


class Packed(nn.Module):
    """A head without a plain weight, as quantised ones are."""

    def __init__(self, weight):
        super().__init__()
        self.inner = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.inner.weight = nn.Parameter(weight)

    def forward(self, h):
        return self.inner(h)


def head_of(weight, bias=None, packed=False, **post):
    module = Packed(weight) if packed else nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    if not packed:
        module.weight = nn.Parameter(weight)
        if bias is not None:
            module.bias = nn.Parameter(bias)
    return Head.measure(module, torch.randn(1, weight.shape[1], generator=torch.Generator().manual_seed(0)), **post)


@pytest.fixture
def units():
    """A head whose rows are unit vectors: token i is raised by coordinate i and by nothing else."""
    return head_of(torch.eye(5))


def test_a_unit_direction_raises_its_own_word_and_nothing_else(units):
    basis = torch.eye(5, dtype=torch.float64)[:, [2, 0]]
    table = word_table(units, basis, list(SPELLED))
    expected = torch.full((2, 5), -0.2, dtype=torch.float64)
    expected[0, 2] = expected[1, 0] = 0.8
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-6)
    up, down = extremes(table[0], SPELLED, 2)
    assert (up[0].token, up[0].text, up[0].change) == (2, " dog", pytest.approx(0.8))
    assert [word.change for word in down] == pytest.approx([-0.2, -0.2])
    assert not {word.token for word in down} & {2}


def test_what_a_softmax_does_not_see_is_not_shown():
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    basis = orthonormal(torch.randn(3, 2, generator=torch.Generator().manual_seed(2)))
    plain, shifted = head_of(weight), head_of(weight + torch.tensor([5.0, -3.0, 1.0]))  # one vector added to all rows
    biased = head_of(weight, bias=torch.arange(5.0))
    tables = [word_table(head, basis, list(SPELLED)) for head in (plain, shifted, biased)]
    for other in tables[1:]:
        torch.testing.assert_close(other, tables[0], rtol=0, atol=1e-5)
    scaled = word_table(head_of(weight, scale=0.25), basis, list(SPELLED))
    torch.testing.assert_close(scaled, 0.25 * tables[0], rtol=0, atol=1e-6)


def test_directions_point_to_the_mean_and_tell_their_spread(units):
    rows = torch.zeros(6, 5, dtype=torch.float64)
    rows[:, 0] = torch.tensor([-9.0, -5.0, -1.0, 1.0, 2.0, 0.0])  # mean -2
    rows[:, 3] = torch.tensor([1.0, 3.0, 1.0, 3.0, 1.0, 3.0])
    prior = mgap.Subspace.from_states(rows, rank=2)
    basis = orient(prior.basis, prior.mean)
    assert (prior.mean @ basis >= 0).all()
    torch.testing.assert_close(basis @ basis.T, prior.projector)
    table = word_table(units, basis, list(SPELLED))
    line = answer_line(units, (0, 1))
    first, second = read_directions(table, basis, prior, SPELLED, words=1, line=line)
    assert (first.number, second.number) == (1, 2)
    assert first.spread == pytest.approx(float((rows @ basis[:, 0]).std()))
    assert first.mean == pytest.approx(float(prior.mean @ basis[:, 0]))
    assert first.down[0].text == "Yes"  # its mean is negative, so the direction lowers it
    assert second.up[0].text == " cat"
    assert first.readout == pytest.approx(float(basis[0, 0] - basis[1, 0]) / 2**0.5)


def test_the_readout_is_a_difference_of_rows_and_its_share_that_of_a_projection(units):
    basis = torch.eye(5, dtype=torch.float64)[:, [0, 4]]
    found = read_answers(units, basis, torch.tensor([1.0, 2.0, 0.0, 3.0, 0.0]), SPELLED, {0, 2}, {1, 3})
    assert (found.up, found.down, found.tokens) == ("Yes", " cat", (0, 3))  # the likelier spelling of each
    assert found.share == pytest.approx(0.5)  # of (1, 0, 0, -1, 0) the first half
    assert found.chance == 2 / 5
    with pytest.raises(SettingError, match="two words"):
        read_answers(units, basis, torch.ones(5), SPELLED, {0}, {0})


def test_rows_of_a_packed_head_are_found_with_unit_vectors():
    weight = torch.randn(7, 150, generator=torch.Generator().manual_seed(3))
    packed = head_of(weight, packed=True)
    assert packed.weights != "float"
    torch.testing.assert_close(packed.rows([6, 2]), weight[[6, 2]], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(head_of(weight).rows([6, 2]), weight[[6, 2]])


def test_the_average_step_is_what_mgap_does_at_full_strength(units):
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(9000, 5, generator=generator, dtype=torch.float64) + 1  # more than are taken at once
    basis = orthonormal(torch.randn(5, 2, generator=generator))
    table, line = word_table(units, basis, list(SPELLED)), answer_line(units, (0, 1))
    step = average_step("some", table, basis, states, SPELLED, words=5, line=line)
    cut = states - states @ basis @ basis.T
    moved = (cut - states) @ torch.eye(5, dtype=torch.float64)  # the head's rows are unit vectors
    centred = (moved - moved.mean(1, keepdim=True)).mean(0)
    assert {word.token: word.change for word in step.up} == pytest.approx(dict(enumerate(centred.tolist())), abs=1e-6)
    change, odds = moved[:, 0] - moved[:, 1], states[:, 0] - states[:, 1]
    assert (step.answers.mean, step.answers.spread) == (pytest.approx(float(change.mean())), pytest.approx(float(change.std())))
    slope, intercept = np.polyfit(odds, change, 1)
    assert (step.answers.slope, step.answers.intercept) == (pytest.approx(slope), pytest.approx(intercept))
    assert step.answers.fit == pytest.approx(float(torch.corrcoef(torch.stack([odds, change]))[0, 1] ** 2))
    assert step.held == pytest.approx(float(((states @ basis).norm(dim=1) / states.norm(dim=1)).mean()))
    assert average_step("one", table, basis, states[:1], SPELLED, words=1, line=line).answers is None
    with pytest.raises(SettingError, match=r"give \[n, 5\]"):
        average_step("flat", table, basis, states[0], SPELLED, words=1, line=None)


def test_a_step_that_shrinks_and_shifts_is_read_as_such():
    odds = torch.tensor([-3.0, 0.0, 1.0, 6.0], dtype=torch.float64)
    found = MovedOdds.of(odds, 0.5 - 0.25 * odds)
    assert (found.slope, found.intercept, found.fit) == (pytest.approx(-0.25), pytest.approx(0.5), pytest.approx(1))
    assert MovedOdds.of(odds, torch.ones(4, dtype=torch.float64)) is None


def test_a_bias_of_the_head_is_part_of_the_odds():
    biased = head_of(torch.eye(5), bias=torch.tensor([2.0, -1.0, 0.0, 0.0, 0.0]))
    line = answer_line(biased, (0, 1))
    state = torch.tensor([[1.0, 4.0, 0.0, 0.0, 0.0]])
    logits = biased.product(state)[0].detach()
    assert float(line.odds(state.double())) == pytest.approx(float(logits[0] - logits[1]))


def test_only_tokens_that_spell_something_are_words(model):
    tokenizer = model.backbone.tokenizer
    size = model.backbone.probe_head().vocab_size
    spelled = spellings(tokenizer, size)
    assert not {*tokenizer.all_special_ids} & {*spelled}
    assert all(text.strip() and text.strip().isprintable() for text in spelled.values())
    assert max(spelled) < size
    text = "Can you spot a bicycle anywhere in this picture?"
    assert "".join(spelled[token] for token in tokenizer.encode(text, add_special_tokens=False)) == text
    assert len(spellings(tokenizer, 50)) < 50


def test_a_space_before_a_word_is_kept_by_tokenizers_that_drop_it_in_decoding():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "\u2581a": 1, "\u2581dog": 2, "dog": 3, "\u2581": 4, "<unused7>": 5, "new": 6}
    inner = Tokenizer(models.WordLevel(dict(list(vocabulary.items())[:5]), "<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    tokenizer.add_tokens(["<unused7>", "new"])
    assert tokenizer.decode([2]) == "dog"  # as Llama's
    assert spellings(tokenizer, 100) == {1: " a", 2: " dog", 3: "dog", 6: "new"}


def test_a_head_without_words_is_refused(units):
    with pytest.raises(SettingError, match="tokenizer"):
        word_table(units, torch.eye(5)[:, :1], [])


@pytest.fixture
def turned():
    """A model and the same one in other coordinates: h' = R h and W' = W R'."""
    generator = torch.Generator().manual_seed(5)
    weight, basis = torch.randn(40, 6, generator=generator), orthonormal(torch.randn(6, 2, generator=generator))
    turn = orthonormal(torch.randn(6, 6, generator=generator))
    words = {f"w{token}": token for token in range(40)}
    order = torch.randperm(40, generator=generator)  # and another order of the tokens
    one = Side("one", head_of(weight), basis, words)
    shuffled = {f"w{int(token)}": place for place, token in enumerate(order)}
    return one, Side("other", head_of((weight.double() @ turn.T).float()[order]), turn @ basis, shuffled)


def test_one_model_in_other_coordinates_has_the_same_prior(turned):
    seen = []
    found = compare_sides(*turned, draws=8, progress=seen.append)
    assert found.tokens == 40
    assert found.largest == pytest.approx(0, abs=1e-3)
    assert found.shared == pytest.approx(1)
    torch.testing.assert_close(torch.tensor(found.cosines).diagonal(), torch.ones(2), rtol=0, atol=1e-5)
    assert found.heads < 0.9  # random directions are not the same
    assert seen == list(range(1, 9))


def test_only_words_that_both_have_are_compared(turned):
    one, other = turned
    fewer = Side("fewer", other.head, other.basis, {text: token for text, token in other.tokens.items() if token < 30})
    found = compare_sides(one, fewer, draws=2)
    assert found.tokens == 30
    assert found.largest == pytest.approx(0, abs=1e-3)
    strangers = Side("strangers", other.head, other.basis, {f"x{text}": token for text, token in other.tokens.items()})
    with pytest.raises(BackboneMismatch, match="0 tokens alike, too few for rank 2: 20 are needed"):
        compare_sides(one, strangers)


def test_models_of_two_families_are_compared_through_words(model, prior, tmp_path):
    build_tiny("llava", tmp_path, seed=1)
    other = mgap.load(str(tmp_path))
    twin = mgap.Subspace.fit(other, mgap.default_prompts(), rank=3)
    found = compare_sides(Side.of(model, prior), Side.of(other, twin))
    assert (found.ranks, len(found.degrees)) == ((5, 3), 3)
    assert found.heads == pytest.approx(found.chance, rel=0.5)  # random weights have nothing in common
    with pytest.raises(BackboneMismatch):
        Side.of(model, mgap.Subspace.from_states(torch.randn(9, 7), rank=2))


def test_random_directions_through_heads_share_more_than_chance():
    generator = torch.Generator().manual_seed(6)
    common = torch.randn(400, 1, generator=generator)  # both heads move the same words most
    sides = []
    for name in ("one", "other"):
        weight = torch.randn(400, 8, generator=generator) * 0.1 + common * torch.randn(1, 8, generator=generator)
        basis = orthonormal(torch.randn(8, 1, generator=generator))
        sides.append(Side(name, head_of(weight), basis, {f"w{token}": token for token in range(400)}))
    found = compare_sides(*sides)
    assert found.heads > 50 * found.chance
    assert found.heads_smallest < 45
    with pytest.raises(SettingError, match="draws"):
        compare_sides(*sides, draws=1)
    assert Overlap.of(*(word_table(side.head, side.basis, range(400)).T for side in sides)).shared == pytest.approx(
        found.shared
    )
