# SPDX-License-Identifier: GPL-2.0-only
"""Files of a subvolume by inode, with their paths, and sums by file."""

from __future__ import annotations

import stat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.questions.usage.items import U64
from btrfs_model.volume.listing import Listing
from btrfs_model.volume.subvolume import Subvolume


class Place(NamedTuple):
    """Files of a subvolume.

    `sub`: the subvolume.
    `paths`: a path of each inode that has a name.
    `wanted`: inodes that were asked for; None for all.
    """

    sub: Subvolume
    paths: dict[int, bytes]
    wanted: U64 | None

    @classmethod
    def of(cls, sub: Subvolume, path: str | bytes | int | None) -> Place:
        """Find a file, or all that is below a directory; without a path all files.

        Raises NoSuchFileError: when there is no such file.
        """
        inode = None if path is None else sub.inode(path)
        paths = Listing(sub).first_paths()
        if inode is None:
            return cls(sub, paths, None)
        found = [inode.ino]
        if stat.S_ISDIR(inode.mode):
            above = sub.path_of(inode.ino)
            found = [ino for ino, one in paths.items() if not above or one.startswith(above + b"/")]
        return cls(sub, paths, np.array(found, np.uint64))

    def wants(self, inodes: U64) -> npt.NDArray[np.bool_]:
        """Tell which inodes were asked for."""
        if self.wanted is None:
            return np.ones(len(inodes), np.bool_)
        return np.isin(inodes, self.wanted)

    def text(self, ino: int) -> str:
        """Return the path of a file; empty when it has no name."""
        return self.paths.get(ino, b"").decode("utf-8", "surrogateescape")


class Sums:
    """Sums by group, in integers."""

    def __init__(self, group: npt.NDArray[Any], count: int) -> None:
        self._group, self._count = group, count

    def of(self, values: npt.NDArray[Any]) -> U64:
        """Add up the values of each group."""
        total = np.zeros(self._count, np.uint64)
        np.add.at(total, self._group, values.astype(np.uint64))
        return total
