"""Compares our results with reference vectors: those shipped with the package, or all files of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mgap.errors import CorruptFile, one_line
from mgap.io.regular_files import regular
from mgap.io.strict_json import load_json
from mgap.registry import METHODS

Vectors = Mapping[str, Any]  # the arrays of an .npz, or the content of a .json

SHIPPED = Path(__file__).parent / "vectors"  # one file per check

# File (without .npz) -> its check. The part of the stem before the first underscore is the method.
CHECKS = {
    "mgap_paper": "mgap.verify.check_mgap:check_paper",
    "mgap_refcode": "mgap.verify.check_mgap:check_reference_code",
    "mgap_edges": "mgap.verify.check_mgap:check_edges",
    "vcd": "mgap.verify.check_branches:check_vcd",
    "vcd_noise": "mgap.verify.check_branches:check_noise",
    "code": "mgap.verify.check_branches:check_code",
    "given": "mgap.verify.check_given:check",
    "haltrapper": "mgap.verify.check_haltrapper:check",
    "haltrapper.json": "mgap.verify.check_haltrapper:check_search",
    "icd": "mgap.verify.check_branches:check_icd",
    "m3id": "mgap.verify.check_branches:check_m3id",
    "ritual": "mgap.verify.check_branches:check_ritual",
    "asd": "mgap.verify.check_inner:check_asd",
    "mod": "mgap.verify.check_inner:check_mod",
    "nullu": "mgap.verify.check_inner:check_nullu",
    "pai": "mgap.verify.check_inner:check_pai",
    "sid": "mgap.verify.check_inner:check_sid",
    "avisc": "mgap.verify.check_inner:check_avisc",
    "vaf": "mgap.verify.check_inner:check_vaf",
    "vista": "mgap.verify.check_inner:check_vista",
    "ed": "mgap.verify.check_ed:check",
    "opera": "mgap.verify.check_opera:check_opera",
    "deco": "mgap.verify.check_deco:check",
    "dola": "mgap.verify.check_dola:check",
}


@dataclass(frozen=True)
class VectorDifference:
    """One array: how far ours is from the reference, and the tolerance (absolute and relative)."""

    name: str
    largest: float
    tolerance: float
    within: bool


@dataclass(frozen=True)
class Verdict:
    """The result of one file."""

    file: str
    method: str
    status: str  # "ok", "failed", or "absent" (the method is not in this version)
    differences: tuple[VectorDifference, ...] = ()
    problem: str = ""

    @property
    def largest(self) -> float:
        return max((d.largest for d in self.differences), default=0.0)


def tensor(vectors: Vectors, name: str) -> Tensor:
    return torch.from_numpy(vectors[name])


def differ(name: str, ours: Tensor, reference: npt.ArrayLike, tolerance: float = 1e-9) -> VectorDifference:
    """Compare sizes, the positions of non-finite values, and values to |a - b| <= tolerance * (1 + |b|)."""
    b = np.asarray(reference, dtype=np.float64)
    a = ours.detach().double().numpy()
    if a.size != b.size:
        return VectorDifference(name, float("inf"), tolerance, False)
    a = a.reshape(b.shape)
    finite = np.isfinite(b)
    gap = np.abs(a[finite] - b[finite])
    same_pattern = bool(np.array_equal(a[~finite], b[~finite]))
    within = same_pattern and bool(np.all(gap <= tolerance * (1 + np.abs(b[finite]))))  # our NaN is never within
    return VectorDifference(name, float(gap.max(initial=0.0)) if same_pattern else float("inf"), tolerance, within)


def same(name: str, ours: object, reference: object) -> VectorDifference:
    """Compare words and integers for equality."""
    within = ours == reference
    return VectorDifference(name, 0.0 if within else float("inf"), 0.0, within)


def verify_shipped() -> Iterator[Verdict]:
    """One verdict per check on the shipped vectors; a missing file is a failure."""
    for key in sorted(CHECKS):
        yield _verify(SHIPPED / (key if "." in key else f"{key}.npz"))


def verify_folder(folder: str | PathLike[str]) -> Iterator[Verdict]:
    """One verdict per file, sorted by name."""
    folder = Path(folder)
    files = sorted(p for p in folder.glob("*") if p.suffix in (".npz", ".json")) if folder.is_dir() else []
    if not files:
        raise CorruptFile(f"{folder}: no reference vectors there (.npz or .json files); name the folder that holds them")
    for path in files:
        yield _verify(path)


def _verify(path: Path) -> Verdict:
    method, key = path.stem.split("_")[0], path.name.removesuffix(".npz")
    if key not in CHECKS:
        if method not in METHODS:
            return Verdict(path.name, method, "absent")
        return Verdict(path.name, method, "failed", problem="the method is here, but nothing checks this file")
    module, _, function = CHECKS[key].partition(":")
    check: Callable[[Vectors], Iterator[VectorDifference]] = getattr(import_module(module), function)
    try:
        differences = tuple(check(_read(path)))
    except Exception as error:  # a damaged file can raise anything in zip, NumPy and torch
        return Verdict(path.name, method, "failed", problem=f"cannot be read: {type(error).__name__}: {one_line(error, 200)}")
    status = "ok" if differences and all(d.within for d in differences) else "failed"
    return Verdict(path.name, method, status, differences)


def _read(path: Path) -> Vectors:
    if path.suffix == ".json":
        content: dict[str, Any] = load_json(path)
        return content
    with open(path, "rb", opener=regular) as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)
