"""docs/serving-table.md is drawn from the cells that were kept."""

import json
from pathlib import Path

import table

PAGE = Path(__file__).parents[1] / "docs" / "serving-table.md"


def test_the_page_has_the_cells_of_both_machines():
    held = [json.loads((PAGE.with_suffix("") / f"{name}.json").read_text()) for name in ("cpu", "card")]
    found = {key: parts for each in held for key, parts in table.cells_of(each).items()}
    assert table.written(found) in PAGE.read_text()
    assert all(f"{each['about']}." in PAGE.read_text() for each in held)
