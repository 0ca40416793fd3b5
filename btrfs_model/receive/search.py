# SPDX-License-Identifier: GPL-2.0-only
"""Finding a subvolume by its UUID (``subvol_uuid_search()``)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from btrfs_model.ondisk.items import subvolume_ids
from btrfs_model.ondisk.keys import ItemType, ObjectId

if TYPE_CHECKING:
    from btrfs_model.filesystem.writable import WritableFilesystem

__all__ = ["find_subvolume"]

_UUID_TREE = int(ObjectId.UUID_TREE)


def find_subvolume(fs: WritableFilesystem, uuid: bytes, *, received_only: bool) -> bytes | None:
    """Return the path of the subvolume that was received from another one, or is that one.

    btrfs-progs 6.2 asks the UUID tree and takes the first subvolume that it names; the transaction
    that the stream gives beside the UUID is not looked at.

    Parameters
    ----------
    fs : WritableFilesystem
        Where to look.
    uuid : bytes
        Of the subvolume that was sent.
    received_only : bool
        Whether it does not count that a subvolume has the UUID as its own.

    Returns
    -------
    bytes or None
        The path from the top of the filesystem.
    """
    kinds = [ItemType.UUID_KEY_RECEIVED_SUBVOL]
    if not received_only:
        kinds.append(ItemType.UUID_KEY_SUBVOL)
    halves = (int.from_bytes(uuid[:8], "little"), int.from_bytes(uuid[8:], "little"))
    if _UUID_TREE not in fs.writer.tree_ids():
        return None
    for kind in kinds:
        payload = fs.writer.get(_UUID_TREE, (halves[0], kind, halves[1]))
        ids = subvolume_ids(payload) if payload is not None else []
        if ids:
            # the path is read from what was committed
            fs.commit()
            return os.fsencode(fs.subvolume_path(ids[0]))
    return None
