# SPDX-License-Identifier: GPL-2.0-only
"""Renaming: one name for another, or two names exchanged.

Inodes move within their subvolume; the entry of a subvolume may move to another one, as its inode
number is the same everywhere. The new INODE_REF is inserted before the old one is removed, and
both entries get new directory indexes.
"""

from __future__ import annotations

import errno
import stat
from typing import Final

from btrfs_model.mount.delayed_inode import balance_delayed_items
from btrfs_model.mount.inode import iput, mark_inode_dirty, next_index, orphan_add
from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, ROOT_DIR, LiveInode
from btrfs_model.mount.log.log_tree import record_unlink, set_full_commit
from btrfs_model.mount.log.sync_log import log_new_name
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import (
    check_dir_item_collision,
    delete_inode_ref,
    fail,
    insert_inode_ref,
)
from btrfs_model.mount.names.lookup import Entry
from btrfs_model.mount.names.namei import (
    add_link,
    create_inode,
    unlink_inode,
    unlink_name,
    unlink_subvolume_name,
)
from btrfs_model.mount.transaction import start_transaction

# the inode, two names, two entries of two items each, the directory
RENAME_ITEMS: Final = 8
# the inode, its name, two items of the entry, an orphan item
_REPLACED_ITEMS: Final = 5


def rename(fs: Mount, old: Entry, new: Entry, inode: LiveInode, *, whiteout: bool = False) -> None:
    """Move `inode` from one entry to another, over what is there (``btrfs_rename()``).

    A `whiteout` takes its old place: a device 0:0, which says to overlayfs that nothing is there.

    Raises OSError: EPERM, EXDEV, ENOTEMPTY, EOVERFLOW or EMLINK.
    """
    replaced = new.inode
    _check_rename(fs, old, new, inode, replaced)
    if replaced is not None and stat.S_ISREG(inode.item.mode) and replaced.i_size:
        # filemap_flush(): a file that replaces another one is not written at the end of a commit
        fs.hooks.writeback(fs, [inode])
    two = old.directory is not new.directory
    items = RENAME_ITEMS + two + _REPLACED_ITEMS * (replaced is not None)
    start_transaction(fs, items, root=old.directory.root)
    index = next_index(fs, new.directory)
    inode.dir_index = 0
    _take_name(fs, new, inode, index)
    _count_change(fs, old, new, inode, replaced)
    if old.directory is not new.directory:
        record_unlink(fs, old.directory, inode, for_rename=True)
    old_index = _leave_name(fs, old, inode)
    if replaced is not None:
        _drop_replaced(fs, new, replaced)
    add_link(fs, new.directory, inode, new.name, index)
    if inode.item.nlink == 1:
        inode.dir_index = index
    if inode.ino != ROOT_DIR:
        log_new_name(fs, inode, new.directory, old.directory, old.name, old_index)
    if whiteout:
        create_inode(fs, old, stat.S_IFCHR)
    balance_delayed_items(fs)
    if replaced is not None:
        iput(fs, replaced)


def _check_rename(
    fs: Mount, old: Entry, new: Entry, inode: LiveInode, replaced: LiveInode | None
) -> None:
    if new.directory.ino == EMPTY_SUBVOL_DIR:
        raise fail(errno.EPERM, new.path)
    if inode.ino != ROOT_DIR and old.directory.root != new.directory.root:
        raise fail(errno.EXDEV, old.path)
    subvolume_replaced = replaced is not None and replaced.ino == ROOT_DIR
    if inode.ino == EMPTY_SUBVOL_DIR or subvolume_replaced:
        raise fail(errno.ENOTEMPTY, new.path)
    if inode.is_dir and replaced is not None and replaced.item.size:
        raise fail(errno.ENOTEMPTY, new.path)
    check_dir_item_collision(fs, new.directory.root, new.directory.ino, new.name)


def _take_name(fs: Mount, entry: Entry, inode: LiveInode, index: int) -> None:
    """Give an inode its new name; a subvolume gets it with the entry."""
    if inode.ino != ROOT_DIR:
        directory = entry.directory
        insert_inode_ref(fs, directory.root, entry.name, inode.ino, directory.ino, index)


def _give_name_back(fs: Mount, entry: Entry, inode: LiveInode) -> None:
    """Undo what :func:`_take_name` did."""
    if inode.ino != ROOT_DIR:
        directory = entry.directory
        delete_inode_ref(fs, directory.root, entry.name, inode.ino, directory.ino)


def _leave_name(fs: Mount, entry: Entry, inode: LiveInode) -> int:
    """Take the old name; returns its index, 0 for a subvolume's."""
    if inode.ino == ROOT_DIR:
        set_full_commit(fs)
        unlink_subvolume_name(fs, entry.directory, inode, entry.name)
        return 0
    index = unlink_name(fs, entry.directory, inode, entry.name, for_rename=True)
    mark_inode_dirty(fs, inode)
    return index


def _drop_replaced(fs: Mount, entry: Entry, replaced: LiveInode) -> None:
    replaced.item.sequence += 1
    if replaced.ino == EMPTY_SUBVOL_DIR:
        unlink_subvolume_name(fs, entry.directory, replaced, entry.name)
        return
    unlink_inode(fs, entry.directory, replaced, entry.name)
    if replaced.item.nlink == 0:
        orphan_add(fs, replaced)


def _count_change(
    fs: Mount, old: Entry, new: Entry, inode: LiveInode, other: LiveInode | None
) -> None:
    """Versions of all who take part, and their times (``simple_rename_timestamp()``)."""
    old.directory.item.sequence += 1
    new.directory.item.sequence += 1
    inode.item.sequence += 1
    for directory in (old.directory, new.directory):
        directory.item.mtime = directory.item.ctime = fs.now()
    inode.item.ctime = fs.now()
    if other is not None:
        other.item.ctime = fs.now()


def exchange(fs: Mount, old: Entry, new: Entry, inode: LiveInode, other: LiveInode) -> None:
    """Let two inodes change places (``btrfs_rename_exchange()``).

    Raises OSError: EXDEV between subvolumes, unless both are subvolumes themselves; EMLINK where an
    inode has no room for its new name.
    """
    both_subvolumes = inode.ino == other.ino == ROOT_DIR
    if old.directory.root != new.directory.root and not both_subvolumes:
        raise fail(errno.EXDEV, old.path)
    items = 2 * RENAME_ITEMS - 1 + (old.directory is not new.directory)
    start_transaction(fs, items, root=old.directory.root)
    index = next_index(fs, new.directory)
    other_index = next_index(fs, old.directory)
    inode.dir_index = other.dir_index = 0
    _take_name(fs, new, inode, index)
    try:
        _take_name(fs, old, other, other_index)
    except OSError:
        # a kernel aborts the transaction
        _give_name_back(fs, new, inode)
        raise
    other.item.sequence += 1
    _count_change(fs, old, new, inode, other)
    if old.directory is not new.directory:
        record_unlink(fs, old.directory, inode, for_rename=True)
        record_unlink(fs, new.directory, other, for_rename=True)
    left = _leave_name(fs, old, inode)
    other_left = _leave_name(fs, new, other)
    add_link(fs, new.directory, inode, new.name, index)
    add_link(fs, old.directory, other, old.name, other_index)
    if inode.item.nlink == 1:
        inode.dir_index = index
    if other.item.nlink == 1:
        other.dir_index = other_index
    if inode.ino != ROOT_DIR:
        log_new_name(fs, inode, new.directory, old.directory, old.name, left)
    if other.ino != ROOT_DIR:
        log_new_name(fs, other, old.directory, new.directory, new.name, other_left)
    balance_delayed_items(fs)
