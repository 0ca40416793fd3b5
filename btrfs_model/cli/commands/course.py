# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model course``: the notebooks, in a folder of yours."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import click

from btrfs_model.cli.common import aside
from btrfs_model.cli.flags import Command

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
