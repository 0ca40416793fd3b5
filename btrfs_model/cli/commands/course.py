# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model course`` and ``grade``: notebooks for a folder of yours, and their points."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import click

from btrfs_model.cli.common import aside, give_table, progress
from btrfs_model.cli.flags import Command, json_option, one_output, table_option

_FIRST = "course/00-ten-files.ipynb"


@click.command(
    cls=Command,
    examples=(
        "btrfs-model course",
        "btrfs-model course lectures --copy-only",
    ),
)
@click.argument("folder", type=click.Path(path_type=Path), default="btrfs-course")
@click.option("--copy-only", is_flag=True, help="Do not start JupyterLab.")
def course(folder: Path, copy_only: bool) -> None:
    """Copy the notebooks to FOLDER, and start JupyterLab with the first.

    FOLDER is btrfs-course without a name. What is there already is yours, and stays: so the command
    goes on with a course, too. JupyterLab and the widgets are those of `pip install
    'btrfs_model[notebooks]'`.
    """
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.base.samples import notebooks_folder

    if not copy_only and importlib.util.find_spec("jupyterlab") is None:
        raise BtrfsModelError(
            "JupyterLab is not there: pip install 'btrfs_model[notebooks]', or say --copy-only"
        )
    source = notebooks_folder()
    copied = 0
    for file in sorted(source.rglob("*")):
        target = folder / file.relative_to(source)
        if file.is_file() and "__pycache__" not in file.parts and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            copied += 1
    aside(f"{folder}: {copied} files copied; begin with {folder / _FIRST}")
    if not copy_only:
        subprocess.run([sys.executable, "-m", "jupyterlab", str(folder / _FIRST)], check=False)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model grade recover.ipynb",
        "btrfs-model grade handed-in/*.ipynb --seed 2026 -o points.csv",
    ),
)
@click.argument("notebooks", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--seed", default=1, show_default=True, metavar="N", type=click.IntRange(min=0),
              help="Of what answers are tried on; students have 0.")  # fmt: skip
@click.option("--seconds", default=300, show_default=True, metavar="S", type=click.IntRange(min=1),
              help="How long a cell may take.")  # fmt: skip
@json_option("Print one JSON object a part.")
@table_option()
def grade(
    notebooks: tuple[Path, ...], seed: int, seconds: int, as_json: bool, output: Path | None
) -> None:
    """Grade assignments that were handed in: run NOTEBOOKS, and check what they define.

    A row is a part of an assignment, with its points and what lacks. A notebook runs in a process
    of its own, with the rights of your account: where students are not trusted, use a container.
    It takes `pip install 'btrfs_model[notebooks]'`.
    """
    import pandas as pd

    from btrfs_model.base.errors import BtrfsModelError

    one_output(as_json, output)
    if importlib.util.find_spec("nbclient") is None:
        raise BtrfsModelError("nbclient is not there: pip install 'btrfs_model[notebooks]'")
    from btrfs_model.teaching.notebooks import grade_notebook

    tables = []
    with progress(len(notebooks)) as step:
        for notebook in notebooks:
            table = grade_notebook(notebook, seed=seed, seconds=seconds)
            table.insert(0, "notebook", str(notebook))
            tables.append(table)
            step(str(notebook))
    graded = pd.concat(tables, ignore_index=True)
    give_table(graded, output, as_json=as_json)
    for name, rows in graded.groupby("notebook", sort=False):
        aside(f"{name}: {rows['points'].sum()} of {rows['of'].sum()} points")
