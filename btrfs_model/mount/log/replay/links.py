# SPDX-License-Identifier: GPL-2.0-only
"""Names that come and go during a replay.

What ``btrfs_add_link()`` and ``btrfs_unlink_inode()`` do while ``BTRFS_FS_LOG_RECOVERING`` is set:
nothing is delayed, and a name that comes does not change the times of its directory, which are
those of the fsync; nor does one that goes (log-replay-dir-times).
"""

from __future__ import annotations

import errno
import os

from btrfs_model.mount.live_inode import LiveInode, file_type
from btrfs_model.mount.log.replay.control import WalkControl
from btrfs_model.mount.log.replay.inodes import link_to_fixup_dir, must_read_inode, update_inode
from btrfs_model.mount.names.dir_item import (
    delete_inode_ref,
    delete_one_dir_name,
    dir_item_key,
    insert_inode_ref,
    insert_with_overflow,
    lookup_dir_item,
    pack_dir_item,
)
from btrfs_model.ondisk.items import DirItem, dir_items
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import Patch


def lookup_by_name(control: WalkControl, directory: int, name: bytes) -> DirItem | None:
    """Find the entry of a name (``btrfs_lookup_dir_item()``)."""
    return lookup_dir_item(control.fs, control.root, dir_item_key(directory, name), name)


def lookup_by_index(
    control: WalkControl, directory: int, index: int, name: bytes
) -> DirItem | None:
    """Find the entry at an index, where it has that name (``btrfs_lookup_dir_index_item()``)."""
    payload = control.fs.writer.get(control.root, (directory, ItemType.DIR_INDEX, index))
    entries = [] if payload is None else dir_items(payload)
    return next((entry for entry in entries if entry.name == name), None)


def unlink_inode(control: WalkControl, directory: LiveInode, inode: LiveInode, name: bytes) -> None:
    """Remove a name from a directory and its inode (``unlink_inode_for_log_replay()``).

    Raises OSError: ENOENT when one of them does not have it.
    """
    fs, root = control.fs, control.root
    if lookup_by_name(control, directory.ino, name) is None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), fs.path)
    delete_one_dir_name(fs, root, dir_item_key(directory.ino, name), name)
    index = delete_inode_ref(fs, root, name, inode.ino, directory.ino)
    key = (directory.ino, int(ItemType.DIR_INDEX), index)
    fs.writer.delete_range(root, key, key)
    directory.item.size = max(directory.item.size - 2 * len(name), 0)
    inode.item.sequence += 1
    directory.item.sequence += 1
    inode.item.ctime = fs.now()
    if Patch.LOG_REPLAY_DIR_TIMES not in control.behaviour:
        directory.item.mtime = directory.item.ctime = inode.item.ctime
    update_inode(control, directory)
    inode.item.nlink = max(inode.item.nlink - 1, 0)
    update_inode(control, inode)


def add_link(
    control: WalkControl,
    directory: LiveInode,
    inode: LiveInode,
    name: bytes,
    index: int,
    *,
    add_backref: bool = False,
) -> None:
    """Add a name to a directory (``btrfs_add_link()``).

    Raises OSError: EEXIST: the inode has it (`add_backref`), or the directory has; then the entry
    by its index is there all the same, as kernels leave it.
    """
    fs, root = control.fs, control.root
    if add_backref:
        insert_inode_ref(fs, root, name, inode.ino, directory.ino, index)
    payload = pack_dir_item(inode.key, fs.transid, file_type(inode.item.mode), name)
    taken = lookup_by_name(control, directory.ino, name) is not None
    if not taken:
        insert_with_overflow(fs, root, dir_item_key(directory.ino, name), name, payload)
    fs.writer.insert(root, (directory.ino, int(ItemType.DIR_INDEX), index), payload)
    if taken:
        if add_backref:
            delete_inode_ref(fs, root, name, inode.ino, directory.ino)
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), fs.path)
    directory.item.size += 2 * len(name)
    directory.item.sequence += 1
    update_inode(control, directory)


def drop_one_dir_item(control: WalkControl, directory: LiveInode, entry: DirItem) -> None:
    """Remove an entry that is in the way of the log's (``drop_one_dir_item()``)."""
    inode = must_read_inode(control, entry.location.objectid)
    link_to_fixup_dir(control, inode.ino)
    unlink_inode(control, directory, inode, entry.name)
