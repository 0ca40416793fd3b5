# SPDX-License-Identifier: GPL-2.0-only
"""What ``btrfs check`` counts while it reads all tree blocks, each of them once."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from btrfs_model.ondisk.constants import ExtentFlag
from btrfs_model.ondisk.items import InlineExtent, extent_item, file_extent
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import HEADER, ITEM
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import may_be_relocated

_KEY_PTR: Final = 33
_ITEM: Final = np.dtype([("objectid", "<u8"), ("type", "u1"), ("key", "<u8"), ("offset", "<u4"),
                         ("size", "<u4")])  # fmt: skip


class Summary(NamedTuple):
    """Bytes: in use, of checksums, of tree blocks, and in these free; of data as items name them.

    `allocated` has the whole extent of each item, `referenced` what the item shows of it.
    """

    used: int = 0
    csum: int = 0
    trees: int = 0
    fs_trees: int = 0
    extent_tree: int = 0
    waste: int = 0
    allocated: int = 0
    referenced: int = 0


def check_summary(image: Image) -> Summary:
    """Count what ``btrfs check`` counts (``run_next_block()`` of btrfs-progs 6.2)."""
    fs = Filesystem(image)
    found = Summary(used=image.superblock.bytes_used)
    for item in fs.trees[int(ObjectId.EXTENT_TREE)].items():
        if item.key.type == ItemType.METADATA_ITEM or (
            item.key.type == ItemType.EXTENT_ITEM
            and extent_item(item.key, item.data).flags & ExtentFlag.TREE_BLOCK
        ):
            found = _with_block(image, found, item.key.objectid)
    return found


def _with_block(image: Image, found: Summary, address: int) -> Summary:
    """Count one tree block."""
    size = image.nodesize
    block = image.data(address, size)
    head = HEADER.unpack(block)
    found = found._replace(
        trees=found.trees + size,
        fs_trees=found.fs_trees + size * may_be_relocated(head.owner),
        extent_tree=found.extent_tree + size * (head.owner == ObjectId.EXTENT_TREE),
    )
    if head.level:
        pointers = (size - HEADER.size) // _KEY_PTR
        return found._replace(waste=found.waste + (pointers - head.nritems) * _KEY_PTR)
    items = np.frombuffer(block, _ITEM, head.nritems, HEADER.size)
    free = size - HEADER.size - head.nritems * ITEM.size - int(items["size"].sum())
    checksums = items["size"][items["type"] == ItemType.EXTENT_CSUM]
    allocated, referenced = found.allocated, found.referenced
    for item in items[items["type"] == ItemType.EXTENT_DATA]:
        start = HEADER.size + int(item["offset"])
        extent = file_extent(block[start : start + int(item["size"])])
        if not isinstance(extent, InlineExtent) and extent.disk_bytenr:
            allocated += extent.disk_num_bytes
            referenced += extent.num_bytes
    return found._replace(waste=found.waste + free, csum=found.csum + int(checksums.sum()),
                          allocated=allocated, referenced=referenced)  # fmt: skip
