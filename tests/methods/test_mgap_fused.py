"""The fused step against the plain one, by Triton's interpreter on a CPU; and what it leaves to the plain one.

Triton decides at import whether it interprets, so the interpreter has a process of its own, one for all tests of this file.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mgap.errors import SettingError
from mgap.methods import mgap_fused
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction, Settings
from mgap.methods.mgap_fused import FusedStep, plan_of, why_not
from tests.methods.fused_cases import CASES, LENGTHY, STRONG, Case, compare, compare_rows, draw, finds, steps

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def interpreter():
    """Calls a function where Triton interprets its kernels."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        os.environ["TRITON_INTERPRET"] = "1"
        try:
            pool.submit(torch.set_num_threads, 1).result()  # the process starts here, with these variables
        finally:
            del os.environ["TRITON_INTERPRET"]
        yield lambda function, *args: pool.submit(function, *args).result()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.product) if n in LENGTHY else n for n in CASES])
def test_the_fused_step_agrees_with_the_plain_one(interpreter, name):
    interpreter(compare, CASES[name])


@settings(max_examples=8)
@given(data=st.data())
def test_the_fused_step_agrees_at_any_shape(interpreter, data):
    case = Case(
        shape=(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))),
        vocab=data.draw(st.integers(40, 3000)),
        width=data.draw(st.integers(12, 200)),
        rank=data.draw(st.integers(1, 12)),
        dtype=data.draw(st.sampled_from(mgap_fused.DTYPES)),
        settings=Settings(data.draw(st.floats(0.1, 2)), data.draw(st.floats(0, 2)), threshold=data.draw(st.floats(0, 0.9))),
        card=data.draw(st.sampled_from([1, 132])),
    )
    interpreter(compare, case, "cpu", data.draw(st.integers(0, 1000)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_may_have_strengths_of_their_own_and_results_be_wide(interpreter, dtype):
    interpreter(compare_rows, Case(shape=(7,), vocab=2500, dtype=dtype, card=1))


def test_a_row_with_every_token_masked_stays_so_and_a_nan_stays_a_nan(interpreter):
    assert bool((interpreter(finds, Case(cap=None), -torch.inf)[0] == -torch.inf).all())
    spoilt = interpreter(finds, Case(), torch.nan)
    assert bool(spoilt[0].isnan().all())
    assert not bool(spoilt[1].isnan().any())


@given(st.integers(1, 5000), st.integers(1, 300_000), st.integers(1, 64), st.sampled_from([1, 16, 132]))
def test_a_plan_covers_every_row_and_token_once(rows, vocab, rank, card):
    plan = plan_of(rows, vocab, rank, card)
    slice_ = plan.span * plan.block
    assert (plan.slices - 1) * slice_ < vocab <= plan.slices * slice_
    assert plan.slices <= plan.room <= mgap_fused._SPLITS
    assert plan.room & (plan.room - 1) == 0
    assert plan.measures == (rows, plan.slices + rank)
    assert (plan.rows, plan.tokens) in {(r, b) for r in (1, 2, 4, 8) for b in (256, 512, 1024)}
    assert plan.corrects == (-(-rows // plan.rows) * -(-vocab // plan.tokens),)


def test_one_row_of_a_large_vocabulary_uses_half_the_card_or_more():
    plan = plan_of(1, 151936, 5)
    assert plan.measures[1] >= 66
    assert plan.corrects[0] >= 132


@pytest.mark.parametrize(
    ("head", "rank", "change", "reason"),
    [
        ({"linear": False}, 5, {}, "not linear"),
        ({}, 5, {"alpha": 0.0}, "alpha=0"),
        ({}, 5, {"epsilon": 1e-6}, "epsilon=1e-06"),
        ({}, 5, {"restore": True}, "restore=True"),
        ({"dtype": torch.float64}, 5, {}, "float64"),
        ({}, 65, {}, "rank=65"),
        ({}, 5, {}, "on cpu"),
    ],
)
def test_what_the_fused_step_cannot_do_is_the_plain_ones(head, rank, change, reason):
    bare = draw(Case(), "cpu")[0]
    assert reason in why_not(replace(bare, **head), rank, replace(STRONG, **change))


def test_a_fused_step_that_cannot_be_had_is_refused_by_name():
    head, basis, _, _ = draw(Case(), "cpu")
    assert Correction(basis, head, STRONG, Tap()).fused is None
    with pytest.raises(SettingError, match="on cpu"):
        Correction(basis, head, STRONG, Tap(), fused=True)


def test_a_card_on_which_the_kernels_fail_is_told_of_once(monkeypatch):
    def fail(*_):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(FusedStep, "launch", fail)
    with pytest.warns(UserWarning, match="plain step .* no C compiler"):
        assert "no C compiler" in mgap_fused._launch_error.__wrapped__(torch.device("cpu"))


def test_autograd_and_wider_or_empty_outputs_are_left_to_the_plain_step():
    head, basis, h, output = draw(Case(), "cpu")
    step = steps(Case(), head, basis)[1].fused
    assert step.takes(h, output)
    assert not step.takes(h.clone().requires_grad_(), output)
    assert not step.takes(h, output.clone().requires_grad_())
    assert not step.takes(h.double(), output)
    assert not step.takes(h, output.double())
    assert not step.takes(h[:0], output[:0])
    assert not step.takes(h, output.as_subclass(nn.Buffer))
    with torch.no_grad():
        assert step.takes(h, output.clone().requires_grad_())


def test_a_compiler_follows_the_plain_step():
    head, basis, h, output = draw(Case(), "cpu")
    plain, quick = steps(Case(), head, basis)
    with torch.no_grad():
        compiled = torch.compile(lambda h, output: quick(None, (h,), output), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(h, output), plain(None, (h,), output))


class Launch:
    """Stands where a kernel is launched, and keeps what it would be launched with."""

    def __init__(self, kernel):
        self.kernel, self.calls = kernel, []

    def __getitem__(self, grid):
        return lambda *args, **options: self.calls.append((args, options))

    def compile_for(self, target):
        from triton.compiler import ASTSource, compile

        kinds = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", int: "i32", float: "fp32"}
        args, options = self.calls[0]
        signature, constants = {}, {}
        for place, (param, arg) in enumerate(zip(self.kernel.params, args, strict=True)):
            signature[param.name] = "constexpr" if param.is_constexpr else kinds[getattr(arg, "dtype", type(arg))]
            if param.is_constexpr:
                constants[(place,)] = arg
        return compile(ASTSource(self.kernel, signature, constants), target=target, options=options)


@pytest.mark.parametrize(  # a compiler, started in a process of its own: one in make test
    "name",
    [
        "bfloat16",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("scale and cap", "neither", "rank 20 for several rows")),
    ],
)
def test_the_kernels_compile_for_a_hopper_card_without_one(name, monkeypatch, tmp_path):
    """The interpreter lets pass what the compiler does not, such as a variable that changes its shape in a loop."""
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    case = CASES[name]
    head, basis, h, output = draw(case, "cpu")
    step = steps(case, head, basis)[1].fused
    step.measure, step.weigh, step.correct = launches = [Launch(each) for each in (step.measure, step.weigh, step.correct)]
    step(h, output)
    for launch in launches:
        assert ".target sm_90" in launch.compile_for(GPUTarget("cuda", 90, 32)).asm["ptx"]
