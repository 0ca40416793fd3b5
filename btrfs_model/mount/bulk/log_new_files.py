# SPDX-License-Identifier: GPL-2.0-only
"""Many new files into the log at once, as the fsync of their directory logs each of them.

The items that go into the log, and the order of the insertions, are those of
:func:`btrfs_model.mount.log.log_inode.log_inode` for one file after the other.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.counters import current, function
from btrfs_model.mount.inode import live_subvolume
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.state import log_tree_id
from btrfs_model.mount.mount import Mount
from btrfs_model.native.bulk import log_files
from btrfs_model.native.data import name_hashes
from btrfs_model.native.items import gather, select
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.structs import INODE_ITEM, INODE_REF
from btrfs_model.patches import Patch

_HEAD: Final = np.dtype(
    {"names": ["generation", "nlink"], "formats": ["<u8", "<u4"], "offsets": [0, 40],
     "itemsize": 44}
)  # fmt: skip
"""The start of an inode item."""


class PlainFiles:
    """Files that this transaction made in a directory of which there is nothing else to know.

    They have one name and no attribute, nothing of them is delayed or in the log, and their names
    were nobody's at the last commit.

    Parameters
    ----------
    directory : LiveInode
        Where.
    entries : numpy.ndarray
        Entries of it, as :data:`~btrfs_model.native.items.ENTRY` has them: child and type.
    loaded : bool
        Take also those that are in memory, where they are what they are in the tree.

    Attributes
    ----------
    mask : numpy.ndarray
        bool: which of the entries lead to such files.
    """

    def __init__(
        self, fs: Mount, directory: LiveInode, entries: npt.NDArray[Any], *, loaded: bool = False
    ) -> None:
        self._fs = fs
        self._root = directory.root
        self._live = live_subvolume(fs, directory.root).inodes
        self._loaded = loaded
        self.mask = np.zeros(len(entries), bool)
        regular = entries["type"] == int(FileType.REG_FILE)
        if fs.traces or not regular.any():  # who traces is told of each
            return
        # in the order of their numbers, as the tree has them
        self._order = np.argsort(entries["child"])
        self._inos = inos = entries["child"][self._order]
        low, high = inos[regular[self._order]][[0, -1]].tolist()
        self._range = (low, 0, 0), (high, 255, U64_MAX)
        self._rows = np.zeros(len(entries), np.uint64)
        self._scan()
        plain = self._is_plain(directory.ino) & ~self._is_known()
        self.mask[self._order] = plain & regular[self._order]
        self._leave_conflicts(directory)
        if loaded:
            self._leave_changed(entries["child"])

    def _scan(self) -> None:
        """Find the items of the files."""
        self._columns = self._fs.writer.tree(self._root).scan(*self._range)
        self._first = np.searchsorted(self._columns["objectid"], self._inos)
        self._rows[self._order] = self._first
        self._delayed = len(self._fs.delayed)

    def _leave_conflicts(self, directory: LiveInode) -> None:
        """Leave out names that there may have been at the last commit."""
        low, high = ((directory.ino, int(ItemType.DIR_ITEM), offset) for offset in (0, U64_MAX))
        committed = self._fs.tree(self._root).scan(low, high)["offset"]
        if not (len(committed) and self.mask.any()):
            return
        refs = select(self._columns, self._rows[self.mask] + np.uint64(1))
        refs["position"] = refs["position"] + INODE_REF.size
        refs["size"] = refs["size"] - INODE_REF.size
        text = gather(self._fs.image, refs, int(refs["size"].max()))
        used = np.arange(text.shape[1]) < refs["size"][:, None]
        hashes = name_hashes(text[used], refs["size"])
        self.mask[self.mask] = ~np.isin(hashes, committed)

    def _leave_changed(self, inos: npt.NDArray[np.uint64]) -> None:
        """Leave out what is in memory, and was logged or is not as it is in the tree."""
        there = np.array(list(self._live), np.uint64)
        at = np.flatnonzero(self.mask & np.isin(inos, there))
        where = select(self._columns, self._rows[at])
        items = gather(self._fs.image, where, INODE_ITEM.size)
        for row, item in zip(at.tolist(), items, strict=True):
            inode = self._live[int(inos[row])]
            logged = inode.log.logged_trans == self._fs.transid
            if logged or inode.log.copy_everything or inode.item.pack() != item.tobytes():
                self.mask[row] = False

    def _is_known(self) -> npt.NDArray[np.bool_]:
        fs, root = self._fs, self._root
        logged = fs.writer.tree(log_tree_id(root)).scan()["objectid"]
        low, high = np.searchsorted(logged, self._inos[0]), np.searchsorted(logged, self._inos[-1])
        others = [*fs.delayed.waits_for(root), *(() if self._loaded else self._live)]
        return np.isin(self._inos, np.append(logged[low : high + 1], np.array(others, np.uint64)))

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
        with function("btrfs_log_inode", len(rows)):
            log_files(fs.writer, log_tree_id(self._root), self._columns, rows)
            self._count_searches(len(rows))
        for ino in self._columns["objectid"][rows].tolist() if self._loaded else ():
            if ino in self._live:
                state = self._live[ino].log
                state.logged_trans, state.no_xattrs = fs.transid, True

    def _count_searches(self, files: int) -> None:
        """Count the kernel's searches for each file, beside that of the insertion."""
        fs, log = self._fs, log_tree_id(self._root)
        # btrfs_check_ref_name_override() at the last commit, btrfs_log_all_xattrs()
        levels = [fs.tree(self._root).level, fs.writer.tree(self._root).level]
        # inode_logged(); before, logged_inode_size() and drop_objectid_items()
        in_log = 1 if Patch.LOG_CONFLICT_LIST in fs.behaviour else 2
        levels += [fs.writer.tree(log).level] * in_log
        current().count("btrfs_search_slot", files * len(levels))
        current().count("read_block_for_search", files * sum(levels))
