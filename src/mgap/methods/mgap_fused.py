"""MGAP's step on a GPU in three launches: entropy and projection, gate, correction; no synchronisation with the host.

It gives the same result as the plain version in `mgap.py`, computes in float32, and reads the head's output twice instead of a
dozen times: eager decoding is bound by launches, large batches by memory. It can be captured in a CUDA graph.

Cost per call: three launches, the output, and a scratch of a few hundred floats per row.
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
_CARD = 132  # multiprocessors of a Hopper GPU, for which the constants here were chosen
_WIDE = 2048  # dimensions that a program reads at a time
_MANY = 64  # rows from which on memory is the limit, not the number of programs
_SPLITS = 128  # at most so many slices of a row's vocabulary
_LEAD = 6  # numbers at the start of a scratch row, as in `mgap_kernels.py`


class LaunchPlan(NamedTuple):
    """How the rows are divided into programs."""

    measures: tuple[int, int]  # grids
    corrects: tuple[int]
    block: int  # tokens that a program of `measure` reads at a time
    span: int  # blocks per slice
    slices: int  # of a row's vocabulary
    room: int  # slices, rounded up to a power of two
    rows: int  # per program of `correct`
    tokens: int  # per program of `correct`


def plan_of(rows: int, vocab: int, rank: int, card: int = _CARD) -> LaunchPlan:
    """Enough programs to fill a GPU with `card` multiprocessors; with enough rows, a program takes several of them."""
    block, programs = (1024, 32 * card) if rows >= _MANY else (2048, 16 * card)
    blocks = _ceil(vocab, block)
    span = _ceil(blocks, min(max(programs // rows, 1), _SPLITS, blocks))
    slices = _ceil(blocks, span)
    per_program = 2 if rank <= 16 else 8  # more rows share reads of the table, fewer leave registers for pending reads
    while per_program > 1 and _ceil(rows, per_program) * _ceil(vocab, 1024) < 2 * card:
        per_program //= 2
    tokens = 1024
    while tokens > 256 and _ceil(rows, per_program) * _ceil(vocab, tokens) < card:
        tokens //= 2
    return LaunchPlan(
        measures=(rows, slices + rank),
        corrects=(_ceil(rows, per_program) * _ceil(vocab, tokens),),
        block=block,
        span=span,
        slices=slices,
        room=_power_of_two(slices),
        rows=per_program,
        tokens=tokens,
    )


class FusedStep:
    """The fused step bound to one head; `why_not` says whether that is possible."""

    def __init__(self, basis: Tensor, table: Tensor, head: Head, s: Settings) -> None:
        from mgap.methods.mgap_kernels import correct, measure, weigh

        self.measure, self.weigh, self.correct = measure, weigh, correct
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
        """Whether the fused step can run on these tensors; otherwise, for example under autograd, the plain one does."""
        return (
            type(output) is Tensor
            and output.dtype in DTYPES
            and h.dtype in DTYPES
            and output.numel() > 0
            and output.device == self.device
            and not (torch.is_grad_enabled() and (output.requires_grad or h.requires_grad))
        )

    def __call__(self, h: Tensor, output: Tensor, alphas: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits [..., vocab] of the cut state in float32, from h [..., d] and the head's output; and what `gate_values` reads.

        `alphas` [...] in float32 are strengths per row.
        """
        if output.is_cuda and torch.cuda.current_device() != output.device.index:
            with torch.cuda.device(output.device):  # a kernel runs on the current device, not on its arguments'
                return self.launch(h, output, alphas)
        return self.launch(h, output, alphas)

    def launch(self, h: Tensor, output: Tensor, alphas: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if h.device != output.device:
            h = h.to(output.device)
        (states, h_stride), (logits, stride) = _rows(h, self.width), _rows(output, self.vocab)
        rows = output.numel() // self.vocab
        plan = self.plans.get(rows)
        if plan is None:
            plan = self.plans[rows] = plan_of(rows, self.vocab, self.rank, self.card)
        corrected = torch.empty_like(output, dtype=torch.float32, memory_format=torch.contiguous_format)
        scratch = torch.empty((rows, _LEAD + self.rank + 3 * plan.room), dtype=torch.float32, device=output.device)
        self.measure[plan.measures](
            states, logits, self.basis, scratch, h_stride, stride, self.width, self.vocab, plan.span, plan.slices,
            self.scale, self.cap, self.rank, plan.room, self.is_scaled, self.is_capped, _WIDE, plan.block, num_warps=4,
        )  # fmt: skip
        self.weigh[(rows,)](
            scratch, scratch if alphas is None else alphas, plan.slices, self.alpha, self.lam, self.slope, self.rank,
            _power_of_two(self.rank), plan.room, self.gate, self.protect, alphas is not None, num_warps=1,
        )  # fmt: skip
        self.correct[plan.corrects](
            logits, corrected, self.table, scratch, stride, rows, self.vocab, self.rank, plan.room, plan.rows, plan.tokens,
            min(self.rank, 8), num_warps=4,
        )  # fmt: skip
        return corrected, scratch


def gate_values(scratch: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """Entropy, cosine, gamma, delta and beta, as used, each of this shape in float32."""
    return scratch[:, :5].view(*shape, 5).unbind(-1)


def why_not(head: Head, rank: int, s: Settings) -> str:
    """Why the fused step cannot run for a head and settings, as a sentence; "" if it can."""
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
    return _launch_error(head.device)


@cache
def _launch_error(device: torch.device) -> str:
    """What fails when the kernels are built and launched there, such as a missing C compiler; "" if nothing does."""
    from triton.errors import TritonError

    from mgap.methods.mgap import Settings

    zeros = torch.zeros(2, 32, device=device)
    head = Head(torch.nn.Identity(), 32, 32, torch.float32, device, None, True, 1.0, None, False, "float")
    try:
        with torch.no_grad():
            FusedStep(zeros.T, zeros, head, Settings(1.0, 1.0))(zeros, zeros)
    except (TritonError, RuntimeError, OSError, SubprocessError) as error:  # errors of Triton and the toolchain
        reason = f"its kernels do not run on {device} ({type(error).__name__}: {error})"
        warnings.warn(f"mgap takes its plain step instead of the fused one: {reason}", stacklevel=2)
        return reason
    return ""


def _rows(x: Tensor, width: int) -> tuple[Tensor, int]:
    """[..., width] as rows with contiguous elements, copied only if necessary, and the stride between rows."""
    if x.is_contiguous():
        return x, width
    x = x.reshape(-1, width)
    return (x, x.stride(0)) if x.stride(1) == 1 else (x.contiguous(), width)


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


def _power_of_two(count: int) -> int:
    """`count` rounded up to a power of two."""
    return 1 << (count - 1).bit_length()
