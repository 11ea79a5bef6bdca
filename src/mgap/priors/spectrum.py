"""Right singular vectors of centred states, in one pass and in memory that does not grow with their number.

States are gathered until there are more of them than `4 d`, then replaced by the triangular factor of a QR
decomposition, which has the same right singular vectors and singular values. The running mean is kept aside; two
centred blocks are joined by one extra row that carries the difference of their means (Chan, Golub and LeVeque 1983).

The arithmetic is float64 on the device that is named; states wait on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mgap.errors import DegenerateSubspace, NonFiniteStates, SettingError, require_extra

SOLVERS = ("exact", "lanczos", "randomized")
OVERSAMPLING, POWERS = 10, 8  # of the randomized solver: directions more than are looked at, and power iterations
_NULL = 1e-6  # a direction below _NULL * sqrt(N) * |mean| is rounding, not variation
_TIE = 1e-6  # singular values closer than _TIE * S_1 do not tell their directions apart
_LOST = 1e-7  # singular values below _LOST * S_1 drown when the matrix is squared


class CentredRows:
    """A growing set of states, as their mean and a matrix with the same centred Gram matrix."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        self.width, self.count, self.device = width, 0, device
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.limit = 4 * width  # rows; 512 MiB at d = 4096
        self._blocks: list[Tensor] = []
        self._rows = 0

    def add(self, states: Tensor) -> None:
        """Take [n, d] states in."""
        states = states.detach().to("cpu", torch.float64)
        if not bool(torch.isfinite(states).all()):
            raise NonFiniteStates(
                "the model gave NaN or infinite hidden states: load it in bfloat16 or float32 instead of float16"
            )
        for block in states.split(self.limit):
            self._join(block)

    def _join(self, block: Tensor) -> None:
        n, mean = len(block), block.mean(0)
        rows = [block - mean]
        if self.count:
            weight = (self.count * n / (self.count + n)) ** 0.5
            rows.append(weight * (mean - self.mean).unsqueeze(0))
        self._blocks += rows
        self._rows += sum(map(len, rows))
        self.mean += (mean - self.mean) * (n / (self.count + n))
        self.count += n
        if self._rows > self.limit:
            triangle = torch.linalg.qr(self.matrix.to(self.device), mode="r").R.cpu()
            self._blocks, self._rows = [triangle], len(triangle)

    @property
    def matrix(self) -> Tensor:
        """[rows <= 4 d, d] float64 with the right singular vectors and singular values of the centred states."""
        return torch.cat(self._blocks)


@dataclass(frozen=True)
class Spectrum:
    """Principal directions of a set of states."""

    basis: Tensor  # [d, K] float64, orthonormal columns; signs are arbitrary
    singular_values: Tensor  # [m] float64, descending; as many as the solver gives, at least K
    mean: Tensor  # [d] float64
    count: int
    total_variance: float  # sum of all squared singular values


def check_solver(solver: str) -> None:
    """Refuse an unknown one, and one whose package is not here, before any prompt is run."""
    if solver not in SOLVERS:
        raise SettingError(f"unknown svd solver {solver!r}: choose from {', '.join(SOLVERS)}")
    if solver == "lanczos":
        require_extra("scipy", "svd", "svd='lanczos'")


def principal_directions(
    chunks: Iterable[Tensor], rank: int | str, solver: str = "exact", seed: int = 0, device: torch.device | str = "cpu"
) -> Spectrum:
    """Top right singular vectors of the centred rows (paper, eq. for V_prior), or a named error."""
    check_solver(solver)
    if rank != "auto" and (not isinstance(rank, int) or isinstance(rank, bool) or rank < 1):
        raise SettingError(f"rank={rank!r} must be a whole number of at least 1, or 'auto'")
    rows: CentredRows | None = None
    distinct: set[bytes] = set()  # never more than rank + 1 of them are kept
    wanted = 2 if isinstance(rank, str) else rank + 1
    for chunk in chunks:
        rows = rows or CentredRows(chunk.shape[-1], device)
        if isinstance(rank, int) and rank > rows.width:
            raise SettingError(f"rank={rank} is larger than the model's hidden size {rows.width}: choose a smaller one")
        if len(distinct) < wanted:
            distinct.update(row.numpy().tobytes() for row in chunk.detach().cpu().float())
        rows.add(chunk)
    if rows is None:
        raise DegenerateSubspace(f"no states at all: give at least {wanted} different prompts")
    if len(distinct) < wanted:
        raise DegenerateSubspace(
            f"{rows.count} prompts gave {len(distinct)} distinct states, but rank {rank} needs {wanted}: "
            "add prompts with different wording, or lower the rank"
        )
    return _decompose(rows, rank, solver, seed)


def _decompose(rows: CentredRows, rank: int | str, solver: str, seed: int) -> Spectrum:
    matrix = rows.matrix.to(rows.device)
    total = float(matrix.square().sum())
    floor = _floor(rows.count, rows.mean)
    squared = Squared.of(matrix) if rank == "auto" else None  # the rule needs the whole spectrum
    if squared is not None:
        keep = auto_rank(beyond_rounding(squared.values.cpu(), rows.count, rows.mean), rows.count, rows.width)
    else:
        keep = int(rank)
    values, vectors = (found.cpu() for found in solve(matrix, keep, solver, seed, squared))
    if len(values) < keep or float(values[keep - 1]) <= floor:
        found = int((values > floor).sum())
        raise DegenerateSubspace(
            f"the states vary in {found} directions only, but rank {keep} was asked for: "
            "use prompts that differ more, or lower the rank"
        )
    if len(values) > keep and float(values[keep - 1] - values[keep]) <= _TIE * float(values[0]):
        raise DegenerateSubspace(
            f"the spectrum is flat at rank {keep} (singular values {values[keep - 1]:.6g} and {values[keep]:.6g}): "
            "the directions there are arbitrary; use another rank or more prompts"
        )
    return Spectrum(vectors[:, :keep].contiguous(), values, rows.mean, rows.count, total)


def beyond_rounding(values: Tensor, count: int, mean: Tensor) -> Tensor:
    """The singular values of `count` states that are variation, not rounding; the rule for ranks sees these."""
    return values[values > _floor(count, mean)]


def _floor(count: int, mean: Tensor) -> float:
    floor: float = _NULL * count**0.5 * float(mean.norm())
    return floor


@dataclass(frozen=True)
class Squared:
    """The eigenvectors of the smaller of M M' and M'M: every singular value, and one side of the singular vectors."""

    matrix: Tensor  # M [n, d]
    values: Tensor  # [min(n, d)] singular values, descending; 0 where they are below rounding
    sides: Tensor  # [min(n, d), min(n, d)] left singular vectors if n <= d, else right ones

    @classmethod
    def of(cls, matrix: Tensor) -> Squared:
        """On a CPU core a fifth (n, d = 1000, 4096) to a half (10,000, 4096) of a singular value decomposition's time."""
        n, d = matrix.shape
        found, sides = torch.linalg.eigh(matrix @ matrix.T if n <= d else matrix.T @ matrix)
        values = found.flip(0).clamp_min(0).sqrt()
        return cls(matrix, values.where(values > _LOST * values[0], 0), sides.flip(1))

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """All singular values and `count` right vectors [d, count], these and their values to full precision.

        Squaring costs half of the digits. They come back when the matrix itself is looked at in the space of the directions
        that were found (Rayleigh and Ritz).
        """
        n, d = self.matrix.shape
        found = self.sides[:, :count]
        space = torch.linalg.qr(self.matrix.T @ found if n <= d else found).Q  # [d, count]
        _, values, turn = torch.linalg.svd(self.matrix @ space, full_matrices=False)
        return torch.cat([values, self.values[count:]]), space @ turn.T


def solve(
    matrix: Tensor, keep: int, solver: str = "exact", seed: int = 0, squared: Squared | None = None
) -> tuple[Tensor, Tensor]:
    """Singular values [m] and right vectors [d, m'] of centred rows [n, d], m >= m'; one more than `keep`, to see a tie."""
    more = min(keep + 1, *matrix.shape)
    if solver == "lanczos" and more < min(matrix.shape):  # ARPACK wants fewer than all
        values, vectors, _ = lanczos(matrix, more, seed)
        return values, vectors
    if solver == "randomized":
        cards = [matrix.device] if matrix.is_cuda else []
        with torch.random.fork_rng(devices=cards):
            torch.manual_seed(seed)
            oversampled = min(more + OVERSAMPLING, *matrix.shape)
            n, d = matrix.shape  # a CPU takes products with few columns twice as fast where the long side is contiguous
            _, values, vectors = torch.svd_lowrank(matrix.T.contiguous().T if n > d else matrix, q=oversampled, niter=POWERS)
        return values[:more], vectors[:, :more]
    return (squared or Squared.of(matrix)).top(more)


def lanczos(matrix: Tensor, count: int, seed: int = 0) -> tuple[Tensor, Tensor, int]:
    """The top `count` by ARPACK, and how many products with the matrix, or its transpose, that took.

    ARPACK keeps its vectors on the CPU; products are taken where the matrix is.
    """
    from scipy.sparse.linalg import LinearOperator, svds

    taken = 0

    def product(rows: Tensor, x: Any) -> Any:
        nonlocal taken
        taken += 1
        return (rows @ torch.from_numpy(x).to(matrix)).cpu().numpy()

    there, back = partial(product, matrix), partial(product, matrix.T)
    products = LinearOperator(tuple(matrix.shape), matvec=there, rmatvec=back, matmat=there, rmatmat=back, dtype="float64")
    _, values, right = svds(products, k=count, solver="arpack", rng=seed)
    order = values.argsort()[::-1].copy()
    return torch.from_numpy(values[order]), torch.from_numpy(right[order].T.copy()), taken


def auto_rank(values: Tensor, count: int, width: int) -> int:
    """The optimal hard threshold for singular values under noise of unknown level (Gavish and Donoho, 2014).

    Directions count whose singular value exceeds w(b) * median, with b the aspect ratio of the centred matrix and
    w(b) = 0.56 b^3 - 0.95 b^2 + 1.82 b + 1.43.
    """
    if len(values) == 0:
        raise DegenerateSubspace("the states do not vary at all: use prompts that differ")
    short, long = sorted((max(count - 1, 1), width))
    b = short / long
    threshold = (0.56 * b**3 - 0.95 * b**2 + 1.82 * b + 1.43) * float(values.median())
    found = int((values > threshold).sum())
    if found == 0:
        raise DegenerateSubspace(
            "the spectrum is flat: no direction stands out from the noise, so rank='auto' finds none; "
            "give a rank, or use more prompts"
        )
    return found
