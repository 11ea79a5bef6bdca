"""One call of the head inside an engine, without vLLM: `compute_logits` is any function of states."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mgap
from mgap.errors import UnsupportedHead
from mgap.serving.correcting import CorrectedLogits
from mgap.serving.counts import EVERY, SHARE, Counts
from mgap.serving.row_strengths import RowStrengths, row_strengths_of

WIDTH, VOCAB = 24, 300


def head_of(seed=0, cap=None, dtype=torch.float32):
    weight = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)

    def compute(h):
        logits = h @ weight.T
        return logits if cap is None else cap * torch.tanh(logits / cap)

    return compute


def prior(rank=5):
    return mgap.Subspace.from_states(torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(9)), rank)


def served(compute, alpha=0.75, *, is_fixed=True, log_every=0.0, dtype=torch.float32, exact_compute=None, **more):
    logger = logging.getLogger("mgap.served")
    logger.setLevel(logging.INFO)
    method, rows = mgap.MGAP(prior(), alpha=alpha, **more), RowStrengths()
    rows.alpha = method.settings.alpha
    counts = Counts(torch.device("cpu"), log_every, logger)
    like = torch.zeros(1, WIDTH, dtype=dtype)
    made = CorrectedLogits(compute, method, rows, counts, like=like, is_fixed=is_fixed, exact=exact_compute)
    return made, rows


def by_hand(h, compute, alpha, lam=0.5):
    """The paper's formula in float64, row by row; alpha is a number or one a row."""
    h, basis = h.double(), prior().basis
    logits = compute(h.to(torch.float32)).double()
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
    part = h @ basis @ basis.T
    cosine = torch.cosine_similarity(h, part, dim=-1)
    beta = torch.as_tensor(alpha, dtype=torch.float64) * torch.tanh(lam * entropy) * (1 - cosine)
    return compute((h - beta.unsqueeze(-1) * part).to(torch.float32)).double()


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("is_fixed", [True, False])
def test_it_is_the_papers_formula_by_a_table_or_a_second_pass(cap, is_fixed):
    compute = head_of(cap=cap)
    made, _ = served(compute, is_fixed=is_fixed)
    assert made.way == ("a table of the head's directions" if is_fixed and cap is None else "a second pass through the head")
    h = torch.randn(7, WIDTH)
    torch.testing.assert_close(made(h).double(), by_hand(h, compute, 0.75), rtol=1e-4, atol=1e-4)


@settings(max_examples=25)
@given(alphas=st.lists(st.floats(0, 6), min_size=1, max_size=9), is_fixed=st.booleans(), looked_at=st.booleans())
def test_every_row_has_the_strength_that_was_told_for_it(alphas, is_fixed, looked_at):
    compute = head_of()
    made, rows = served(compute, is_fixed=is_fixed)
    made.counts.step = 0 if looked_at else 1
    h = torch.randn(len(alphas), WIDTH, generator=torch.Generator().manual_seed(len(alphas)))
    rows.set_next(torch.tensor(alphas))
    torch.testing.assert_close(made(h).double(), by_hand(h, compute, alphas), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(made(h).double(), by_hand(h, compute, 0.75), rtol=1e-4, atol=1e-4)  # the next call is not told


def test_a_strength_of_zero_is_the_model_itself_to_the_bit():
    compute = head_of()
    made, rows = served(compute)
    h = torch.randn(3, WIDTH)
    rows.set_next(torch.tensor([0.0, 1.0, 0.0]))
    corrected = made(h)
    assert torch.equal(corrected[[0, 2]], compute(h)[[0, 2]])
    assert not torch.equal(corrected[1], compute(h)[1])
    rows.set_next(torch.zeros(3), is_off=True)
    assert torch.equal(made(h), compute(h))
    off, _ = served(compute, alpha=0)
    assert torch.equal(off(h), compute(h))


def test_half_logits_come_back_in_float32_so_that_small_steps_act():
    compute = head_of(dtype=torch.bfloat16)
    made, _ = served(compute, alpha=0.01, dtype=torch.bfloat16)
    h = torch.randn(4, WIDTH, dtype=torch.bfloat16)
    corrected = made(h)
    assert corrected.dtype == torch.float32
    assert not torch.equal(corrected, compute(h).float())
    assert torch.equal(corrected.to(torch.bfloat16).argmax(-1), compute(h).argmax(-1))


def test_rows_are_corrected_from_exact_logits_and_plain_ones_beside_them_are_the_engines_own():
    compute, weights = head_of(dtype=torch.bfloat16), head_of(dtype=torch.bfloat16).__closure__
    (weight,) = [cell.cell_contents for cell in weights if isinstance(cell.cell_contents, torch.Tensor)]
    calls = []

    def exact(h):
        calls.append(len(h))
        return h.float() @ weight.float().T

    made, rows = served(compute, dtype=torch.bfloat16, exact_compute=exact)
    assert made.way == "a table of the head's directions, from float32 logits"
    wide = (prior().basis.T.float() @ weight.float().T).double()
    torch.testing.assert_close(made.correction.table.double(), wide, rtol=1e-5, atol=1e-5)  # W V without rounding
    h = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    torch.testing.assert_close(made(h).double(), by_hand(h.float(), lambda x: x @ weight.float().T, 0.75), rtol=1e-4, atol=1e-4)
    rows.set_next(torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0, 0.5]), has_plain=True)
    mixed = made(h)
    assert torch.equal(mixed[::2], compute(h)[::2].float())
    torch.testing.assert_close(
        mixed[1::2].double(),
        by_hand(h[1::2].float(), lambda x: x @ weight.float().T, [1.0, 2.0, 0.5]),
        rtol=1e-4,
        atol=1e-4,
    )
    calls.clear()
    rows.set_next(torch.zeros(6), is_off=True, has_plain=True)
    assert torch.equal(made(h), compute(h))
    assert calls == []


def test_plain_rows_beside_others_are_not_rescaled_with_them():
    compute = head_of()
    made, rows = served(compute, preset="reference-code", rank=3)
    h = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(2))
    rows.set_next(torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0, 0.5]), has_plain=True)
    mixed = made(h)
    assert torch.equal(mixed[::2], compute(h)[::2])
    assert not torch.equal(mixed[1::2], compute(h)[1::2])


def test_steps_that_are_counted_are_not_rounded_either():
    compute = head_of(dtype=torch.bfloat16)
    made, _ = served(compute, alpha=0.01, dtype=torch.bfloat16)
    h = torch.randn(4, WIDTH, dtype=torch.bfloat16)
    made.counts.wait = 0
    counted = made(h)
    assert counted.dtype == torch.float32
    made.counts.wait = 1
    torch.testing.assert_close(counted, made(h), rtol=1e-6, atol=1e-6)


def test_no_rows_and_ranks_without_logits_are_passed_through():
    made, _ = served(head_of())
    assert made(torch.empty(0, WIDTH)).shape == (0, VOCAB)
    made.compute = lambda _: None
    assert made(torch.randn(2, WIDTH)) is None
    with pytest.raises(UnsupportedHead, match="this rank of the engine has no logits"):
        served(lambda _: None)


def test_strengths_of_other_rows_are_refused():
    made, rows = served(head_of())
    rows.set_next(torch.ones(3))
    with pytest.raises(RuntimeError, match="told the strengths of 3 rows, and the head has 2"):
        made(torch.randn(2, WIDTH))


def test_new_weights_are_measured_before_the_next_token():
    made, _ = served(head_of(0))
    new, h = head_of(1), torch.randn(5, WIDTH)
    made.compute, made.is_stale = new, True
    torch.testing.assert_close(made(h).double(), by_hand(h, new, 0.75), rtol=1e-4, atol=1e-4)
    assert not made.is_stale


def test_what_it_did_is_counted_in_one_step_of_several_and_told(caplog):
    compute = head_of()
    made, _ = served(compute, alpha=1.0, log_every=1e-9)
    h = torch.randn(400, WIDTH, generator=torch.Generator().manual_seed(0))
    for _ in range(2 * len(h) // SHARE):
        corrected = made(h)
    acted = made.counts.read()
    assert acted.rows == 2 * len(h)
    assert acted.changed == pytest.approx(float((corrected.argmax(-1) != compute(h).argmax(-1)).float().mean()))
    assert 0 < acted.changed < 1
    assert 0 < acted.beta < 1
    assert caplog.messages[-1] == f"MGAP: {acted.text()}"


@pytest.mark.parametrize(("rows", "apart"), [(1, EVERY), (SHARE * EVERY, EVERY), (256, 256 // SHARE)])
def test_the_more_rows_the_fewer_steps_are_looked_at(rows, apart):
    counts = Counts(torch.device("cpu"), 0, logging.getLogger("mgap"))
    looked = [step for step in range(3 * apart) if counts.is_sampled_step(rows)]
    assert looked == [0, apart, 2 * apart]


def test_means_are_those_of_the_rows_that_were_looked_at():
    compute = head_of()
    made, _ = served(compute, alpha=1.0)
    h = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(1))
    made.counts.wait = 0
    made(h)
    logits, basis = compute(h).double(), prior().basis
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
    cosine = (h.double() @ basis).norm(dim=-1) / h.double().norm(dim=-1)
    acted = made.counts.read()
    assert acted.entropy == pytest.approx(float(entropy.mean()), rel=1e-5)
    assert acted.cosine == pytest.approx(float(cosine.mean()), rel=1e-5)
    assert acted.beta == pytest.approx(float((torch.tanh(0.5 * entropy) * (1 - cosine)).mean()), rel=1e-5)


def test_another_prior_and_strength_from_the_next_call_on():
    compute, h = head_of(), torch.randn(6, WIDTH)
    made, rows = served(compute)
    made(h)
    made.use(mgap.MGAP(prior(rank=3), alpha=1.0, lam=1.0))
    expected, _ = served(compute, alpha=1.0, lam=1.0, rank=3)
    torch.testing.assert_close(made(h), expected(h), rtol=0, atol=0)
    assert rows.alpha == 1.0


def test_rows_belong_to_a_configuration_not_to_its_address():
    class Config:
        pass

    one, other = Config(), Config()
    assert row_strengths_of(one) is row_strengths_of(one)
    assert row_strengths_of(one) is not row_strengths_of(other)
