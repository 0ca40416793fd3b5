# SPDX-License-Identifier: GPL-2.0-only
"""Names of inodes: an INODE_REF or INODE_EXTREF of the log brings the entries of its names.

The names that the subvolume has in such an item and the log has not are unlinked.
"""

from __future__ import annotations

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.replay.control import WalkControl
from btrfs_model.mount.log.replay.inodes import (
    must_read_inode,
    overwrite_item,
    read_one_inode,
    update_inode,
)
from btrfs_model.mount.log.replay.links import (
    add_link,
    drop_one_dir_item,
    lookup_by_index,
    lookup_by_name,
    unlink_inode,
)
from btrfs_model.mount.log.replay.logged import LogItem
from btrfs_model.mount.names.dir_item import inode_names_there
from btrfs_model.ondisk.hashes import extref_hash
from btrfs_model.ondisk.items import InodeExtref, inode_names
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.tree import RawKey

_EXTREF = int(ItemType.INODE_EXTREF)
_REF = int(ItemType.INODE_REF)


def _names_there(control: WalkControl, key: RawKey) -> list[InodeExtref]:
    return inode_names_there(control.fs, control.root, key)


def add_inode_ref(control: WalkControl, item: LogItem) -> None:
    """Replay the names in an item (``add_inode_ref()``).

    A directory that is not there was not logged; its name is left out, and the count of links
    corrected afterwards.
    """
    logged = inode_names(item.key, item.data)
    inode_id = item.key[0]
    if item.key[1] == _REF and read_one_inode(control, item.key[2]) is None:
        return
    inode = must_read_inode(control, inode_id)
    for name in logged:
        directory = read_one_inode(control, name.parent_objectid)
        if directory is None:
            return
        if _inode_in_dir(control, inode, name):
            continue
        if not _make_room(control, directory, inode, name):
            return
        add_link(control, directory, inode, name.name, name.index)
        update_inode(control, inode)
    _unlink_old_inode_refs(control, inode, item.key, logged)
    overwrite_item(control, item.key, item.data)


def _inode_in_dir(control: WalkControl, inode: LiveInode, name: InodeExtref) -> bool:
    """Whether the directory has the name, at its index, for this inode (``inode_in_dir()``)."""
    by_index = lookup_by_index(control, name.parent_objectid, name.index, name.name)
    if by_index is None or by_index.location.objectid != inode.ino:
        return False
    by_name = lookup_by_name(control, name.parent_objectid, name.name)
    return by_name is not None and by_name.location.objectid == inode.ino


def _make_room(
    control: WalkControl, directory: LiveInode, inode: LiveInode, name: InodeExtref
) -> bool:
    """Remove what is in the way of a new name (``__add_inode_ref()``); False for the top directory.

    These are names of the inode in the same item that the log does not have, and the entries at the
    same index and of the same name.
    """
    key: RawKey = (inode.ino, _REF, name.parent_objectid)
    if inode.ino == name.parent_objectid and _names_there(control, key):
        return False
    _unlink_unlogged(control, directory, inode, key)
    key = (inode.ino, _EXTREF, extref_hash(name.parent_objectid, name.name))
    there = {(one.parent_objectid, one.name) for one in _names_there(control, key)}
    if (name.parent_objectid, name.name) in there:
        _unlink_unlogged(control, directory, inode, key)
    by_index = lookup_by_index(control, name.parent_objectid, name.index, name.name)
    if by_index is not None:
        drop_one_dir_item(control, directory, by_index)
    by_name = lookup_by_name(control, name.parent_objectid, name.name)
    if by_name is not None:
        drop_one_dir_item(control, directory, by_name)
    return True


def _unlink_unlogged(
    control: WalkControl, directory: LiveInode, inode: LiveInode, key: RawKey
) -> None:
    """Unlink the names of an item, in this directory, that the log does not have."""
    for victim in _names_there(control, key):
        if victim.parent_objectid != directory.ino:
            continue
        if not control.log.has_backref(inode.ino, victim.parent_objectid, victim.name, key[1]):
            inode.item.nlink += 1
            unlink_inode(control, directory, inode, victim.name)


def _unlink_old_inode_refs(
    control: WalkControl, inode: LiveInode, key: RawKey, logged: list[InodeExtref]
) -> None:
    """Unlink the names that overwriting an item would take away (``unlink_old_inode_refs()``)."""
    stay = {(name.parent_objectid, name.name) for name in logged}
    for name in _names_there(control, key):
        if (name.parent_objectid, name.name) not in stay:
            directory = must_read_inode(control, name.parent_objectid)
            unlink_inode(control, directory, inode, name.name)
