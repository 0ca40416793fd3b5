# SPDX-License-Identifier: GPL-2.0-only
"""What the root tree and the UUID tree say of subvolumes: names, UUIDs, root items.

A subvolume's name stands in the root tree twice: (child, ROOT_BACKREF, parent) and (parent,
ROOT_REF, child). The UUID tree leads from a UUID, cut in two halves, to the ids of the subvolumes
that have it, as their own (UUID_KEY_SUBVOL) or as received (UUID_KEY_RECEIVED_SUBVOL).
"""

from __future__ import annotations

import errno
from typing import Final

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.ondisk.items import root_ref, subvolume_ids
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import ROOT_REF
from btrfs_model.volume.tree import RawKey

NO_UUID: Final = bytes(16)

_ROOT_TREE: Final = int(ObjectId.ROOT_TREE)
_UUID_TREE: Final = int(ObjectId.UUID_TREE)


def add_root_ref(fs: Mount, child: int, parent: int, dirid: int, index: int, name: bytes) -> None:
    """``btrfs_add_root_ref()``."""
    payload = ROOT_REF.struct.pack(dirid, index, len(name)) + name
    fs.writer.insert(_ROOT_TREE, (child, ItemType.ROOT_BACKREF, parent), payload)
    fs.writer.insert(_ROOT_TREE, (parent, ItemType.ROOT_REF, child), payload)


def delete_root_ref(fs: Mount, child: int, parent: int, dirid: int, name: bytes) -> int:
    """Remove the name of a subvolume and return its directory index (``btrfs_del_root_ref()``).

    Raises OSError: ENOENT when it does not have that name there.
    """
    key = (child, ItemType.ROOT_BACKREF, parent)
    payload = fs.writer.get(_ROOT_TREE, key)
    ref = root_ref(payload) if payload is not None else None
    if ref is None or (ref.dirid, ref.name) != (dirid, name):
        raise fail(errno.ENOENT, name)
    fs.writer.delete(_ROOT_TREE, key)
    fs.writer.delete(_ROOT_TREE, (parent, ItemType.ROOT_REF, child))
    return ref.sequence


def _uuid_key(uuid: bytes, kind: ItemType) -> RawKey:
    return (int.from_bytes(uuid[:8], "little"), kind, int.from_bytes(uuid[8:], "little"))


def uuid_tree_add(fs: Mount, uuid: bytes, kind: ItemType, root: int) -> None:
    """Add a subvolume to those of a UUID (``btrfs_uuid_tree_add()``)."""
    if not fs.writer.has_tree(_UUID_TREE):
        return
    key, entry = _uuid_key(uuid, kind), root.to_bytes(8, "little")
    payload = fs.writer.get(_UUID_TREE, key)
    if payload is None:
        fs.writer.insert(_UUID_TREE, key, entry)
    elif root not in subvolume_ids(payload):
        fs.writer.extend(_UUID_TREE, key, entry)


def uuid_tree_remove(fs: Mount, uuid: bytes, kind: ItemType, root: int) -> None:
    """Take a subvolume from those of a UUID (``btrfs_uuid_tree_remove()``)."""
    key = _uuid_key(uuid, kind)
    payload = fs.writer.get(_UUID_TREE, key) if fs.writer.has_tree(_UUID_TREE) else None
    ids = subvolume_ids(payload) if payload is not None else []
    if root not in ids:
        return
    ids.remove(root)
    if ids:
        rest = b"".join(other.to_bytes(8, "little") for other in ids)
        fs.writer.replace(_UUID_TREE, key, rest)
    else:
        fs.writer.delete(_UUID_TREE, key)
