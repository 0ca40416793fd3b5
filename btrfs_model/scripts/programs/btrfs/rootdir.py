# SPDX-License-Identifier: GPL-2.0-only
"""The folder that ``mkfs.btrfs --rootdir`` copies, as a script sees it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from btrfs_model.base.counters import uncounted
from btrfs_model.questions.rootdir.v6_2 import CopyOf62, Seen
from btrfs_model.scripts.programs.attributes.xattrs import file_xattrs
from btrfs_model.scripts.programs.names import read_link
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.mount.mkfs.make import Fill
    from btrfs_model.mount.mkfs.writer.balance import Root
    from btrfs_model.mount.mkfs.writer.transaction import Transactions
    from btrfs_model.scripts.computer import Computer


def copy_of(computer: Computer, folder: str) -> Fill:
    """Return what copies a folder into a filesystem that mkfs makes."""

    def fill(trees: Transactions, _: int) -> list[Root]:
        with uncounted():
            try:
                CopyOf62(trees, _Files(computer)).run(folder)
            except FileExistsError as error:
                why = f"mkfs.btrfs --rootdir: {error.filename}: two files with its number"
                raise UnknownError(why) from None
        return []

    return fill


class _Files:
    """The files of a computer, see :class:`btrfs_model.questions.rootdir.v6_2.Source`."""

    def __init__(self, computer: Computer) -> None:
        self.computer = computer
        self.listdir, self.read = computer.listdir, computer.read

    def stat(self, path: str) -> Seen:
        seen = self.computer.stat(path, follow=False)
        assert seen is not None, path
        return Seen(*(getattr(seen, name) for name in Seen._fields))

    def read_link(self, path: str) -> str:
        return read_link(self.computer, self.computer.absolute(path))

    def attributes(self, path: str) -> list[tuple[bytes, bytes]]:
        found = file_xattrs(self.computer, path, follow=False)
        return [(os.fsencode(name), value) for name, value in found.items()]
