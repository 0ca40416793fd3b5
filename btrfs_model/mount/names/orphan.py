# SPDX-License-Identifier: GPL-2.0-only
"""Inodes without names: orphans, and how they go.

An inode that lost its last name gets an ORPHAN_ITEM in the same transaction, and is deleted when
nobody has it open any more (``btrfs_evict_inode()``): its items from the highest key down, the
orphan item last. After a crash, who first looks into the subvolume deletes the orphans.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.volume.tree import RawKey

if TYPE_CHECKING:
    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.mount.writable import WritableFilesystem

_U64_MAX = 2**64 - 1


def orphan_key(objectid: int) -> RawKey:
    """Key of the ORPHAN_ITEM of an inode, or in the root tree of a subvolume."""
    return (int(ObjectId.ORPHAN), int(ItemType.ORPHAN_ITEM), objectid)


def orphan_add(fs: WritableFilesystem, inode: LiveInode) -> None:
    """``btrfs_orphan_add()``."""
    fs.writer.insert(inode.root, orphan_key(inode.ino), b"")


def orphan_delete(fs: WritableFilesystem, inode: LiveInode) -> None:
    """``btrfs_orphan_del()``."""
    fs.writer.delete(inode.root, orphan_key(inode.ino))


def iput(fs: WritableFilesystem, inode: LiveInode) -> None:
    """Let go of an inode: without names and not open, it is deleted."""
    if inode.item.nlink == 0 and inode.holders == 0:
        evict(fs, inode)


def evict(fs: WritableFilesystem, inode: LiveInode) -> None:
    """Delete an inode (``btrfs_evict_inode()``)."""
    node = fs.delayed.node(inode.root, inode.ino)
    if node is not None:
        fs.delayed.run_inode(node)
        fs.delayed.kill(inode.root, inode.ino)
    if stat.S_ISREG(inode.item.mode):
        fs.truncate_items(inode, 0)
    lowest, highest = (inode.ino, 0, 0), (inode.ino, 255, _U64_MAX)
    fs.writer.delete_range(inode.root, lowest, highest, backward=True)
    orphan_delete(fs, inode)
    fs.inodes.forget(inode)


def orphan_cleanup(fs: WritableFilesystem, root: int) -> None:
    """Delete the inodes that a crash left without names (``btrfs_orphan_cleanup()``)."""
    lowest, highest = orphan_key(0), orphan_key(_U64_MAX)
    items = fs.writer.tree(root).items(lowest, highest)
    for ino in sorted((item.key.offset for item in items), reverse=True):
        inode = fs.inode(root, ino)
        if inode.item.nlink:
            orphan_delete(fs, inode)
        else:
            evict(fs, inode)
