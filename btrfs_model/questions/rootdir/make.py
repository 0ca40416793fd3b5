# SPDX-License-Identifier: GPL-2.0-only
"""An image with the files of a folder."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

from btrfs_model.mount.mkfs.layout import Format
from btrfs_model.mount.mkfs.make import fresh
from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.transaction import Transactions
from btrfs_model.mount.mount import random_uuid
from btrfs_model.questions.rootdir.copy import Copy
from btrfs_model.questions.rootdir.data import Clone
from btrfs_model.questions.rootdir.source import Rootdir, smallest_for
from btrfs_model.questions.rootdir.v6_2 import CopyOf62, Folder
from btrfs_model.volume.device.memory import Memory


@dataclass(frozen=True)
class Made:
    """A filesystem in memory.

    `clones`: what its file shall share with others.
    """

    memory: Memory
    clones: list[Clone] = field(default_factory=list)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which is there whole or not.

        Raises
        ------
        OSError
            Where it cannot be written.
        BtrfsModelError
            Where the system does not let it share data.
        """

        def share(file: int) -> None:
            for clone in self.clones:
                clone.make(file, os.fspath(path))

        self.memory.save(path, share)


def make(source: Rootdir, options: Format, *, seed: int = 0, shrink: bool = False) -> Made:
    """Make a filesystem with the files of a folder.

    Parameters
    ----------
    source : Rootdir
        What to copy.
    options : Format
        What to make; the device becomes as large as the files need.
    seed : int
        What uuids that nobody has chosen come from.
    shrink : bool
        Whether the device shall end where its last chunk does.

    Raises
    ------
    OSError
        Where a file cannot be read, or has no room.
    ValueError
        For options that mkfs.btrfs refuses.
    """
    source.check()
    if not options.release.fills_first and source != Rootdir(source.folder):
        raise ValueError(f"btrfs-progs {options.progs} copies a folder as it is")
    options = replace(options, size=max(options.size, smallest_for(source.folder, options)))
    options.check()
    choice = random.Random(f"subvolumes {seed}")

    clones: list[Clone] = []

    def fill(trees: Transactions, seconds: int) -> list[Root]:
        if not options.release.fills_first:
            CopyOf62(trees, Folder()).run(source.folder)
            return []
        copy = Copy(trees, source, seconds, lambda _: random_uuid(choice))
        copy.run()
        clones.extend(copy.data.clones)
        return copy.subvolumes

    return Made(fresh(options, seed, fill, shrink=shrink), clones)
