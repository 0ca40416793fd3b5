# SPDX-License-Identifier: GPL-2.0-only
"""Many new files into the log at once: that they exist, as a directory's fsync says it of each.

The items that go into the log, and the order of the insertions, are those of
:func:`.log_inode.log_inode` for one file after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.btree.bulk import gather
from btrfs_model.btree.tree import raw_columns
from btrfs_model.errors import new_fault, raise_fault
from btrfs_model.kernels import ffi, lib
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.treelog.state import log_tree_id

if TYPE_CHECKING:
    from btrfs_model.filesystem.live_inode import LiveInode
    from btrfs_model.filesystem.writable import WritableFilesystem

__all__ = ["PlainFiles"]

_MAX: Final = 2**64 - 1
_HEAD: Final = np.dtype(
    {"names": ["generation", "nlink"], "formats": ["<u8", "<u4"], "offsets": [0, 40],
     "itemsize": 44}
)  # fmt: skip
"""The start of an inode item."""


class PlainFiles:
    """Files that this transaction made in a directory of which there is nothing else to know.

    They are not in memory, have one name and no attribute, nothing of them is delayed or in the
    log, and their names were nobody's at the last commit, as the directory is new too.

    Parameters
    ----------
    fs : WritableFilesystem
        Whose.
    directory : LiveInode
        Where.
    entries : numpy.ndarray
        Entries of it, rows of :data:`~btrfs_model.btree.bulk.ENTRY`.

    Attributes
    ----------
    mask : numpy.ndarray
        bool: which of the entries lead to such files.
    """

    def __init__(
        self, fs: WritableFilesystem, directory: LiveInode, entries: npt.NDArray[Any]
    ) -> None:
        self._fs = fs
        self._root = directory.root
        self.mask = np.zeros(len(entries), bool)
        regular = entries["type"] == int(lib.BTRFS_FT_REG_FILE)
        if not regular.any() or not self._is_new(directory):
            return
        # in the order of their numbers, as the tree has them
        self._order = np.argsort(entries["child"])
        self._inos = inos = entries["child"][self._order]
        low, high = inos[regular[self._order]][[0, -1]].tolist()
        self._range = (low, 0, 0), (high, 255, _MAX)
        self._rows = np.zeros(len(entries), np.uint64)
        self._scan()
        plain = self._is_plain(directory.ino) & ~self._is_known()
        self.mask[self._order] = plain & regular[self._order]

    def _scan(self) -> None:
        """Find the items of the files."""
        self._columns = self._fs.writer.tree(self._root).scan(*self._range)
        self._first = np.searchsorted(self._columns["objectid"], self._inos)
        self._rows[self._order] = self._first
        self._delayed = len(self._fs.delayed)

    def _is_new(self, directory: LiveInode) -> bool:
        found = self._fs.tree(self._root).first((directory.ino, 0, 0))
        return found is None or found.key.objectid != directory.ino

    def _is_known(self) -> npt.NDArray[np.bool_]:
        fs, root = self._fs, self._root
        logged = fs.writer.tree(log_tree_id(root)).scan()["objectid"]
        low, high = np.searchsorted(logged, self._inos[0]), np.searchsorted(logged, self._inos[-1])
        live = [*fs.inodes.subvolume(root).inodes, *fs.delayed.waits_for(root)]
        return np.isin(self._inos, np.append(logged[low : high + 1], np.array(live, np.uint64)))

    def _is_plain(self, parent: int) -> npt.NDArray[np.bool_]:
        """Whether inodes are an inode item of this transaction and one name, and nothing more."""
        columns, inos = self._columns, self._inos
        count = np.searchsorted(columns["objectid"], inos, "right") - self._first
        plain: npt.NDArray[np.bool_] = count == 2
        rows = self._first[plain]
        where = {name: columns[name][rows] for name in ("position", "size")}
        items = gather(self._fs.image, where, _HEAD.itemsize).view(_HEAD).reshape(-1)
        plain[plain] = (
            (columns["type"][rows] == int(ItemType.INODE_ITEM))
            & (columns["type"][rows + 1] == int(ItemType.INODE_REF))
            & (columns["offset"][rows + 1] == parent)
            & (items["nlink"] == 1)
            & (items["generation"] == self._fs.transid)
        )
        return plain

    def log(self, start: int, end: int) -> None:
        """Log the files of some entries, all of which are in the mask."""
        fs = self._fs
        # what was logged in between changes the tree where it ran delayed items
        if len(fs.delayed) != self._delayed:
            self._scan()
        rows = self._rows[start:end]
        fs.image.count_here()
        fault = new_fault()
        done = lib.bm_writer_log_files(
            fs.writer.handle, log_tree_id(self._root), raw_columns(self._columns),
            len(self._columns["size"]), ffi.from_buffer("uint64_t[]", rows), len(rows), fault,
        )  # fmt: skip
        if done < 0:
            raise_fault(fs.path, fault)
