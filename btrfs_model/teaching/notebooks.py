# SPDX-License-Identifier: GPL-2.0-only
"""Notebooks that students hand in: each is run, and graded, in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from btrfs_model.base.errors import BtrfsModelError

if TYPE_CHECKING:
    import os

    import pandas as pd
    from nbformat import NotebookNode

_GRADED = re.compile(r"^grade\(\s*[\"'](\w+)[\"']", re.MULTILINE)
_LAST = """
from btrfs_model.teaching import grade as _grade
print("graded", _grade({name!r}, globals(), {seed}).to_json(orient="split"))
"""


def grade_notebook(
    path: str | os.PathLike[str], *, seed: int = 1, seconds: int = 300
) -> pd.DataFrame:
    """Run a notebook, and grade what it has defined.

    Cells that fail are passed over. Nothing is saved; the notebook runs in an empty folder. It is
    the code of somebody else nevertheless, with all that your account may do.

    Parameters
    ----------
    path : str or os.PathLike
        A notebook with a cell ``grade("ASSIGNMENT", globals())``, which is replaced by a call with
        `seed`.
    seed : int
        As for :func:`btrfs_model.teaching.grade`; students have 0.
    seconds : int
        How long a cell may take, and all checks together.

    Returns
    -------
    pandas.DataFrame
        As of :func:`btrfs_model.teaching.grade`. Where nothing could be graded all parts have no
        points, and the reason.

    Raises
    ------
    BtrfsModelError
        When the file is no notebook, or has no such cell.
    """
    import nbformat
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    from btrfs_model.teaching.grading import grade

    try:
        text = Path(path).read_text(encoding="utf-8")
        notebook = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    except (UnicodeDecodeError, nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise BtrfsModelError(f"{path}: no notebook: {str(error).splitlines()[0]}") from error
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = {name: cell for cell in codes for name in _GRADED.findall(cell.source)}
    if len(found) != 1:
        raise BtrfsModelError(f'{path}: one cell has to say grade("ASSIGNMENT", globals())')
    ((name, cell),) = found.items()
    nothing = grade(name, {})
    cell.source = _LAST.format(name=name, seed=seed)
    try:
        table = _run(notebook, cell, seconds)
        if table is not None:
            return table
        problem = "the checks could not be run after its cells"
    except CellTimeoutError:
        problem = f"a cell takes longer than {seconds} seconds"
    except DeadKernelError:
        problem = "Python died"
    return nothing.assign(problem=problem)


def _run(notebook: NotebookNode, last: NotebookNode, seconds: int) -> pd.DataFrame | None:
    """Run the cells; return the table that the last one prints, None where it prints none."""
    import pandas as pd
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=seconds,
            allow_errors=True,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        ).execute(stderr=subprocess.DEVNULL)  # what a kernel says of its ports
    text = "".join(one.get("text", "") for one in last.outputs)
    lines = [one for one in text.splitlines() if one.startswith("graded ")]
    if not lines:
        return None
    told = json.loads(lines[-1].removeprefix("graded "))
    return pd.DataFrame(told["data"], columns=told["columns"])
