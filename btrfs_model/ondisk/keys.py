# SPDX-License-Identifier: GPL-2.0-only
"""Keys: what they are, and the names of their parts as btrfs-progs write them.

Every item of every tree has a key of 136 bits, (objectid, type, offset), compared in that order as
unsigned numbers. What the three mean depends on the tree; in a subvolume objectid is an inode
number, type the kind of the item, and offset whatever tells several such items of one inode apart:

    (257 INODE_ITEM 0)              the inode
    (257 INODE_REF 256)             its name in directory 256
    (257 EXTENT_DATA 0)             its data from byte 0 on
    (256 DIR_ITEM 2476812384)       an entry of directory 256, by the hash of its name
    (256 DIR_INDEX 2)               the same entry, by the order of creation
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

U64_MAX: Final = 2**64 - 1


class ItemType(IntEnum):
    """Types of items, as the kernel names them less ``BTRFS_`` and a final ``_KEY``.

    TEMPORARY_ITEM and PERSISTENT_ITEM are shared by several kinds, told apart by the objectid: so
    far the state of a balance (BALANCE) and the error counts of a device (DEV_STATS).
    """

    INODE_ITEM = 1
    INODE_REF = 12
    INODE_EXTREF = 13
    XATTR_ITEM = 24
    VERITY_DESC_ITEM = 36
    VERITY_MERKLE_ITEM = 37
    ORPHAN_ITEM = 48
    DIR_LOG_ITEM = 60
    DIR_LOG_INDEX = 72
    DIR_ITEM = 84
    DIR_INDEX = 96
    EXTENT_DATA = 108
    CSUM_ITEM = 120
    EXTENT_CSUM = 128
    ROOT_ITEM = 132
    ROOT_BACKREF = 144
    ROOT_REF = 156
    EXTENT_ITEM = 168
    METADATA_ITEM = 169
    EXTENT_OWNER_REF = 172
    TREE_BLOCK_REF = 176
    EXTENT_DATA_REF = 178
    EXTENT_REF_V0 = 180
    SHARED_BLOCK_REF = 182
    SHARED_DATA_REF = 184
    BLOCK_GROUP_ITEM = 192
    FREE_SPACE_INFO = 198
    FREE_SPACE_EXTENT = 199
    FREE_SPACE_BITMAP = 200
    DEV_EXTENT = 204
    DEV_ITEM = 216
    CHUNK_ITEM = 228
    RAID_STRIPE = 230
    QGROUP_STATUS = 240
    QGROUP_INFO = 242
    QGROUP_LIMIT = 244
    QGROUP_RELATION = 246
    TEMPORARY_ITEM = 248
    PERSISTENT_ITEM = 249
    DEV_REPLACE = 250
    UUID_KEY_SUBVOL = 251
    UUID_KEY_RECEIVED_SUBVOL = 252
    STRING_ITEM = 253


class ObjectId(IntEnum):
    """Well-known object and tree numbers, as the kernel names them less ``BTRFS_..._OBJECTID``."""

    DEV_STATS = 0
    ROOT_TREE = 1
    EXTENT_TREE = 2
    CHUNK_TREE = 3
    DEV_TREE = 4
    FS_TREE = 5
    ROOT_TREE_DIR = 6
    CSUM_TREE = 7
    QUOTA_TREE = 8
    UUID_TREE = 9
    FREE_SPACE_TREE = 10
    BLOCK_GROUP_TREE = 11
    RAID_STRIPE_TREE = 12
    FIRST_FREE = 256
    FREE_INO = 2**64 - 12
    FREE_SPACE = 2**64 - 11
    EXTENT_CSUM = 2**64 - 10
    DATA_RELOC_TREE = 2**64 - 9
    TREE_RELOC = 2**64 - 8
    TREE_LOG_FIXUP = 2**64 - 7
    TREE_LOG = 2**64 - 6
    ORPHAN = 2**64 - 5
    BALANCE = 2**64 - 4
    MULTIPLE = 2**64 - 255


class Key(NamedTuple):
    """A key; compares as the trees do.

    `objectid`, `type`, `offset`: 64, 8 and 64 bits without sign.
    """

    objectid: int
    type: int
    offset: int

    def __str__(self) -> str:
        number, kind, offset = self
        names = objectid_name(number, kind), item_type_name(kind, number)
        return f"({' '.join(names)} {offset_name(offset, kind, number)})"


MIN_KEY: Final = Key(0, 0, 0)
MAX_KEY: Final = Key(U64_MAX, 255, U64_MAX)


# ------------------------------------------------------------------------------------- names ----

_TYPE_NAMES: Final = {int(item_type): item_type.name for item_type in ItemType}
_OBJECTID_NAMES: Final = {
    int(number): number.name
    for number in ObjectId
    if number not in {ObjectId.DEV_STATS, ObjectId.FIRST_FREE}
} | {int(ObjectId.TREE_LOG_FIXUP): "LOG_FIXUP", U64_MAX: "-1"}


def qgroupid(number: int) -> str:
    """Return level/id of a quota group."""
    return f"{number >> 48}/{number & (1 << 48) - 1}"


def _hex(number: int) -> str:
    return f"0x{number:016x}"


OBJECTID_IN: Final[dict[int, Callable[[int], str]]] = {
    ItemType.PERSISTENT_ITEM: lambda number: str(number) if number else "DEV_STATS",
    ItemType.DEV_EXTENT: str,
    ItemType.QGROUP_RELATION: qgroupid,
    ItemType.UUID_KEY_SUBVOL: _hex,
    ItemType.UUID_KEY_RECEIVED_SUBVOL: _hex,
    ItemType.DEV_ITEM: lambda number: "DEV_ITEMS" if number == 1 else objectid_name(number),
    ItemType.CHUNK_ITEM: lambda n: "FIRST_CHUNK_TREE" if n == 256 else objectid_name(n),
}
"""Types of which the objectid is no object: what it is called instead."""

OFFSET_IN: Final[dict[int, Callable[[int], str]]] = {
    ItemType.QGROUP_RELATION: qgroupid,
    ItemType.QGROUP_INFO: qgroupid,
    ItemType.QGROUP_LIMIT: qgroupid,
    ItemType.UUID_KEY_SUBVOL: _hex,
    ItemType.UUID_KEY_RECEIVED_SUBVOL: _hex,
    ItemType.ROOT_ITEM: str,
}
"""Types of which the offset is no plain number: what it is called."""


def item_type_name(item_type: int, number: int = 0) -> str:
    """Name of an item type, ``UNKNOWN.n`` for one that has none; `number` is the objectid."""
    if item_type == 0 and number == ObjectId.FREE_SPACE:
        return "UNTYPED"
    return _TYPE_NAMES.get(item_type) or f"UNKNOWN.{item_type}"


def objectid_name(number: int, item_type: int = 0) -> str:
    """Name of a well-known object, the number itself for others.

    `item_type`: of the key that it is part of: the same number is another object in another tree.
    """
    if item_type in OBJECTID_IN:
        return OBJECTID_IN[item_type](number)
    return _OBJECTID_NAMES.get(number) or str(number)


def offset_name(offset: int, item_type: int, number: int) -> str:
    """Name of the offset of a key, -1 for the largest; `number` is the objectid."""
    if item_type == ItemType.ROOT_ITEM and number == ObjectId.TREE_RELOC:
        # the tree that is being relocated
        return objectid_name(offset)
    if item_type in OFFSET_IN:
        return OFFSET_IN[item_type](offset)
    return "-1" if offset == U64_MAX else str(offset)
