"""MGAP's step on a GPU in two launches: entropy and projection, then gate and correction; nothing waits for the host.

It gives what the plain version in `mgap.py` gives, in float32 inside, and reads the head's output twice instead of a dozen
times: in eager decoding a token is bound by launches, in large batches by memory. It can be captured in a CUDA graph.

Cost per call: two launches, the output, and a scratch of a few hundred floats a row.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mgap.backbones.head import Head

if TYPE_CHECKING:
    from mgap.methods.mgap import Settings

RANKS = 64  # the largest rank
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of states and logits
_CARD = 132  # multiprocessors of a Hopper card, which the constants here were chosen for
_SLICE = 2048  # tokens or dimensions that a program reads at a time
_SPLITS = 128  # the most slices of a row's vocabulary
_LEAD = 6  # numbers in front of a row of the scratch, as in `mgap_kernels.py`


class LaunchPlan(NamedTuple):
    """How a number of rows is cut into programs."""

    measures: tuple[int, int]  # grids
    corrects: tuple[int, int]
    span: int  # blocks of a slice
    splits: int
    room: int  # splits, up to a power of two
    rows: int  # of one program of `correct`
    block: int  # its tokens


def plan_of(rows: int, vocab: int, rank: int, card: int = _CARD) -> LaunchPlan:
    """Enough programs to fill a card of so many multiprocessors; where rows do that, a program takes several of them."""
    blocks = _ceil(vocab, _SLICE)
    wanted = min(max(16 * card // rows, 1), _SPLITS, blocks)
    span = _ceil(blocks, wanted)
    splits = _ceil(blocks, span)
    together = 4 if rank <= 16 else 8  # more share the table's reads, fewer leave registers for reads under way
    while together > 1 and _ceil(rows, together) * _ceil(vocab, 1024) < 2 * card:
        together //= 2
    block = 1024
    while block > 256 and _ceil(rows, together) * _ceil(vocab, block) < card:
        block //= 2
    return LaunchPlan(
        measures=(rows, rank + splits),
        corrects=(_ceil(rows, together), _ceil(vocab, block)),
        span=span,
        splits=splits,
        room=_power(splits),
        rows=together,
        block=block,
    )


class FusedStep:
    """The step bound to one head; `why_not` says whether it can be."""

    def __init__(self, basis: Tensor, table: Tensor, head: Head, s: Settings) -> None:
        from mgap.methods.mgap_kernels import correct, measure

        self.measure, self.correct = measure, correct
        self.basis, self.table = basis.T.contiguous(), table.contiguous()  # [K, d], [K, vocab]
        self.rank, self.width = self.basis.shape
        self.vocab = head.vocab_size
        self.scale, self.cap = float(head.scale), 1.0 if head.cap is None else float(head.cap)
        self.is_scaled, self.is_capped = head.scale != 1.0, head.cap is not None
        self.alpha, self.lam, self.slope = float(s.alpha), float(s.lam), 1.0 / (1.0 - s.threshold)
        self.gate, self.protect = s.gate, s.protect
        self.device = table.device
        self.card = torch.cuda.get_device_properties(self.device).multi_processor_count if table.is_cuda else _CARD
        self.plans: dict[int, LaunchPlan] = {}

    def takes(self, h: Tensor, output: Tensor) -> bool:
        """Whether this call can be taken: the rest, such as one that autograd follows, is the plain version's."""
        return (
            type(output) is Tensor
            and output.dtype in DTYPES
            and h.dtype in DTYPES
            and output.numel() > 0
            and output.device == self.device
            and not (torch.is_grad_enabled() and (output.requires_grad or h.requires_grad))
        )

    def __call__(
        self, h: Tensor, output: Tensor, alphas: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits [..., vocab] of the cut state, for h [..., d] and the head's output; and the scratch, for `numbers_of`.

        `alphas` [...] in float32 are strengths of single rows; `dtype` is by default the output's.
        """
        if output.is_cuda and torch.cuda.current_device() != output.device.index:
            with torch.cuda.device(output.device):  # a kernel goes to the current device, not to its arguments'
                return self.launch(h, output, alphas, dtype)
        return self.launch(h, output, alphas, dtype)

    def launch(
        self, h: Tensor, output: Tensor, alphas: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        if h.device != output.device:
            h = h.to(output.device)
        (states, apart), (logits, stride) = _rows(h, self.width), _rows(output, self.vocab)
        rows = output.numel() // self.vocab
        plan = self.plans.get(rows)
        if plan is None:
            plan = self.plans[rows] = plan_of(rows, self.vocab, self.rank, self.card)
        corrected = torch.empty_like(output, dtype=dtype, memory_format=torch.contiguous_format)
        scratch = torch.empty((rows, _LEAD + self.rank + 3 * plan.room), dtype=torch.float32, device=output.device)
        self.measure[plan.measures](
            states, logits, self.basis, scratch, apart, stride, self.width, self.vocab, plan.span,
            self.scale, self.cap, self.rank, plan.room, self.is_scaled, self.is_capped, _SLICE, _SLICE,
            num_warps=4,
        )  # fmt: skip
        self.correct[plan.corrects](
            logits, corrected, self.table, scratch, scratch if alphas is None else alphas, stride, rows, self.vocab,
            plan.splits, self.alpha, self.lam, self.slope, self.rank, _power(self.rank), plan.room, self.gate, self.protect,
            alphas is not None, plan.rows, plan.block, min(self.rank, 8),
            num_warps=4,
        )  # fmt: skip
        return corrected, scratch


def numbers_of(scratch: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """Entropy, cosine, gamma, delta and beta, as used: each of this shape, in float32."""
    return scratch[:, :5].view(*shape, 5).unbind(-1)


def why_not(head: Head, rank: int, s: Settings) -> str:
    """What keeps a head and its settings from the fused step, as a sentence; "" where nothing does."""
    if not head.linear:
        return "the head is not linear"
    if s.alpha == 0:
        return "alpha=0 changes nothing"
    if s.epsilon != 0 or s.restore:
        return f"epsilon={s.epsilon:g} and restore={s.restore} are those of the authors' code"
    if head.wide != torch.float32:
        return f"the head is in {head.dtype}"
    if rank > RANKS:
        return f"rank={rank} is above {RANKS}"
    if head.device.type != "cuda":
        return f"the head is on {head.device}"
    if find_spec("triton") is None:
        return "triton is not installed"
    return _fault(head.device)


@cache
def _fault(device: torch.device) -> str:
    """What goes wrong when the kernels are built and launched there, such as a missing C compiler; "" where nothing does."""
    from triton.errors import TritonError

    from mgap.methods.mgap import Settings

    zeros = torch.zeros(2, 32, device=device)
    head = Head(torch.nn.Identity(), 32, 32, torch.float32, device, None, True, 1.0, None, False, "float")
    try:
        with torch.no_grad():
            FusedStep(zeros.T, zeros, head, Settings(1.0, 1.0))(zeros, zeros)
    except (TritonError, RuntimeError, OSError, SubprocessError) as error:  # theirs, not ours
        reason = f"its kernels do not run on {device} ({type(error).__name__}: {error})"
        warnings.warn(f"mgap takes its plain step instead of the fused one: {reason}", stacklevel=2)
        return reason
    return ""


def _rows(x: Tensor, width: int) -> tuple[Tensor, int]:
    """What holds [..., width] as rows of neighbours, copied only where it must be, and how far its rows lie apart."""
    if x.is_contiguous():
        return x, width
    x = x.reshape(-1, width)
    return (x, x.stride(0)) if x.stride(1) == 1 else (x.contiguous(), width)


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


def _power(count: int) -> int:
    """The power of two that holds so many."""
    return 1 << (count - 1).bit_length()
