# SPDX-License-Identifier: GPL-2.0-only
"""First keys of tree blocks when they were made, as extent items that are not skinny have them.

Some trees were empty then, others had items of the chunks that mkfs.btrfs starts with.
"""

from __future__ import annotations

from typing import Final

from btrfs_model.mount.mkfs.layout import FIRST_CHUNKS, Format, mkfs_chunks
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_SYSTEM
from btrfs_model.ondisk.keys import ItemType, ObjectId

_Key = tuple[int, int, int]
_CHUNK, _LENGTH = FIRST_CHUNKS[0]
_FIRST_GROUP: Final = (_CHUNK, int(ItemType.BLOCK_GROUP_ITEM), _LENGTH)
_FIRST_ROOT: Final = (int(ObjectId.EXTENT_TREE), int(ItemType.ROOT_ITEM), 0)


def first_keys(options: Format) -> dict[int, _Key]:
    """Return the first key of the root block of each tree that had one, by the tree's id."""
    keys: dict[int, _Key] = {
        ObjectId.ROOT_TREE: _FIRST_ROOT,
        ObjectId.EXTENT_TREE: _FIRST_GROUP,
        ObjectId.CHUNK_TREE: (1, ItemType.DEV_ITEM, 1),
        ObjectId.DEV_TREE: (1, ItemType.DEV_EXTENT, _CHUNK),
        ObjectId.FS_TREE: (int(ObjectId.FIRST_FREE), ItemType.INODE_ITEM, 0),
        ObjectId.FREE_SPACE_TREE: (_CHUNK, ItemType.FREE_SPACE_INFO, _LENGTH),
    }
    if not options.release.rebuilds:
        return keys
    keys[ObjectId.DEV_TREE] = (ObjectId.DEV_STATS, ItemType.PERSISTENT_ITEM, 1)
    # a new tree's block shows what was in that memory before
    keys[ObjectId.UUID_TREE] = _FIRST_ROOT
    if options.has_block_group_tree:
        keys[ObjectId.BLOCK_GROUP_TREE] = _FIRST_GROUP
        chunk_root = (_CHUNK + options.nodesize, int(ItemType.EXTENT_ITEM), options.nodesize)
        keys[ObjectId.EXTENT_TREE] = chunk_root
        if not options.is_single:
            system = next(c for c in mkfs_chunks(options) if c.type & BTRFS_BLOCK_GROUP_SYSTEM)
            keys[ObjectId.UUID_TREE] = chunk_root
            keys[ObjectId.EXTENT_TREE] = (system.logical, *chunk_root[1:])
    return keys
