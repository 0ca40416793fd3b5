# SPDX-License-Identifier: GPL-2.0-only
"""The raid-stripe-tree: where data lie whose chunk says only on which devices.

With that feature, data of a chunk with copies or stripes are written anywhere in the stripes of the
chunk, and an item (logical, RAID_STRIPE, length) says where: a devid and a byte of the device for
each copy. What is striped has an item for each piece. So an item is a small chunk by itself, which
has all of it on each of its stripes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import Payload, PayloadError
from btrfs_model.ondisk.structs import RAID_STRIDE, RaidStride
from btrfs_model.volume.tree import Tree

_TYPES: Final = 0x7
_DATA: Final = 1 << 0
# RAID0, RAID1, DUP, RAID10, RAID1C3, RAID1C4
_SUPPORTED: Final = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 9 | 1 << 10
_PROFILES: Final = {1: 0, 2: 1 << 4, 3: 1 << 9, 4: 1 << 10}
"""The profile that has as many copies."""


def in_stripe_tree(flags: int) -> bool:
    """Whether the tree has what lies in a chunk (``btrfs_need_stripe_tree_update()``)."""
    return flags & _TYPES == _DATA and bool(flags & _SUPPORTED)


def read_strides(tree: Tree, path: str) -> Iterator[Chunk]:
    """Yield the items of the tree as chunks (``btrfs_get_raid_extent_offset()``, Linux 6.18).

    Raises CorruptImageError: for one that no kernel writes.
    """
    for item in tree.items():
        if item.key.type == ItemType.RAID_STRIPE:
            strides = item.decode(_strides, path, ObjectId.RAID_STRIPE_TREE)
            yield Chunk(
                item.key.objectid,
                item.key.offset,
                _DATA | _PROFILES[len(strides)],
                tuple(stride.physical for stride in strides),
                tuple(stride.devid for stride in strides),
            )


def _strides(payload: Payload) -> list[RaidStride]:
    count, rest = divmod(len(payload), RAID_STRIDE.size)
    if rest or count not in _PROFILES:
        raise PayloadError.bad_value(len(payload))
    return [RAID_STRIDE.unpack(payload, n * RAID_STRIDE.size) for n in range(count)]
