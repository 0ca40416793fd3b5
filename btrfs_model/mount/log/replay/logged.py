# SPDX-License-Identifier: GPL-2.0-only
"""A log tree as a replay looks at it: checked as a whole, then held in memory.

Nothing of a log is used before all its blocks were read: each must have the checksum, address,
level and generation that its parent says, and belong to a log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.hashes import extref_hash, name_hash
from btrfs_model.ondisk.items import DirItem, dir_items, inode_names
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.roots import is_subvolume_id
from btrfs_model.volume.tree import RawKey, Tree


class LogItem(NamedTuple):
    """An item of a log tree: key, payload, and the leaf and slot that it stands in."""

    key: RawKey
    data: bytes
    block: int
    slot: int


class LogTree:
    """The log tree of a subvolume.

    `tree`: on disk.
    `subvolume`: whose log it is; 0 for the tree of log roots.
    `items` (list of LogItem): all of it, in key order.
    `blocks` (list of int): addresses of its blocks.
    Raises CorruptImageError: for a block that is not what its parent says, or not of a log.
    """

    def __init__(self, tree: Tree, subvolume: int = 0) -> None:
        self.subvolume = subvolume
        self.blocks = []
        for block in tree.blocks():
            if block.owner != ObjectId.TREE_LOG:
                fault = Fault(Code.BAD_OWNER, int(ObjectId.TREE_LOG), block.logical,
                              found=block.owner, wanted=int(ObjectId.TREE_LOG))  # fmt: skip
                raise CorruptImageError(tree.image.path, fault)
            self.blocks.append(block.logical)
        self.items = [
            LogItem(item.key, bytes(item.data), item.block, item.slot) for item in tree.items()
        ]
        self._keys = [item.key for item in self.items]
        self._by_key = {item.key: item.data for item in self.items}

    def get(self, key: RawKey) -> bytes | None:
        """Return the payload of an item, or None."""
        return self._by_key.get(key)

    def last(self, key: RawKey) -> LogItem | None:
        """Return the last item whose key is not greater than `key`, or None."""
        at = bisect_right(self._keys, key)
        return self.items[at - 1] if at else None

    def after(self, key: RawKey) -> LogItem | None:
        """Return the first item whose key is greater than `key`, or None."""
        at = bisect_right(self._keys, key)
        return self.items[at] if at < len(self.items) else None

    def between(self, first: RawKey, last: RawKey) -> list[LogItem]:
        """Return the items with ``first <= key <= last``."""
        return self.items[bisect_left(self._keys, first) : bisect_right(self._keys, last)]

    def dir_entry(self, key: RawKey, name: bytes) -> DirItem | None:
        """Find an entry, or an attribute, in the item that has the key."""
        data = self.get(key)
        entries = [] if data is None else dir_items(data)
        return next((entry for entry in entries if entry.name == name), None)

    def has_xattr(self, ino: int, name: bytes) -> bool:
        """Whether an attribute of an inode was logged (``btrfs_lookup_xattr()``)."""
        return self.dir_entry((ino, ItemType.XATTR_ITEM, name_hash(name)), name) is not None

    def has_backref(self, ino: int, parent: int, name: bytes, kind: int) -> bool:
        """Whether a name of an inode was logged, in an item of that type (``backref_in_log()``)."""
        by_hash = kind == ItemType.INODE_EXTREF
        key = (ino, kind, extref_hash(parent, name) if by_hash else parent)
        data = self.get(key)
        names = [] if data is None else inode_names(key, data)
        return any((ref.parent_objectid, ref.name) == (parent, name) for ref in names)


def read_logs(fs: Filesystem) -> list[LogTree]:
    """Read the log root tree and all log trees, the latter from the highest subvolume down.

    Raises CorruptImageError: when a block is damaged, torn or of an older transaction, or there is
    no such subvolume as a log is for.
    """
    if fs.log_root_tree is None:
        return []
    roots = LogTree(fs.log_root_tree)
    logs = [roots]
    trees = fs.log_trees
    for item in reversed(roots.items):
        objectid, kind, subvolume = item.key
        if (objectid, kind) != (ObjectId.TREE_LOG, ItemType.ROOT_ITEM):
            continue
        if not (is_subvolume_id(subvolume) and subvolume in fs.roots):
            fault = Fault(Code.NOT_FOUND, int(ObjectId.TREE_LOG), item.block, item.slot,
                          found=subvolume, wanted=int(ItemType.ROOT_ITEM))  # fmt: skip
            raise CorruptImageError(fs.path, fault)
        logs.append(LogTree(trees[subvolume], subvolume))
    return logs
