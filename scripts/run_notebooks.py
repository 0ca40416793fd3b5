#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run notebooks and save them with their outputs, so that they can be read where none runs.

``scripts/run_notebooks.py notebooks/*.ipynb notebooks/course/*.py`` saves nothing that changes
from run to run: no times, no version of Python. The metadata of a cell that draws say as ``alt``
what its picture shows, which is saved with the picture. A notebook of the course is made from its
text. What is hidden on the site until it is asked for, by the tags ``hide-input`` and
``hide-output``, is hidden in JupyterLab too. Cells say where slides begin.
"""

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

SKIPPED = {"exercise", "check", "claims", "grade", "start"}
"""Tags of cells that are on no slide."""
HIDDEN = {"hide-input": "source_hidden", "hide-output": "outputs_hidden"}
"""Tags of cells, and what JupyterLab calls it."""


def slide(cell: nbformat.NotebookNode) -> str:
    """Return what a cell is in ``jupyter nbconvert --to slides``: a heading begins a slide."""
    if SKIPPED & set(cell.metadata.get("tags", ())) or "**Exercise" in cell.source:
        return "skip"
    return "slide" if cell.cell_type == "markdown" and cell.source.startswith("#") else "-"


def run(path: Path) -> None:
    """Run one notebook in its folder and replace it by the result; of a text, make it first."""
    notebook = jupytext.read(path)
    if path.suffix == ".py":
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"
    NotebookClient(
        notebook, record_timing=False, resources={"metadata": {"path": path.parent}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        cell.metadata.pop("lines_to_next_cell", None)
        tags = cell.metadata.get("tags", ())
        hidden = {what: True for tag, what in HIDDEN.items() if tag in tags}
        if hidden:
            cell.metadata["jupyter"] = hidden
        cell.metadata["slideshow"] = {"slide_type": slide(cell)}
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output.metadata["image/png"] = {"alt": cell.metadata["alt"]}
    notebook.metadata["language_info"] = {"name": "python"}
    text = nbformat.writes(notebook)
    # widgets are numbered as they were made, not at random
    for widgets in notebook.metadata.get("widgets", {}).values():
        for number, name in enumerate(widgets["state"]):
            text = text.replace(name, f"{number:032x}")
    nbformat.write(nbformat.reads(text, as_version=4), path.with_suffix(".ipynb"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name))
