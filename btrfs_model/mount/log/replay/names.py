# SPDX-License-Identifier: GPL-2.0-only
"""Directory entries of a log that find their way into the subvolume."""

from __future__ import annotations

import errno

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.replay.control import WalkControl
from btrfs_model.mount.log.replay.inodes import (
    link_to_fixup_dir,
    must_read_inode,
    read_one_inode,
    update_inode,
)
from btrfs_model.mount.log.replay.links import (
    add_link,
    drop_one_dir_item,
    lookup_by_index,
    lookup_by_name,
)
from btrfs_model.mount.log.replay.logged import LogItem
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.items import DirItem, dir_items
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import Patch
from btrfs_model.volume.tree import RawKey

_DIRECTORY = int(FileType.DIR)


def replay_one_dir_item(control: WalkControl, item: LogItem) -> None:
    """Replay the entries of a DIR_INDEX (before log-dir-index-only: or DIR_ITEM) of the log.

    (``replay_one_dir_item()``.) An inode that gains a name here has its names counted later, and a
    directory that does breaks the walk off: 1 is returned for it, as for an error. Kernels that log
    several entries in an item return 0.
    """
    for entry in dir_items(item.data):
        control.inodes.clear()
        if Patch.LOG_DIR_INDEX_ONLY in control.behaviour:
            added = _replay_one_name(control, item.key, entry)
        else:
            added = _replay_one_name_of_either_kind(control, item.key, entry)
        if added and entry.type != _DIRECTORY:
            link_to_fixup_dir(control, entry.location.objectid)
        elif added and Patch.LOG_DIR_INDEX_ONLY in control.behaviour:
            control.broken_off = True


def _replay_one_name(control: WalkControl, key: RawKey, entry: DirItem) -> bool:
    """``replay_one_name()``: whether the name was added.

    The entries that the subvolume has under the name and under the index go when they lead
    elsewhere.
    """
    directory = must_read_inode(control, key[0])
    exists = control.fs.writer.get(control.root, entry.location) is not None
    by_name = _matches(
        control, directory, lookup_by_name(control, key[0], entry.name), entry, exists
    )
    by_index = _matches(
        control, directory, lookup_by_index(control, key[0], key[2], entry.name), entry, exists
    )
    if by_name and by_index:
        return False
    return _insert_unless_logged(control, key, entry)


def _matches(
    control: WalkControl, directory: LiveInode, found: DirItem | None, entry: DirItem, exists: bool
) -> bool:
    """``delete_conflicting_dir_entry()``: whether an entry is already what the log wants."""
    if found is None:
        return False
    if (found.location, found.type) == (entry.location, entry.type):
        return True
    if exists:
        drop_one_dir_item(control, directory, found)
    return False


def _replay_one_name_of_either_kind(control: WalkControl, key: RawKey, entry: DirItem) -> bool:
    """``replay_one_name()`` before log-dir-index-only.

    Only the entry of the logged kind is looked at, and only a DIR_INDEX adds one.
    """
    directory = must_read_inode(control, key[0])
    exists = control.fs.writer.get(control.root, entry.location) is not None
    is_index = key[1] == ItemType.DIR_INDEX
    found = (
        lookup_by_index(control, key[0], key[2], entry.name)
        if is_index
        else lookup_by_name(control, key[0], entry.name)
    )
    if found is not None:
        if (found.location, found.type) == (entry.location, entry.type):
            return False
        if not exists:
            if is_index:
                _count_name(control, directory, entry.name)
            return False
        drop_one_dir_item(control, directory, found)
    return is_index and _insert_unless_logged(control, key, entry)


def _count_name(control: WalkControl, directory: LiveInode, name: bytes) -> None:
    directory.item.size += 2 * len(name)
    update_inode(control, directory)


def _insert_unless_logged(control: WalkControl, key: RawKey, entry: DirItem) -> bool:
    """Add the entry, unless the name of the inode is in the log too and will bring it."""
    target = entry.location.objectid
    for kind in (ItemType.INODE_REF, ItemType.INODE_EXTREF):
        if control.log.has_backref(target, key[0], entry.name, kind):
            return False
    return _insert_one_name(control, key, entry)


def _insert_one_name(control: WalkControl, key: RawKey, entry: DirItem) -> bool:
    """``insert_one_name()``: a name that leads to no inode, or is there, is passed over."""
    inode = read_one_inode(control, entry.location.objectid)
    if inode is None:
        return False
    directory = must_read_inode(control, key[0])
    try:
        add_link(control, directory, inode, entry.name, key[2], add_backref=True)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        return False
    return True
