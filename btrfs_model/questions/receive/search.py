# SPDX-License-Identifier: GPL-2.0-only
"""Finding a subvolume by its UUID (``subvol_uuid_search()``)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from btrfs_model.mount.live_inode import ROOT_DIR
from btrfs_model.ondisk.items import inode_refs, root_ref, subvolume_ids
from btrfs_model.ondisk.keys import ItemType, ObjectId

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem

_TOP = int(ObjectId.FS_TREE)
_UUID_TREE = int(ObjectId.UUID_TREE)


def find_subvolume(fs: WritableFilesystem, uuid: bytes, *, received_only: bool) -> bytes | None:
    """Find a subvolume by UUID: the received copy, or the original itself.

    btrfs-progs 6.2 asks the UUID tree and takes the first subvolume that it names; the transaction
    that the stream gives beside the UUID is not looked at.

    `fs`: where to look.
    `uuid`: of the subvolume that was sent.
    `received_only`: whether it does not count that a subvolume has the UUID as its own.
    Returns the path from the top of the filesystem.
    """
    kinds = [ItemType.UUID_KEY_RECEIVED_SUBVOL]
    if not received_only:
        kinds.append(ItemType.UUID_KEY_SUBVOL)
    halves = (int.from_bytes(uuid[:8], "little"), int.from_bytes(uuid[8:], "little"))
    if not fs.writer.has_tree(_UUID_TREE):
        return None
    for kind in kinds:
        payload = fs.writer.get(_UUID_TREE, (halves[0], kind, halves[1]))
        ids = subvolume_ids(payload) if payload is not None else []
        if ids:
            return _path(fs, ids[0])
    return None


def _path(fs: WritableFilesystem, root: int) -> bytes:
    """Path of a subvolume as it is now, from the top of the filesystem."""
    names: list[bytes] = []
    while root != _TOP:
        backref = fs.writer.tree(int(ObjectId.ROOT_TREE)).first((root, ItemType.ROOT_BACKREF, 0))
        if backref is None or backref.key[:2] != (root, ItemType.ROOT_BACKREF):
            raise FileNotFoundError(errno.ENOENT, "a subvolume has no name", fs.path)
        ref = root_ref(backref.data)
        names.append(ref.name)
        root, directory = backref.key.offset, ref.dirid
        while directory != ROOT_DIR:
            item = fs.writer.tree(root).first((directory, ItemType.INODE_REF, 0))
            if item is None or item.key[:2] != (directory, ItemType.INODE_REF):
                raise FileNotFoundError(errno.ENOENT, "a directory has no name", fs.path)
            names.append(inode_refs(item.data)[0].name)
            directory = item.key.offset
    return b"/".join(reversed(names))
