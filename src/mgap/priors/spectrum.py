"""Right singular vectors of centred states, in one pass and in memory that does not grow with their number.

More than `4 d` states are replaced by the triangular factor of their QR decomposition, which has the same right singular
vectors and singular values. The running mean is stored separately; two centred blocks are joined by one extra row that carries
the difference of their means (Chan, Golub and LeVeque 1983).

The arithmetic is float64 on the given device; states wait on the CPU.
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
OVERSAMPLING, POWER_ITERATIONS = 10, 8  # of the randomized solver
_ROUNDING = 1e-6  # a singular value below _ROUNDING * sqrt(N) * |mean| is rounding, not variation
_TIE = 1e-6  # singular values closer than _TIE * S_1 do not determine their directions
_LOST = 1e-7  # singular values below _LOST * S_1 are lost when the matrix is squared


class CentredRows:
    """A growing set of states, as their mean and a matrix with the same centred Gram matrix."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        self.width, self.count, self.device = width, 0, device
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.limit = 4 * width  # rows; 512 MiB at d = 4096
        self._blocks: list[Tensor] = []
        self._rows = 0

    def add(self, states: Tensor) -> None:
        """Add [n, d] states."""
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
        """[rows <= 4 d, d] float64, with the right singular vectors and singular values of the centred states."""
        return torch.cat(self._blocks)


@dataclass(frozen=True)
class Spectrum:
    """Principal directions of a set of states."""

    basis: Tensor  # [d, K] float64, orthonormal columns; signs are arbitrary
    singular_values: Tensor  # [m >= K] float64, descending; m depends on the solver
    mean: Tensor  # [d] float64
    count: int
    total_variance: float  # sum of all squared singular values


def check_solver(solver: str) -> None:
    """Refuse an unknown solver, or one whose package is not installed, before any prompt is run."""
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
    distinct: set[bytes] = set()
    needed = 2 if isinstance(rank, str) else rank + 1
    for chunk in chunks:
        rows = rows or CentredRows(chunk.shape[-1], device)
        if isinstance(rank, int) and rank > rows.width:
            raise SettingError(f"rank={rank} is larger than the model's hidden size {rows.width}: choose a smaller one")
        if len(distinct) < needed:
            distinct.update(row.numpy().tobytes() for row in chunk.detach().cpu().float())
        rows.add(chunk)
    if rows is None:
        raise DegenerateSubspace(f"no states at all: give at least {needed} different prompts")
    if len(distinct) < needed:
        raise DegenerateSubspace(
            f"{rows.count} prompts gave {len(distinct)} distinct states, but rank {rank} needs {needed}: "
            "add prompts with different wording, or lower the rank"
        )
    return _decompose(rows, rank, solver, seed)


def _decompose(rows: CentredRows, rank: int | str, solver: str, seed: int) -> Spectrum:
    matrix = rows.matrix.to(rows.device)
    total = float(matrix.square().sum())
    floor = _floor(rows.count, rows.mean)
    gram = GramSpectrum.of(matrix) if rank == "auto" else None  # the rule needs the whole spectrum
    if gram is not None:
        keep = auto_rank(beyond_rounding(gram.values.cpu(), rows.count, rows.mean), rows.count, rows.width)
    else:
        keep = int(rank)
    values, vectors = (tensor.cpu() for tensor in solve(matrix, keep, solver, seed, gram))
    if len(values) < keep or float(values[keep - 1]) <= floor:
        varying = int((values > floor).sum())
        raise DegenerateSubspace(
            f"the states vary in {varying} directions only, but rank {keep} was asked for: "
            "use prompts that differ more, or lower the rank"
        )
    if len(values) > keep and float(values[keep - 1] - values[keep]) <= _TIE * float(values[0]):
        raise DegenerateSubspace(
            f"the spectrum is flat at rank {keep} (singular values {values[keep - 1]:.6g} and {values[keep]:.6g}): "
            "the directions there are arbitrary; use another rank or more prompts"
        )
    return Spectrum(vectors[:, :keep].contiguous(), values, rows.mean, rows.count, total)


def beyond_rounding(values: Tensor, count: int, mean: Tensor) -> Tensor:
    """The singular values of `count` states that are variation, not rounding; input to `auto_rank`."""
    return values[values > _floor(count, mean)]


def _floor(count: int, mean: Tensor) -> float:
    floor: float = _ROUNDING * count**0.5 * float(mean.norm())
    return floor


@dataclass(frozen=True)
class GramSpectrum:
    """Eigenvectors of the smaller of M M' and M'M: every singular value, and one side of the singular vectors."""

    matrix: Tensor  # M [n, d]
    values: Tensor  # [min(n, d)] singular values, descending; 0 where they are below rounding
    vectors: Tensor  # [min(n, d), min(n, d)] left singular vectors if n <= d, else right ones

    @classmethod
    def of(cls, matrix: Tensor) -> GramSpectrum:
        """On a CPU core, a fifth (n, d = 1000, 4096) to a half (10,000, 4096) of the time of a singular value decomposition."""
        n, d = matrix.shape
        eigenvalues, vectors = torch.linalg.eigh(matrix @ matrix.T if n <= d else matrix.T @ matrix)
        values = eigenvalues.flip(0).clamp_min(0).sqrt()
        return cls(matrix, values.where(values > _LOST * values[0], 0), vectors.flip(1))

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """All singular values and `count` right vectors [d, count]; the vectors and their values have full precision.

        Squaring costs half of the digits. Projecting the matrix itself on the vectors found recovers them (Rayleigh-Ritz).
        """
        n, d = self.matrix.shape
        vectors = self.vectors[:, :count]
        space = torch.linalg.qr(self.matrix.T @ vectors if n <= d else vectors).Q  # [d, count]
        _, values, rotation = torch.linalg.svd(self.matrix @ space, full_matrices=False)
        return torch.cat([values, self.values[count:]]), space @ rotation.T


def solve(
    matrix: Tensor, keep: int, solver: str = "exact", seed: int = 0, gram: GramSpectrum | None = None
) -> tuple[Tensor, Tensor]:
    """Singular values [m] and right vectors [d, m'] of centred rows [n, d], m >= m'; m' is `keep` + 1, to detect a tie."""
    count = min(keep + 1, *matrix.shape)
    if solver == "lanczos" and count < min(matrix.shape):  # ARPACK needs fewer than all
        values, vectors, _ = lanczos(matrix, count, seed)
        return values, vectors
    if solver == "randomized":
        gpus = [matrix.device] if matrix.is_cuda else []
        with torch.random.fork_rng(devices=gpus):
            torch.manual_seed(seed)
            q = min(count + OVERSAMPLING, *matrix.shape)
            n, d = matrix.shape  # on a CPU, products with few columns are twice as fast if the long side is contiguous
            contiguous = matrix.T.contiguous().T if n > d else matrix
            _, values, vectors = torch.svd_lowrank(contiguous, q=q, niter=POWER_ITERATIONS)
        return values[:count], vectors[:, :count]
    return (gram or GramSpectrum.of(matrix)).top(count)


def lanczos(matrix: Tensor, count: int, seed: int = 0) -> tuple[Tensor, Tensor, int]:
    """The top `count` values and vectors by ARPACK, and the number of products with the matrix or its transpose.

    ARPACK keeps its vectors on the CPU; products are computed where the matrix is.
    """
    from scipy.sparse.linalg import LinearOperator, svds

    products = 0

    def product(operand: Tensor, x: Any) -> Any:
        nonlocal products
        products += 1
        return (operand @ torch.from_numpy(x).to(matrix)).cpu().numpy()

    forward, adjoint = partial(product, matrix), partial(product, matrix.T)
    operator = LinearOperator(
        tuple(matrix.shape), matvec=forward, rmatvec=adjoint, matmat=forward, rmatmat=adjoint, dtype="float64"
    )
    _, values, right = svds(operator, k=count, solver="arpack", rng=seed)
    order = values.argsort()[::-1].copy()
    return torch.from_numpy(values[order]), torch.from_numpy(right[order].T.copy()), products


def auto_rank(values: Tensor, count: int, width: int) -> int:
    """The rank by the optimal hard threshold for singular values under noise of unknown level (Gavish and Donoho, 2014).

    It counts the singular values above w(b) * median, with b the aspect ratio of the centred matrix and
    w(b) = 0.56 b^3 - 0.95 b^2 + 1.82 b + 1.43.
    """
    if len(values) == 0:
        raise DegenerateSubspace("the states do not vary at all: use prompts that differ")
    short, long = sorted((max(count - 1, 1), width))
    b = short / long
    threshold = (0.56 * b**3 - 0.95 * b**2 + 1.82 * b + 1.43) * float(values.median())
    rank = int((values > threshold).sum())
    if rank == 0:
        raise DegenerateSubspace(
            "the spectrum is flat: no direction stands out from the noise, so rank='auto' finds none; "
            "give a rank, or use more prompts"
        )
    return rank
