"""Steps on random inputs, and how the fused one is held against the plain one; on a CPU, where Triton interprets."""

from dataclasses import dataclass

import torch
from torch import nn

from mgap.backbones.head import Head
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction, Gate, Settings
from mgap.methods.mgap_fused import FusedStep

HALF = torch.bfloat16
STRONG = Settings(alpha=1.5, lam=0.5)


@dataclass(frozen=True)
class Case:
    """A step on random inputs."""

    shape: tuple[int, ...] = (2, 1)
    vocab: int = 300
    width: int = 48
    rank: int = 5
    dtype: torch.dtype = torch.float32  # of the head and its output
    states: torch.dtype | None = None  # of what it reads, where that differs
    settings: Settings = STRONG
    scale: float = 1.0
    cap: float | None = None
    masked: tuple[int, int] = (0, 0)  # these tokens are -inf
    layout: str = "plain"
    card: int = 132  # multiprocessors: few make a small case be cut as a large one is
    size: float = 3.0


CASES = {
    "float32": Case(),
    "bfloat16": Case(dtype=torch.bfloat16),
    "float16": Case(dtype=torch.float16),
    "float32 states, half logits": Case(dtype=torch.float16, states=torch.float32),
    "half states, float32 logits": Case(states=torch.bfloat16),
    "no batch": Case(shape=(3,)),
    "many positions": Case(shape=(2, 5)),
    "rank 1": Case(rank=1),
    "rank 13": Case(rank=13),
    "rank 64": Case(shape=(1, 1), rank=64, width=96),
    "one slice for several rows": Case(shape=(6, 1), vocab=2500, card=1),
    "several slices, odd vocabulary": Case(vocab=7013, dtype=HALF, width=49),
    "slices of several blocks": Case(shape=(5, 1), vocab=9000, card=1, rank=3),
    "rank 20 for several rows": Case(shape=(9, 1), vocab=1100, rank=20, card=1),
    "wide states": Case(shape=(1, 1), width=4100),
    "scale": Case(scale=0.125),
    "cap": Case(cap=3.0),
    "scale and cap": Case(scale=2.0, cap=5.0, dtype=HALF),
    "no gate": Case(settings=Settings(0.75, 0.5, gate=False)),
    "no protection": Case(settings=Settings(0.75, 0.5, protect=False)),
    "neither": Case(settings=Settings(0.75, 0.5, gate=False, protect=False)),
    "threshold": Case(settings=Settings(0.75, 0.6, threshold=0.25)),
    "threshold above every cosine": Case(settings=Settings(0.75, 0.6, threshold=0.9)),
    "some tokens masked": Case(masked=(7, 40)),
    "a whole slice masked": Case(vocab=5000, masked=(2048, 4096), dtype=HALF),
    "all but one token masked": Case(masked=(1, 300)),
    "masked under a cap": Case(masked=(7, 40), cap=3.0),
    "one token far above all": Case(size=80.0),
    "states zero": Case(size=0.0),
    "last positions of longer rows": Case(layout="sliced"),
    "strided in the row": Case(layout="strided"),
    "positions before rows": Case(shape=(3, 4), layout="swapped"),
    "batch 256": Case(shape=(256, 1), rank=1, vocab=1030, dtype=HALF, card=1),
    "vocabulary 32064, batch 2": Case(vocab=32064, dtype=HALF, rank=2, card=16),
    "vocabulary 151936": Case(shape=(1, 1), vocab=151936, dtype=HALF),
    "vocabulary 262144": Case(shape=(1, 1), vocab=262144, rank=1, dtype=torch.float16, masked=(262000, 262144)),
}
LENGTHY = {"batch 256", "vocabulary 151936", "vocabulary 262144"}  # for an interpreter
LARGE = {  # for a card
    f"{vocab} x {batch}, {dtype}, rank {rank}": Case((batch, 1), vocab, 4096, rank, dtype)
    for vocab in (32064, 151936, 262144)
    for batch in (1, 8, 32, 256)
    for dtype, rank in ((HALF, 5), (torch.float16, 5), (torch.float32, 5), (HALF, 64))
    if rank == 5 or vocab == 151936
}


def laid_out(x, layout):
    """The same values [B, T, n] in memory that is no simple row of rows."""
    if layout == "sliced":
        return torch.cat([torch.zeros_like(x), x], dim=1)[:, -x.shape[1] :]
    if layout == "strided":
        return torch.stack([x, torch.zeros_like(x)], dim=-1)[..., 0]
    if layout == "swapped":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    return x


def draw(case, device, seed=0):
    """A head, its basis, states and its output for them."""
    torch.manual_seed(seed)
    module = nn.Linear(case.width, case.vocab, bias=False, device=device, dtype=case.dtype).requires_grad_(False)
    h = case.size * torch.randn(*case.shape, case.width, device=device)
    head = Head.measure(module, torch.ones(1, case.width, device=device, dtype=case.dtype), scale=case.scale, cap=case.cap)
    basis = torch.linalg.qr(torch.randn(case.width, case.rank, device=device))[0]
    output = module(h.to(case.dtype))
    output[..., slice(*case.masked)] = -torch.inf
    return head, basis, laid_out(h.to(case.states or case.dtype), case.layout), laid_out(output, case.layout)


def steps(case, head, basis):
    """The plain step and the fused one."""
    plain = Correction(basis, head, case.settings, Tap(), fused=False)
    quick = Correction(basis, head, case.settings, Tap(), fused=None if head.device.type == "cpu" else True)
    quick.fused = quick.fused or FusedStep(quick.basis, quick.table, head, case.settings)
    quick.fused.card = min(case.card, quick.fused.card)
    return plain, quick


def take(step, h, output):
    """The corrected logits and the gate of one call."""
    seen = []
    step.tap.listener = seen.append
    with torch.no_grad():
        logits = step(None, (h,), output)
    return logits, seen[0]


def compare(case, device="cpu", seed=0):
    """Both steps agree: they compute in float32, and return it."""
    head, basis, h, output = draw(case, device, seed)
    kept = output.clone()
    plain, quick = steps(case, head, basis)
    assert quick.fused.takes(h, output)
    (expected, right), (logits, seen) = take(plain, h, output), take(quick, h, output)
    assert logits.dtype == torch.float32
    assert logits.shape == output.shape
    assert logits.is_contiguous()
    assert torch.equal(output, kept)
    rtol = 1e-5
    torch.testing.assert_close(logits, expected, rtol=rtol, atol=1e-5 * max(1.0, case.size))
    assert torch.equal(logits == -torch.inf, output == -torch.inf)
    for name in Gate._fields:
        torch.testing.assert_close(
            seen.values[name], right.values[name], rtol=2e-5, atol=5e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
    torch.testing.assert_close(seen.before, right.before, rtol=0, atol=0)
    torch.testing.assert_close(seen.after, head.post(logits.float()), rtol=0, atol=0)


def finds(case, fill):
    """What the fused step makes of an output that is full of one value in its first row."""
    head, basis, h, output = draw(case, "cpu")
    output[0] = fill
    return take(steps(case, head, basis)[1], h, output)[0]


def compare_rows(case, device="cpu", seed=0):
    """Both steps agree where every row has a strength of its own, and what comes back is in float32."""
    head, basis, h, output = draw(case, device, seed)
    plain, quick = steps(case, head, basis)
    alphas = torch.linspace(0, 3, len(h), device=device)
    with torch.no_grad():
        found = quick.step(h, output, alphas, may_overwrite=True)
        wanted = plain.step(h, output.clone(), alphas, may_overwrite=True)
    assert found.dtype == wanted.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(found[0], output[0].float()), "a strength of 0 changes nothing"
