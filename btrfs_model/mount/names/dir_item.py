# SPDX-License-Identifier: GPL-2.0-only
"""Names in the tree of a subvolume: entries of directories, and names of inodes.

An entry is there three times: in a DIR_ITEM (by the hash of the name; names whose hashes collide
are packed into one item), in a DIR_INDEX (by the order of creation, delayed), and as the inode's
own INODE_REF. All names of an inode in one directory are packed into its INODE_REF while a leaf has
room for them; further ones go into INODE_EXTREF items, by a hash of directory and name, where the
filesystem has that feature. The functions are those of the kernel's dir-item.c and inode-item.c.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from typing import Final

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.ondisk.hashes import extref_hash, name_hash
from btrfs_model.ondisk.items import (
    DirItem,
    InodeExtref,
    dir_items,
    inode_names,
)
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import DIR_ITEM, HEADER, INODE_EXTREF, INODE_REF, ITEM
from btrfs_model.volume.tree import RawKey

NAME_LEN: Final = 255
"""Bytes of a name (``BTRFS_NAME_LEN``)."""

LINK_MAX: Final = 65535
"""Names of an inode (``BTRFS_LINK_MAX``)."""


def fail(number: int, path: str | bytes) -> OSError:
    """Return the error that a system call on `path` fails with."""
    name = path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")
    return OSError(number, os.strerror(number), name)


def d_drop(fs: Mount, directory: LiveInode, name: bytes) -> None:
    """Forget what has a name in a directory (``d_drop()``), and paths that may lead through it."""
    gone = directory.dentries.pop(name, None)
    if gone is not None and not stat.S_ISREG(gone.item.mode):
        _forget_walks(fs)


def d_drop_all(fs: Mount, directory: LiveInode) -> None:
    """Forget the names of a directory (``shrink_dcache_parent()``)."""
    directory.dentries.clear()
    _forget_walks(fs)


def _forget_walks(fs: Mount) -> None:
    top = fs.live_subvolumes.get(int(ObjectId.FS_TREE))
    if top is not None:
        top.walked.clear()


# ------------------------------------------------------------------------------ directory items --


@lru_cache(1 << 10)
def dir_item_key(directory: int, name: bytes) -> RawKey:
    """Key of the DIR_ITEM of an entry; a call asks for the same one again and again."""
    return (directory, ItemType.DIR_ITEM, name_hash(name))


def pack_dir_item(
    location: RawKey, transid: int, file_type: int, name: bytes, data: bytes = b""
) -> bytes:
    """Return the bytes of an entry or extended attribute."""
    head = DIR_ITEM.struct.pack(*location, transid, len(data), len(name), file_type)
    return head + name + data


def lookup_dir_item(fs: Mount, root: int, key: RawKey, name: bytes) -> DirItem | None:
    """Find an entry (or attribute) in the item that its hash leads to."""
    payload = fs.writer.get(root, key)
    if payload is None:
        return None
    return next((entry for entry in dir_items(payload) if entry.name == name), None)


def check_dir_item_collision(fs: Mount, root: int, directory: int, name: bytes) -> None:
    """See that an entry can be added (``btrfs_check_dir_item_collision()``).

    Raises OSError: EOVERFLOW when so many names have its hash that no leaf has room for another.
    Kernels find out too late in some calls and abort the transaction; here nothing is changed.
    """
    payload = fs.writer.get(root, dir_item_key(directory, name))
    if payload is None:
        return
    needed = DIR_ITEM.size + len(name) + len(payload) + ITEM.size
    if needed > fs.nodesize - HEADER.size:
        raise fail(errno.EOVERFLOW, name)


def insert_dir_item(
    fs: Mount, directory: LiveInode, name: bytes, location: RawKey, file_type: int, index: int
) -> None:
    """Add an entry to a directory (``btrfs_insert_dir_item()``); its index item is delayed.

    Raises OSError: EEXIST or EOVERFLOW.
    """
    payload = pack_dir_item(location, fs.transid, file_type, name)
    insert_with_overflow(fs, directory.root, dir_item_key(directory.ino, name), name, payload)
    d_drop(fs, directory, name)
    fs.delayed.insert_index(directory, index, payload)


def insert_with_overflow(fs: Mount, root: int, key: RawKey, name: bytes, payload: bytes) -> None:
    """Insert an entry, or append it to those of the same hash (``insert_with_overflow()``).

    Raises OSError: EEXIST when the name is there, EOVERFLOW when a leaf has no room for all.
    """
    try:
        fs.writer.insert_entry(root, key, payload)
    except OSError as error:
        raise fail(errno.EEXIST, name) if error.errno == errno.EEXIST else error from None


def delete_one_dir_name(fs: Mount, root: int, key: RawKey, name: bytes) -> None:
    """Remove an entry from an item, and the item with its last entry.

    (``btrfs_delete_one_dir_name()``; the name is known to be there.)
    """
    gone = fs.writer.delete_entry(root, key, name)
    assert gone is not None


def cow_leaf(fs: Mount, root: int, key: RawKey) -> None:
    """Copy the leaf where a key would be, as a search does that is to change something there."""
    tree = fs.writer.tree(root)
    item = tree.last(key) or tree.first()
    if item is not None:
        fs.writer.update(root, item.key, 0, b"")


# ----------------------------------------------------------------------------- inode references --


def pack_inode_ref(index: int, name: bytes) -> bytes:
    """Return the bytes of a name of an inode."""
    return INODE_REF.struct.pack(index, len(name)) + name


def _pack_extrefs(names: list[InodeExtref]) -> bytes:
    """Return the bytes of an INODE_EXTREF."""
    head = INODE_EXTREF.struct.pack
    return b"".join(head(ref.parent_objectid, ref.index, len(ref.name)) + ref.name for ref in names)


def _ref_key(ino: int, parent: int) -> RawKey:
    """Key of the item with the names of an inode in a directory."""
    return ino, ItemType.INODE_REF, parent


def _extref_key(ino: int, parent: int, name: bytes) -> RawKey:
    """Key of the item with a name for which that one has no room."""
    return ino, ItemType.INODE_EXTREF, extref_hash(parent, name)


def inode_names_there(fs: Mount, root: int, key: RawKey) -> list[InodeExtref]:
    """Return the names in an INODE_REF or INODE_EXTREF, none where there is no such item."""
    payload = fs.writer.get(root, key)
    return [] if payload is None else inode_names(key, payload)


def insert_inode_ref(fs: Mount, root: int, name: bytes, ino: int, parent: int, index: int) -> None:
    """Give an inode a name (``btrfs_insert_inode_ref()``, ``btrfs_insert_inode_extref()``).

    Raises OSError: EEXIST when it has that name; EMLINK when no item has room for it.
    """
    try:
        fs.writer.insert_entry(root, _ref_key(ino, parent), pack_inode_ref(index, name))
        return
    except OSError as error:
        if error.errno == errno.EEXIST:
            raise fail(errno.EEXIST, name) from None
        if error.errno != errno.EOVERFLOW:
            raise
    if not fs.image.superblock.has_incompat("EXTENDED_IREF"):
        raise fail(errno.EMLINK, name)
    key = _extref_key(ino, parent, name)
    refs = inode_names_there(fs, root, key)
    if any((ref.parent_objectid, ref.name) == (parent, name) for ref in refs):
        raise fail(errno.EEXIST, name)
    try:
        add = fs.writer.extend if refs else fs.writer.insert
        add(root, key, _pack_extrefs([InodeExtref(parent, index, name)]))
    except OSError as error:
        raise fail(errno.EMLINK, name) if error.errno == errno.EOVERFLOW else error from None


def delete_inode_ref(fs: Mount, root: int, name: bytes, ino: int, parent: int) -> int:
    """Take a name from an inode and return its directory index (``btrfs_del_inode_ref()``).

    Raises OSError: ENOENT when it has no such name.
    """
    index = fs.writer.delete_entry(root, _ref_key(ino, parent), name)
    if index is not None:
        return index
    cow_leaf(fs, root, _ref_key(ino, parent))  # that was a search to change it
    key = _extref_key(ino, parent, name)
    refs = inode_names_there(fs, root, key)
    for at, ref in enumerate(refs):
        if (ref.parent_objectid, ref.name) == (parent, name):
            rest = _pack_extrefs(refs[:at] + refs[at + 1 :])
            if rest:
                fs.writer.replace(root, key, rest)
            else:
                fs.writer.delete(root, key)
            return ref.index
    raise fail(errno.ENOENT, name)
