# SPDX-License-Identifier: GPL-2.0-only
"""Whether a directory was created out of its turn, as the parent of a lower inode."""

from __future__ import annotations

from btrfs_model.base.counters import current
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.reference.send.context import SendContext, alloc_path_for_send
from btrfs_model.reference.send.names import btrfs_for_each_slot, iterate_dir_item


def cache_dir_created(sctx: SendContext, ino: int) -> None:
    """Remember that a directory was created."""
    if Patch.SEND_DIR_CREATED_CACHE in sctx and (ino, 0) not in sctx.dir_created_cache:
        current().count("btrfs_lru_cache_store")
        sctx.dir_created_cache.store(ino, 0, True, sctx.limits.dir_created_cache)


def did_create_dir(sctx: SendContext, ino: int) -> bool:
    """Look for an entry of the directory whose inode was processed already."""
    current().count("did_create_dir")
    if Patch.SEND_DIR_CREATED_CACHE in sctx:
        current().count("btrfs_lru_cache_lookup")
        if sctx.dir_created_cache.lookup(ino) is not None:
            return True
    path, wanted = alloc_path_for_send(sctx), (ino, ItemType.DIR_INDEX)
    for key in btrfs_for_each_slot(sctx.send_root, Key(*wanted, 0), path):
        if key[:2] != wanted:
            break
        entry = iterate_dir_item(sctx, path, sctx.send_root)[0]
        is_subvolume = entry.location.type == ItemType.ROOT_ITEM
        if not is_subvolume and entry.location.objectid < sctx.send_progress:
            cache_dir_created(sctx, ino)
            return True
    return False
