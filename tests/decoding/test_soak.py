"""A few hundred questions of every kind leave nothing behind: no hook, no tensor, no object, no thread, no open file.

The same work for hours, and what it adds to resident memory: bench/soak.py.
"""

import gc
import time
import weakref

import pytest
import torch
from soak import fit_slope, take_snapshot
from soak_work import SLOWEST, Work

import mgap
from mgap.decoding.fast.captured_step import MAX_STEPS, forget
from mgap.registry import METHODS

pytestmark = pytest.mark.long

LEFT_OUT = ("static",)  # keeps steps of several shapes: below


@pytest.fixture(scope="module")
def work(checkpoints):
    made = Work(mgap.load(str(checkpoints["llava"])))
    gc.collect()
    gc.freeze()  # what other tests have made is not looked through again
    yield made
    gc.unfreeze()


def holding(work, kind):
    return take_snapshot(work.model, kind, 0, 0, time.perf_counter())


def test_every_kind_of_work_leaves_what_was_there_before(work):
    """After a first round, which fills what is kept on purpose."""
    every = work.kinds() | {SLOWEST: work.seldom()[SLOWEST]}
    kinds = {name: kind for name, kind in every.items() if name not in LEFT_OUT}
    assert set(METHODS.names()) <= set(kinds)
    asked = sum(kind() for kind in kinds.values())
    first = holding(work, "first")
    left = {}
    for name, kind in kinds.items():
        before = holding(work, name)
        asked += kind()
        after = holding(work, name)
        left[name] = (after.tensors - before.tensors, after.hooks - before.hooks, after.threads - before.threads)
    assert left == dict.fromkeys(kinds, (0, 0, 0))
    last = holding(work, "last")
    assert asked > 500
    assert (last.hooks, last.threads, last.files) == (first.hooks, first.threads, first.files)
    assert last.tensors == first.tensors
    assert last.objects - first.objects < 200, "a hundredth of what one answer makes"


def test_steps_of_many_shapes_are_kept_up_to_a_number(work):
    """Each has a cache of its own."""
    model, before = work.model, holding(work, "before")
    seen = []
    for rows in range(1, 2 * MAX_STEPS + 1):
        list(model.answers(*work.album.rows(rows), batch_size=rows, static_cache=True, max_new_tokens=2))
        seen.append(holding(work, "static").tensors)
    assert max(seen[MAX_STEPS:]) <= seen[MAX_STEPS - 1] < seen[0] * MAX_STEPS
    forget(model.backbone.model)
    assert holding(work, "after").tensors == before.tensors


def test_a_model_that_nobody_holds_is_gone(work):
    """With all that was kept for it: its steps, its head, its methods."""
    other = mgap.load(work.model.backbone.name)
    with other.using(work.methods["mgap"]):
        other.answer(*work.album.one(), static_cache=True, max_new_tokens=2)
    list(other.stream(*work.album.one(), max_new_tokens=2))
    gone = weakref.ref(other.backbone.model)
    before = holding(work, "before").tensor_mib
    del other
    assert holding(work, "after").tensor_mib < before
    assert gone() is None


def test_a_line_has_its_slope_in_its_interval():
    drawn = torch.randn(200, generator=torch.Generator().manual_seed(0)).tolist()
    questions = [number / 10 for number in range(200)]
    low, middle, high = fit_slope(questions, [3.0 * x + noise for x, noise in zip(questions, drawn, strict=True)])
    assert low < 3.0 < high
    assert middle == pytest.approx(3.0, abs=0.1)
    low, _, high = fit_slope(questions, drawn)
    assert low < 0 < high
