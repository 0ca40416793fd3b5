# SPDX-License-Identifier: GPL-2.0-only
"""Extended attributes: items of an inode, by the hash of the name, packed where hashes collide.

The namespaces ``user``, ``security`` and ``trusted`` are plain; ``btrfs.compression`` is a property
that also sets flags of the inode and is handed down to new files; ``system.posix_acl_access`` and
``system.posix_acl_default`` are ACLs (:mod:`btrfs_model.mount.names.acl`).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import (
    cow_leaf,
    delete_one_dir_name,
    fail,
    insert_with_overflow,
    lookup_dir_item,
    pack_dir_item,
)
from btrfs_model.mount.names.properties import (
    COMPRESSION_PROPERTY,
    apply_compression,
    may_have,
)
from btrfs_model.mount.space.quota_reserve import reserve_items
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import DirItem, dir_items
from btrfs_model.ondisk.keys import MAX_KEY, ItemType
from btrfs_model.ondisk.structs import DIR_ITEM, HEADER, ITEM
from btrfs_model.volume.tree import RawKey

# the attribute, the inode
XATTR_ITEMS: Final = 2
_XATTR: Final = int(FileType.XATTR)
_NOWHERE: Final = (0, 0, 0)


def _key(inode: LiveInode, name: bytes) -> RawKey:
    return (inode.ino, ItemType.XATTR_ITEM, name_hash(name))


def get_xattr(fs: Mount, inode: LiveInode, name: bytes) -> bytes | None:
    """Return the value of an attribute, None when there is none."""
    known = inode.xattrs
    if name not in known:
        entry = lookup_dir_item(fs, inode.root, _key(inode, name), name)
        inode.xattrs = known = {**known, name: None if entry is None else entry.data}
    return known[name]


def all_xattrs(fs: Mount, inode: LiveInode) -> dict[bytes, bytes]:
    """Return all attributes, in the order of the tree (``btrfs_listxattr()``)."""
    kind = ItemType.XATTR_ITEM
    with fs.image.lease, uncounted():
        return {
            entry.name: entry.data
            for item in fs.writer.tree(inode.root).items(
                (inode.ino, kind, 0), (inode.ino, kind, MAX_KEY.offset)
            )
            for entry in item.decode(dir_items, fs.path, inode.root)
        }


def put_xattr(
    fs: Mount, inode: LiveInode, name: bytes, value: bytes | None, flags: int = 0
) -> None:
    """Set an attribute, or remove it where the value is None (``btrfs_setxattr()``).

    `inode`: whose attribute; it is not marked dirty.
    `name`, `value`: with the namespace.
    `flags`: ``os.XATTR_CREATE``: it must not exist; ``os.XATTR_REPLACE``: it must.
    Raises OSError: ENODATA, EEXIST, or ENOSPC when it does not fit a leaf (with those of the same
    hash).
    """
    inode.xattrs = {}
    _put(fs, inode, name, value, flags)
    inode.log.copy_everything = True
    inode.log.no_xattrs = False


def _put(fs: Mount, inode: LiveInode, name: bytes, value: bytes | None, flags: int) -> None:
    key = _key(inode, name)
    entry = lookup_dir_item(fs, inode.root, key, name)
    if value is not None and len(name) + len(value) > _max_size(fs):
        raise fail(errno.ENOSPC, name)
    if entry is None and flags & os.XATTR_REPLACE:
        if value is None:
            cow_leaf(fs, inode.root, key)
        raise fail(errno.ENODATA, name)
    if value is None:
        if entry is not None:
            delete_one_dir_name(fs, inode.root, key, name)
        else:
            # the search for what is to be deleted is for writing
            cow_leaf(fs, inode.root, key)
        return
    if entry is not None:
        _replace(fs, inode.root, key, entry, value, flags)
        return
    try:
        payload = pack_dir_item(_NOWHERE, fs.transid, _XATTR, name, value)
        insert_with_overflow(fs, inode.root, key, name, payload)
    except OSError as error:
        raise fail(errno.ENOSPC, name) if error.errno == errno.EOVERFLOW else error from None


def _max_size(fs: Mount) -> int:
    """Bytes of name and value that a leaf has room for (``BTRFS_MAX_XATTR_SIZE()``)."""
    return fs.nodesize - HEADER.size - ITEM.size - DIR_ITEM.size


def _replace(fs: Mount, root: int, key: RawKey, entry: DirItem, value: bytes, flags: int) -> None:
    """Give an attribute another value in its item."""
    payload = pack_dir_item(_NOWHERE, fs.transid, _XATTR, entry.name, value)
    there = fs.writer.get(root, key)
    assert there is not None
    old = DIR_ITEM.size + len(entry.name) + len(entry.data)
    room = True
    try:
        # the search is for an insertion and splits the leaf as if the item came on top
        fs.writer.extend(root, key, payload)
    except OSError as error:
        if error.errno != errno.EOVERFLOW:
            raise
        room = len(payload) - old <= fs.writer.leaf_free(root, key)
    at = there.index(pack_dir_item(*entry))
    new = there[:at] + there[at + old :] + payload
    kept = there if flags & os.XATTR_CREATE or not room else new
    fs.writer.replace(root, key, kept)
    if flags & os.XATTR_CREATE:
        raise fail(errno.EEXIST, entry.name)
    if not room:
        raise fail(errno.ENOSPC, entry.name)


def set_xattr(
    fs: Mount, inode: LiveInode, name: bytes, value: bytes | None, flags: int = 0
) -> None:
    """Set or remove an attribute; version and ctime follow (``btrfs_setxattr_trans()``)."""
    start_transaction(fs, XATTR_ITEMS, root=inode.root)
    put_xattr(fs, inode, name, value, flags)
    note_changed(fs, inode)


def note_changed(fs: Mount, inode: LiveInode) -> None:
    """Count on the version of an inode whose attributes changed, set its ctime, mark it dirty."""
    inode.item.sequence += 1
    inode.item.ctime = fs.now()
    mark_inode_dirty(fs, inode)


# ---------------------------------------------------------------------------------- properties --


def set_property(
    fs: Mount, inode: LiveInode, name: bytes, value: bytes | None, flags: int = 0
) -> None:
    """Set or remove a property (``btrfs_xattr_handler_set_prop()``).

    Raises OSError: EINVAL for an unknown property or value, ENODATA.
    """
    if name != COMPRESSION_PROPERTY or not may_have(fs, inode, value):
        raise fail(errno.EINVAL, name)
    if not (inode.is_dir or stat.S_ISREG(inode.item.mode)):
        return
    reserve_items(fs, inode.root, XATTR_ITEMS)
    start_transaction(fs)
    put_xattr(fs, inode, name, value or None, flags)
    apply_compression(fs, inode, value or b"")
    note_changed(fs, inode)


def inherit_properties(fs: Mount, inode: LiveInode, directory: LiveInode) -> None:
    """Hand the property of a directory down to a new inode (``btrfs_inode_inherit_props()``)."""
    value = directory.prop_compress
    if not value or not (inode.is_dir or stat.S_ISREG(inode.item.mode)):
        return
    if not may_have(fs, inode, value):
        return
    put_xattr(fs, inode, COMPRESSION_PROPERTY, value)
    apply_compression(fs, inode, value)
