"""Published figures, as an experiment's file holds them under `published`, to be shown beside ours.

    table: Table 1
    columns: [accuracy, precision, f1]          names of our figures
    backbones:
      - name: LLaVA-1.5-7B
        family: llava                           transformers' model_type
        rows: {Vanilla: {random: [88.88, 89.70, 89.76], note: a known problem of the row}}

In a table without groups a row is a list, or {figures: [...], note: ...}. `of` is given if figures are counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mgap.errors import SettingError

ALL = ""  # the group of a table without groups


@dataclass(frozen=True)
class PublishedRow:
    """One method of a published table."""

    figures: dict[str, tuple[float | None, ...]]  # by group, in the order of the columns; None: not printed
    note: str = ""


@dataclass(frozen=True)
class PublishedBackbone:
    """The rows of one model."""

    name: str
    family: str
    rows: dict[str, PublishedRow]


@dataclass(frozen=True)
class PublishedFigures:
    """One published table."""

    table: str
    columns: tuple[str, ...]
    backbones: tuple[PublishedBackbone, ...]
    of: int | None = None  # if figures are counts, their total
    note: str = ""

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> PublishedFigures:
        try:
            columns = tuple(str(column) for column in data["columns"])
            backbones = tuple(
                PublishedBackbone(
                    entry["name"], entry["family"], {str(label): _row(row, columns) for label, row in entry["rows"].items()}
                )
                for entry in data["backbones"]
            )
            return cls(str(data["table"]), columns, backbones, data.get("of"), str(data.get("note", "")))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SettingError(f"published: not a printed table ({error!r}); see experiments/pope-main.yaml") from error

    def beside(self, family: str | None, name: str | None = None) -> PublishedBackbone | None:
        """The backbone of this name, else the first of this family; None if no published model is of the family."""
        if name is None:
            return next((backbone for backbone in self.backbones if backbone.family == family), None)
        for backbone in self.backbones:
            if backbone.name == name:
                return backbone
        names = ", ".join(backbone.name for backbone in self.backbones)
        raise SettingError(f"{self.table} has no backbone {name!r}: choose from {names}")

    @property
    def digits(self) -> int:
        """Decimals, as published."""
        values = (
            value for backbone in self.backbones for row in backbone.rows.values() for f in row.figures.values() for value in f
        )
        return max((len(f"{value:.4f}".rstrip("0").partition(".")[2]) for value in values if value is not None), default=0)


def _row(data: Any, columns: tuple[str, ...]) -> PublishedRow:
    if not isinstance(data, Mapping):
        data = {"figures": data}
    groups = {str(name): tuple(values) for name, values in data.items() if name != "note"}
    for values in groups.values():
        if len(values) != len(columns):
            raise ValueError(f"{len(values)} figures for {len(columns)} columns: {list(values)}")
        if not all(value is None or isinstance(value, int | float) for value in values):
            raise ValueError(f"{list(values)} are not all numbers")
    return PublishedRow({ALL if name == "figures" else name: values for name, values in groups.items()}, data.get("note", ""))
