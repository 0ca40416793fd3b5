# SPDX-License-Identifier: GPL-2.0-only
"""Many new files into the log at once: that they exist, as a directory's fsync says it of each.

The items that go into the log, and the order of the insertions, are those of
:func:`.log_inode.log_inode` for one file after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.btree.apply import CHANGE
from btrfs_model.btree.bulk import Columns, gather, select
from btrfs_model.filesystem.many import name_hashes
from btrfs_model.kernels import lib
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import INODE_ITEM, INODE_REF
from btrfs_model.treelog.log_dir_old import payloads_of
from btrfs_model.treelog.state import log_tree_id

if TYPE_CHECKING:
    from btrfs_model.filesystem.live_inode import LiveInode
    from btrfs_model.filesystem.writable import WritableFilesystem

__all__ = ["PlainFiles"]

_CHUNK: Final = 1 << 15
_MAX: Final = 2**64 - 1


class PlainFiles:
    """Files that this transaction made in a directory of which there is nothing else to know.

    They have one name and no attribute, nothing of them is delayed or in the log, and their names
    were nobody's at the last commit.

    Parameters
    ----------
    fs : WritableFilesystem
        Whose.
    directory : LiveInode
        Where.
    entries : numpy.ndarray
        Entries of it, rows of :data:`~btrfs_model.btree.bulk.ENTRY`, of which are used: ``child``,
        ``type``.
    loaded : bool
        Take also those that are in memory, and are there as they are in the tree.

    Attributes
    ----------
    mask : numpy.ndarray
        bool: which of the entries lead to such files.
    """

    def __init__(
        self,
        fs: WritableFilesystem,
        directory: LiveInode,
        entries: npt.NDArray[Any],
        *,
        loaded: bool = False,
    ) -> None:
        self._fs = fs
        self._root = directory.root
        self._live = fs.inodes.subvolume(directory.root).inodes
        self._loaded = loaded
        self.mask = np.zeros(len(entries), bool)
        regular = entries["type"] == int(lib.BTRFS_FT_REG_FILE)
        if not regular.any():
            return
        self._inos = inos = entries["child"]
        self._range = (int(inos[regular].min()), 0, 0), (int(inos[regular].max()), 255, _MAX)
        self._scan()
        self.mask = regular & ~self._is_known(inos) & self._is_plain(inos, directory.ino)
        self._leave_conflicts(directory)
        if loaded:
            self._leave_changed()

    def _scan(self) -> None:
        """Find the items of the files."""
        self._columns = self._fs.writer.tree(self._root).scan(*self._range)
        self._first = np.searchsorted(self._columns["objectid"], self._inos)
        self._delayed = len(self._fs.delayed)

    def _leave_conflicts(self, directory: LiveInode) -> None:
        """Leave out names that there may have been at the last commit."""
        kind = int(ItemType.DIR_ITEM)
        committed = self._fs.tree(self._root).scan(
            (directory.ino, kind, 0), (directory.ino, kind, _MAX)
        )
        if not (len(committed["offset"]) and self.mask.any()):
            return
        names = select(self._columns, self._first[self.mask] + 1)
        text = payloads_of(self._fs, names)
        # behind the index and the size of the name, which are the ten bytes of each that go
        starts = np.cumsum(names["size"], dtype=np.int64) - names["size"]
        head = np.zeros(len(text), bool)
        head[(starts[:, None] + np.arange(INODE_REF.size)).ravel()] = True
        hashes = name_hashes(text[~head], names["size"] - INODE_REF.size)
        self.mask[self.mask] = ~np.isin(hashes, committed["offset"])

    def _leave_changed(self) -> None:
        """Leave out what is in memory and not as it is in the tree, or was logged."""
        there = np.array(list(self._live), np.uint64)
        at = np.flatnonzero(self.mask & np.isin(self._inos, there))
        items = _inode_items(self._fs, select(self._columns, self._first[at]))
        for row, item in zip(at.tolist(), items, strict=True):
            inode = self._live[int(self._inos[row])]
            state = inode.log
            if (
                state.logged_trans == self._fs.transid
                or state.copy_everything
                or inode.item.pack() != item.tobytes()
            ):
                self.mask[row] = False

    def _is_known(self, inos: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        fs, root = self._fs, self._root
        logged = fs.writer.tree(log_tree_id(root)).scan()["objectid"]
        known = np.isin(inos, logged)
        others = [*fs.delayed.waits_for(root), *(() if self._loaded else self._live)]
        known |= np.isin(inos, np.array(others, np.uint64))
        return known

    def _is_plain(self, inos: npt.NDArray[np.uint64], parent: int) -> npt.NDArray[np.bool_]:
        """Whether inodes are an inode item of this transaction and one name, and nothing more."""
        columns, first = self._columns, self._first
        count = np.searchsorted(columns["objectid"], inos, "right") - first
        plain: npt.NDArray[np.bool_] = count == 2
        rows = first[plain]
        items = _inode_items(self._fs, select(columns, rows))
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
        # what was logged in between changes the tree where it ran delayed items
        if len(self._fs.delayed) != self._delayed:
            self._scan()
        for at in range(start, end, _CHUNK):
            self._log(self._first[at : min(at + _CHUNK, end)])
        for ino in self._inos[start:end].tolist() if self._loaded else ():
            if ino in self._live:
                state = self._live[ino].log
                state.logged_trans, state.no_xattrs = self._fs.transid, True

    def _log(self, rows: npt.NDArray[np.intp]) -> None:
        """``copy_inode_items_to_log()``: a batch for each leaf that an inode has items in."""
        fs = self._fs
        item, name = select(self._columns, rows), select(self._columns, rows + 1)
        changes = np.zeros((len(rows), 2), CHANGE)
        for column, part in enumerate((item, name)):
            for field in ("objectid", "type", "offset", "size"):
                changes[field][:, column] = part[field]
        changes["kind"] = lib.BM_WRITER_INSERT
        changes["more"][:, 0] = item["block"] == name["block"]
        packed = _inode_items(fs, item)
        for field in ("generation", "size", "nbytes", "block_group"):
            packed[field] = 0
        packed["transid"] = fs.transid
        payloads = _side_by_side(packed, payloads_of(fs, name), name["size"])
        fs.writer.apply(log_tree_id(self._root), changes.ravel(), payloads)


def _inode_items(fs: WritableFilesystem, columns: Columns) -> npt.NDArray[Any]:
    rows = gather(fs.image, columns, INODE_ITEM.size)
    return rows.view(INODE_ITEM.dtype).reshape(-1)


def _side_by_side(
    items: npt.NDArray[Any], names: npt.NDArray[np.uint8], sizes: npt.NDArray[np.uint32]
) -> bytes:
    """Put each inode item before the name that belongs to it."""
    width = INODE_ITEM.size + int(sizes.max())
    used = np.arange(width) < (INODE_ITEM.size + sizes)[:, None]
    rows = np.zeros((len(items), width), np.uint8)
    rows[:, : INODE_ITEM.size] = items.view(np.uint8).reshape(len(items), -1)
    tail = used.copy()
    tail[:, : INODE_ITEM.size] = False
    rows[tail] = names
    return rows[used].tobytes()
