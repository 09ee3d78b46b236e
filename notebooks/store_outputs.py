"""Run the notebooks and store their outputs, as the site shows them.

``python notebooks/store_outputs.py`` runs all of them, and with names of notebooks those.
Outputs are stored without what differs from run to run and says nothing: the times of cells, and
the name of the temporary folder that a notebook works in.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SECONDS_A_CELL = 120
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def run(path: Path) -> None:
    """Run a notebook in its folder, and store its outputs in place."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name=KERNEL["name"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    # What the page tells about itself.
    about = {"myst": notebook.metadata.get("myst", {})}
    notebook.metadata = about | {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        # Ids by place, so that a new run changes no more than the outputs.
        cell.id = f"cell-{number:02d}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = without_folders(cell.outputs)
    nbformat.write(notebook, path)


def without_folders(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The same outputs, in which files of temporary folders have their bare names."""
    folder = re.escape(str(Path(tempfile.gettempdir()).resolve()))
    text = re.sub(rf"{folder}/tmp[^/\s\"'<>\\]+/", "", json.dumps(outputs))
    return [nbformat.from_dict(output) for output in json.loads(text)]


if __name__ == "__main__":
    chosen = [Path(name) for name in sys.argv[1:]]
    for own in chosen or sorted(Path(__file__).parent.glob("*.ipynb")):
        print(own)
        run(own)
