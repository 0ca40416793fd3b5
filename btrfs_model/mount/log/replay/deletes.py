# SPDX-License-Identifier: GPL-2.0-only
"""What a log says has gone: entries of directories by ranges, attributes by their absence."""

from __future__ import annotations

import errno
import os

from btrfs_model.base.codes import EUCLEAN, Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.mount.inode import orphan_key
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.replay.control import WalkControl
from btrfs_model.mount.log.replay.inodes import (
    fixup_key,
    link_to_fixup_dir,
    must_read_inode,
    read_one_inode,
    update_inode,
)
from btrfs_model.mount.log.replay.links import unlink_inode
from btrfs_model.mount.log.replay.logged import LogItem
from btrfs_model.mount.names.dir_item import delete_one_dir_name
from btrfs_model.ondisk.items import DirItem, dir_items, inode_names
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import DIR_LOG_ITEM
from btrfs_model.patches import Patch
from btrfs_model.volume.tree import RawKey

# type of a range item and of the entries that it is about
_BY_NAME = (int(ItemType.DIR_LOG_ITEM), int(ItemType.DIR_ITEM))
_BY_INDEX = (int(ItemType.DIR_LOG_INDEX), int(ItemType.DIR_INDEX))


def replay_xattr_deletes(control: WalkControl, ino: int) -> None:
    """Delete the attributes of an inode that are not in the log (``replay_xattr_deletes()``).

    All attributes of an inode are logged with it.
    """
    first, last = (ino, ItemType.XATTR_ITEM, 0), (ino, ItemType.XATTR_ITEM, U64_MAX)
    tree = control.fs.writer.tree(control.root)
    gone = [
        (item.key, entry.name)
        for item in tree.items(first, last)
        for entry in dir_items(item.data)
        if not control.log.has_xattr(ino, entry.name)
    ]
    for key, name in gone:
        delete_one_dir_name(control.fs, control.root, key, name)


def replay_dir_deletes(control: WalkControl, dirid: int, *, del_all: bool = False) -> None:
    """Unlink what lies in a logged range of a directory and is not in the log itself.

    `dirid`: the directory; new ones have nothing to delete.
    `del_all`: empty it, whatever the log says.

    ``replay_dir_deletes()``. Before log-replay-index-deletes there is a pass over the hashes of
    names as well.
    """
    directory = read_one_inode(control, dirid)
    if directory is None:
        return
    passes = [_BY_INDEX]
    if Patch.LOG_REPLAY_INDEX_DELETES not in control.behaviour:
        passes.insert(0, _BY_NAME)
    for range_type, kind in passes:
        if del_all:
            _delete_range(control, directory, kind, 0, U64_MAX, del_all=True)
            continue
        start = 0
        while (found := _find_dir_range(control, dirid, range_type, start)) is not None:
            _delete_range(control, directory, kind, *found, del_all=False)
            if found[1] == U64_MAX:
                break
            start = found[1] + 1


def _find_dir_range(
    control: WalkControl, dirid: int, kind: int, start: int
) -> tuple[int, int] | None:
    """Return the logged range around `start`, or the next one (``find_dir_range()``)."""
    key: RawKey = (dirid, kind, start)
    before, after = control.log.last(key), control.log.after(key)
    for item in (before, after):
        if item is None or item.key[:2] != key[:2]:
            continue
        first, last = item.key[2], _range_end(control, item)
        if item is after or first <= start <= last:
            return first, last
    return None


def _range_end(control: WalkControl, item: LogItem) -> int:
    """Last key of a range.

    Raises OSError: EUCLEAN when it ends before it starts.
    """
    end = int(DIR_LOG_ITEM.unpack(item.data).end)
    if end < item.key[2]:
        raise OSError(EUCLEAN, os.strerror(EUCLEAN), control.fs.path)
    return end


def _delete_range(
    control: WalkControl, directory: LiveInode, kind: int, start: int, end: int, *, del_all: bool
) -> None:
    """Look at each entry of a directory with an offset in [start, end]."""
    offset = start
    while True:
        item = control.fs.writer.tree(control.root).first((directory.ino, kind, offset))
        if item is None or item.key[:2] != (directory.ino, kind) or item.key.offset > end:
            return
        key = item.key
        _check_item_in_log(control, directory, key, dir_items(item.data), del_all=del_all)
        if key[2] == U64_MAX:
            return
        offset = key[2] + 1


def _check_item_in_log(
    control: WalkControl,
    directory: LiveInode,
    key: RawKey,
    entries: list[DirItem],
    *,
    del_all: bool,
) -> None:
    """Unlink the entries of an item that the log does not have (``check_item_in_log()``)."""
    for entry in entries:
        if not del_all and control.log.dir_entry(key, entry.name) is not None:
            continue
        inode = must_read_inode(control, entry.location.objectid)
        link_to_fixup_dir(control, inode.ino)
        inode.item.nlink += 1
        unlink_inode(control, directory, inode, entry.name)


# ---------------------------------------------------------------------------------- link counts --


def fixup_inode_link_counts(control: WalkControl) -> None:
    """Count the names of all inodes that were noted, from the highest number down.

    (``fixup_inode_link_counts()``.) Emptying a directory that has no name may note further ones.
    """
    tree = int(ItemType.ORPHAN_ITEM)
    while True:
        item = control.fs.writer.tree(control.root).last(fixup_key(U64_MAX))
        if item is None or item.key[:2] != (ObjectId.TREE_LOG_FIXUP, tree):
            return
        ino = item.key.offset
        control.fs.writer.delete(control.root, fixup_key(ino))
        control.inodes.clear()
        _fixup_inode_link_count(control, must_read_inode(control, ino))


def _fixup_inode_link_count(control: WalkControl, inode: LiveInode) -> None:
    """``fixup_inode_link_count()``: an inode without names becomes an orphan.

    Raises CorruptImageError: EIO, for a directory with two names. Kernels since 5.2 do not write
    its leaf (``check_inode_item()``), and the commit of the replay fails.
    """
    nlink = _count_inode_refs(control, inode.ino)
    if inode.is_dir and nlink > 1:
        fault = Fault(Code.ERRNO, control.root, found=errno.EIO)
        what = f"{nlink} names of the directory {inode.ino}, and kernels write one at most"
        raise CorruptImageError(control.fs.path, fault, what)
    if nlink != inode.item.nlink:
        inode.item.nlink = nlink
        update_inode(control, inode)
    if nlink:
        return
    if inode.is_dir:
        replay_dir_deletes(control, inode.ino, del_all=True)
    if control.fs.writer.get(control.root, orphan_key(inode.ino)) is None:
        control.fs.writer.insert(control.root, orphan_key(inode.ino), b"")


def _count_inode_refs(control: WalkControl, ino: int) -> int:
    """``count_inode_refs()`` and ``count_inode_extrefs()``."""
    tree = control.fs.writer.tree(control.root)
    first, last = (ino, ItemType.INODE_REF, 0), (ino, ItemType.INODE_EXTREF, U64_MAX)
    return sum(len(inode_names(item.key, item.data)) for item in tree.items(first, last))
