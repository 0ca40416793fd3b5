# SPDX-License-Identifier: GPL-2.0-only
"""The inodes in memory, by subvolume, and which number the next one gets."""

from __future__ import annotations

import errno
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.live_inode import DIR_START_INDEX, ROOT_DIR, InodeFields, LiveInode
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.properties import COMPRESSION_PROPERTY, apply_compression
from btrfs_model.ondisk.items import dir_items, inode_refs
from btrfs_model.ondisk.keys import ItemType

if TYPE_CHECKING:
    import numpy.typing as npt

    from btrfs_model.mount.writable import WritableFilesystem

# BTRFS_LAST_FREE_OBJECTID
_LAST_FREE: Final = 2**64 - 256
_U64_MAX: Final = 2**64 - 1
_SCANNED: Final = 8


def highest_objectid(fs: WritableFilesystem, tree: int) -> int:
    """Highest objectid in use, 255 for none (``btrfs_init_root_free_objectid()``)."""
    last = fs.writer.tree(tree).last((_LAST_FREE, 255, _U64_MAX))
    return max(ROOT_DIR - 1, last.key.objectid if last is not None else 0)


class LiveSubvolume:
    """What is in memory of a subvolume.

    Attributes
    ----------
    id : int
        Its number.
    next_ino : int
        The next inode's number; numbers are not used again while the filesystem is mounted.
    inodes : dict of int to LiveInode
        By number.
    """

    __slots__ = ("id", "inodes", "next_ino", "ranges")

    def __init__(self, fs: WritableFilesystem, root: int) -> None:
        self.id = root
        self.next_ino = highest_objectid(fs, root) + 1
        self.inodes: dict[int, LiveInode] = {}
        # made at once: first inode number, how many, directory index of the first
        self.ranges: list[tuple[int, int, int]] = []


class InodeCache:
    """All inodes in memory; those that are not are read from the trees.

    Parameters
    ----------
    fs : WritableFilesystem
        Whose inodes.
    """

    def __init__(self, fs: WritableFilesystem) -> None:
        self._fs = fs
        self._subvolumes: dict[int, LiveSubvolume] = {}

    def subvolume(self, root: int) -> LiveSubvolume:
        """Return what is in memory of a subvolume; orphans in it are cleaned up at first."""
        found = self._subvolumes.get(root)
        if found is None:
            found = self._subvolumes[root] = LiveSubvolume(self._fs, root)
            self._fs.orphan_cleanup(root)
        return found

    def get(self, root: int, ino: int) -> LiveInode:
        """Return an inode (``btrfs_iget()``).

        Raises
        ------
        OSError
            ENOENT when there is none.
        """
        inodes = self.subvolume(root).inodes
        inode = inodes.get(ino)
        if inode is None:
            inode = inodes[ino] = self._read(root, ino)
        return inode

    def new(self, root: int, item: InodeFields) -> LiveInode:
        """Make an inode with the next free number; it has no items yet."""
        subvolume = self.subvolume(root)
        inode = LiveInode(root, subvolume.next_ino, item)
        inode.log.full_sync = True
        self._fs.tree_logs.note_change(inode)
        subvolume.next_ino += 1
        subvolume.inodes[inode.ino] = inode
        if inode.is_dir:
            inode.index_cnt = DIR_START_INDEX
        return inode

    def add(self, inode: LiveInode) -> None:
        """Keep an inode that was put together from its items."""
        self.subvolume(inode.root).inodes[inode.ino] = inode

    def new_range(self, root: int, count: int) -> npt.NDArray[np.uint64]:
        """Take so many numbers at once; :meth:`remember_range` makes the inodes known."""
        subvolume = self.subvolume(root)
        first = subvolume.next_ino
        subvolume.next_ino += count
        return np.arange(first, first + count, dtype=np.uint64)

    def remember_range(self, root: int, first: int, count: int, index: int) -> None:
        """Inodes that are in the trees as they were made; `index` is that of the first one."""
        self.subvolume(root).ranges.append((first, count, index))

    def any_held(self) -> bool:
        """Whether somebody has an inode open."""
        return any(
            inode.holders
            for subvolume in self._subvolumes.values()
            for inode in subvolume.inodes.values()
        )

    def forget(self, inode: LiveInode) -> None:
        """Drop an inode that was evicted."""
        self.subvolume(inode.root).inodes.pop(inode.ino, None)

    def forget_subvolume(self, root: int) -> None:
        """Drop a subvolume that is gone."""
        self._subvolumes.pop(root, None)

    def forget_all(self) -> None:
        """Start anew, as a mount does: numbers of inodes and indexes are looked up again."""
        self._subvolumes.clear()

    def _read(self, root: int, ino: int) -> LiveInode:
        """``btrfs_read_locked_inode()``."""
        node = self._fs.delayed.node(root, ino)
        key = (ino, ItemType.INODE_ITEM, 0)
        payload = self._fs.writer.get(root, key)
        if payload is None:
            raise fail(errno.ENOENT, f"subvolume {root}, inode {ino}")
        if node is not None and node.inode_item is not None:
            payload = node.inode_item
        inode = LiveInode(root, ino, InodeFields.unpack(payload))
        if inode.item.nlink == 1:
            inode.dir_index = self._only_index(root, ino) or self._index_in_range(root, ino)
        if compression := self._property(root, ino):
            apply_compression(self._fs, inode, compression)
        self._recall_log(inode)
        return inode

    def _recall_log(self, inode: LiveInode) -> None:
        """Assume of an inode that was not in memory what makes an fsync do enough.

        One made since the mount is in a kernel's memory, as new as it was.
        """
        state = inode.log
        state.last_trans = inode.item.transid
        made = bool(self._index_in_range(inode.root, inode.ino))
        state.full_sync = made or state.last_trans == self._fs.generation
        if not made:
            state.last_unlink_trans = state.last_reflink_trans = state.last_trans
        elif self._is_in_log(inode):
            state.logged_trans, state.last_sub_trans = self._fs.transid, 1

    def _is_in_log(self, inode: LiveInode) -> bool:
        """Whether the log has an inode; that a kernel does not search for, as it is in memory."""
        logs = self._fs.tree_logs
        with uncounted():
            return logs.has_log(inode.root) and logs.get(inode.root, inode.key) is not None

    def _index_in_range(self, root: int, ino: int) -> int:
        """Directory index of an inode made since the mount, which has its first name yet."""
        ranges = self.subvolume(root).ranges
        at = bisect_right(ranges, (ino, 2**64)) - 1
        if at < 0 or ino >= ranges[at][0] + ranges[at][1]:
            return 0
        return ranges[at][2] + ino - ranges[at][0]

    def _only_index(self, root: int, ino: int) -> int:
        """Directory index of the only name, where it lies in the leaf of the inode item."""
        low, high = (ino, ItemType.INODE_ITEM, 0), (ino, ItemType.INODE_REF, _U64_MAX)
        items = list(self._fs.writer.tree(root).items(low, high))
        if len(items) < 2 or items[1].block != items[0].block:
            return 0
        return inode_refs(items[1].data)[0].index

    def _property(self, root: int, ino: int) -> bytes:
        """Compression property, where ``btrfs_load_inode_props()`` comes upon it.

        It starts at the first attribute that ``acls_after_inode_item()`` sees within eight items of
        the leaf of the inode item, or where these end, and stops at what is no attribute: when the
        inode item is the last of its leaf, the name that follows it hides the property.
        """
        low, high = (ino, ItemType.INODE_ITEM, 0), (ino, ItemType.XATTR_ITEM, _U64_MAX)
        first, *others = self._fs.writer.tree(root).items(low, high)
        start = 0
        while start < min(len(others), _SCANNED):
            item = others[start]
            if item.block != first.block or item.key.type == ItemType.XATTR_ITEM:
                break
            start += 1
        for item in others[start:]:
            if item.key.type != ItemType.XATTR_ITEM:
                break
            for entry in dir_items(item.data):
                if entry.name == COMPRESSION_PROPERTY:
                    return entry.data
        return b""

    def last_index(self, directory: LiveInode) -> int:
        """Return the highest index so far (``btrfs_get_dir_last_index()``), as open(2) asks for."""
        if directory.index_cnt is None:
            directory.index_cnt = self._index_count(directory)
        return directory.index_cnt - 1

    def next_index(self, directory: LiveInode) -> int:
        """Return the index of a new entry and count on (``btrfs_set_inode_index()``)."""
        index = directory.index_cnt = self.last_index(directory) + 1
        directory.index_cnt += 1
        return index

    def next_indexes(self, directory: LiveInode, count: int) -> npt.NDArray[np.uint64]:
        """Take so many indexes at once."""
        first = self.next_index(directory)
        directory.index_cnt = first + count
        return np.arange(first, first + count, dtype=np.uint64)

    def _index_count(self, directory: LiveInode) -> int:
        """One above the highest index in use (``btrfs_set_inode_index_count()``)."""
        node = self._fs.delayed.node(directory.root, directory.ino)
        if node is not None and node.insertions:
            return max(node.insertions) + 1
        first = (directory.ino, ItemType.DIR_INDEX, 0)
        last = self._fs.writer.tree(directory.root).last(
            (directory.ino, ItemType.DIR_INDEX, _U64_MAX)
        )
        if last is None or last.key < first:
            return DIR_START_INDEX
        return last.key.offset + 1
