"""The notebook runs from a clean state, and prints what is committed with it."""

import base64
import re
from pathlib import Path

import nbformat
import pytest

from tests.examples.notebooks import execute, printed

pytestmark = pytest.mark.long

NOTEBOOK = Path(__file__).parents[2] / "examples" / "what_a_prior_does.ipynb"
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def committed():
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    home = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):  # nothing is left outside of the test's folder
            patch.setenv(name, str(home / name.lower()))
        return execute(NOTEBOOK, home)


def test_it_prints_what_is_committed(executed, committed):
    now, then = "\n".join(printed(executed)), "\n".join(printed(committed))
    assert NUMBER.sub("#", now) == NUMBER.sub("#", then)
    figures = [[float(each) for each in NUMBER.findall(text)] for text in (now, then)]
    assert figures[0] == pytest.approx(figures[1], rel=0.02, abs=0.11)  # processors round differently


def test_every_figure_is_drawn_and_the_file_stays_small(executed, committed):
    def figures(notebook):
        outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
        return [base64.b64decode(out.data["image/png"]) for out in outputs if out.output_type == "display_data"]

    assert len(figures(executed)) == len(figures(committed)) == 4
    assert all(len(png) > 2000 for png in figures(committed))
    assert NOTEBOOK.stat().st_size < 1_500_000


def test_it_shows_the_prior_speaking_and_what_turning_it_down_costs(committed):
    text = "\n".join(printed(committed))
    assert text.count("The banana is yellow.") == 4  # of the yellow one, the blue one, nothing, and at the paper's strength
    assert text.count("The banana is blue.") == 1
    recall = [float(re.search(rf"unseen style.*?{name}.*?\].*?(\d+\.\d)", text, re.DOTALL)[1]) for name in ("plain", "alpha 6")]
    assert recall[1] < recall[0]


def test_it_is_committed_executed_and_without_errors(committed):
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(out.output_type == "error" for cell in code for out in cell.outputs)
