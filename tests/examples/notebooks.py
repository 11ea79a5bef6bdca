"""Notebooks, executed from a clean state by the interpreter that runs this, whatever kernels are registered on the machine.

python tests/examples/notebooks.py examples/what_a_prior_does.ipynb        # execute it, and keep its outputs
"""

import sys
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

WORDS = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--IPKernelApp.log_level=ERROR"]


class ThisPython(AsyncKernelManager):
    """Starts this interpreter instead of looking for a kernel by its name."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=WORDS, display_name="Python 3", language="python")


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with new outputs; `folder` is where its cells run. An error in a cell is raised with its traceback."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, kernel_manager_class=ThisPython, timeout=300, resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day: they would change with every execution
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    return notebook


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """What a cell prints arrives in pieces, cut by the clock: all of it becomes one, where the first piece was."""
    text, kept = "".join(out.text for out in outputs if out.output_type == "stream"), []
    for out in outputs:
        if out.output_type != "stream":
            kept.append(out)
        elif text:
            kept.append(nbformat.v4.new_output("stream", name="stdout", text=text))
            text = ""
    return kept


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What the code cells print, a text a cell."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(out.text for out in cell.outputs if out.output_type == "stream") for cell in code]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    nbformat.write(execute(place, place.parent), place)
