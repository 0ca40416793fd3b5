# SPDX-License-Identifier: GPL-2.0-only
"""filefrag."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import pandas as pd

from btrfs_model.questions.fiemap.mounted import fiemap_mounted
from btrfs_model.questions.fiemap.text import fiemap_text
from btrfs_model.scripts.program import Program, options, reason, say
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


def _filefrag(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "vsekPX", "b", program_name="filefrag")
    status = 0
    for path in paths:
        place = computer.place(computer.absolute(path))
        if place is None:
            raise UnknownError(f"filefrag: {path} is on no filesystem of the model")
        mounted, inside = place
        try:
            size = mounted.stat(inside).size
            table: pd.DataFrame
            top = mounted.inside(inside)
            with computer.timed("fiemap") as step, mounted.reading(top, step):
                table = fiemap_mounted(mounted.fs, top, sync="s" in given)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                say(shell, f"open: {reason(error)}\n")
                status = error.errno or 1
                continue
            # of a directory; it asks for its blocks then, and there are none
            columns = ("logical", "physical", "length", "flags")
            table = pd.DataFrame({one: [] for one in columns})
        told = fiemap_text(table, path, size)
        if "v" in given:
            shell.write(f"Filesystem type is: 9123683e\n{told}")
        else:
            shell.write(told.splitlines(keepends=True)[-1])
    return status


PROGRAMS: Final[dict[str, Program]] = {"filefrag": _filefrag}
