# SPDX-License-Identifier: GPL-2.0-only
"""What the payload of an item says, by the type of its key.

:func:`decode` gives a record (or a list of records, or bytes) for any item of any tree. Fixed
structures come as the NamedTuples of :mod:`btrfs_model.ondisk.structs`; items of variable length
come as the classes below, whose fields are the structure's plus what follows it:

    INODE_REF         inode_ref 10 | name                                     repeated
    DIR_ITEM, XATTR   dir_item 30 | name | data                               repeated
    EXTENT_ITEM       extent_item 24 | [tree_block_info 18] | inline references
    CHUNK_ITEM        chunk 48 | stripe 32                                    repeated stripes
    EXTENT_DATA       file_extent_item 53, or its first 21 bytes | inline data

Nothing in a payload is trusted. What does not fit is a
:exc:`~btrfs_model.ondisk.layout.PayloadError`, never an index or struct error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from btrfs_model.ondisk import structs
from btrfs_model.ondisk.chunks import decode_chunk
from btrfs_model.ondisk.constants import ExtentFlag, FileExtentType
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.layout import Layout, Payload, PayloadError

OLD_ROOT_ITEM_SIZE: Final = 239
"""Bytes of a root item before Linux 3.6: up to and with ``level``."""


class InodeRef(NamedTuple):
    """A name of an inode in the directory that is the key's offset."""

    index: int  # type: ignore[assignment]
    name: bytes


class InodeExtref(NamedTuple):
    """A name of an inode in the directory `parent_objectid`."""

    parent_objectid: int
    index: int  # type: ignore[assignment]
    name: bytes


class DirItem(NamedTuple):
    """A directory entry or, with type XATTR, an extended attribute and its value.

    `location`: what the name leads to: an inode of this tree, or the root item of a subvolume.
    `type`: one of ``enum btrfs_file_type``.
    """

    location: Key
    transid: int
    type: int
    name: bytes
    data: bytes


class InlineExtent(NamedTuple):
    """File data that lie in the item itself, possibly compressed."""

    generation: int
    ram_bytes: int
    compression: int
    encryption: int
    other_encoding: int
    type: int
    data: bytes


class RootRef(NamedTuple):
    """Name of a subvolume and the directory it is in."""

    dirid: int
    sequence: int
    name: bytes


class ExtentRef(NamedTuple):
    """Someone who uses an extent; what a kind of reference does not have is None.

    `type`: TREE_BLOCK_REF, SHARED_BLOCK_REF, EXTENT_DATA_REF, SHARED_DATA_REF or EXTENT_OWNER_REF.
    `root`: a tree.
    `parent`: logical address of a tree block (the shared kinds).
    `objectid`, `offset`: inode, and file position less the offset into the extent
    (EXTENT_DATA_REF).
    `count`: references of this kind (the data kinds).
    """

    type: int
    root: int | None = None
    parent: int | None = None
    objectid: int | None = None
    offset: int | None = None
    count: int | None = None  # type: ignore[assignment]


class ExtentItem(NamedTuple):
    """An extent and its inline references.

    `refs`: references of all kinds, keyed ones included.
    `flags`: ``enum btrfs_extent_flag``.
    `key`, `level`: first key and level of a tree block in an EXTENT_ITEM; of a METADATA_ITEM only
    the level, which is the key's offset.
    `inline_refs`: in the order of the item.
    """

    refs: int
    generation: int
    flags: int
    key: Key | None
    level: int | None
    inline_refs: list[ExtentRef]


class ChunkItem(NamedTuple):
    """A chunk with its stripes, whatever its profile."""

    length: int
    owner: int
    stripe_len: int
    type: int
    io_align: int
    io_width: int
    sector_size: int
    num_stripes: int
    sub_stripes: int
    stripes: tuple[structs.Stripe, ...]


def _tail(payload: Payload, start: int, size: int) -> bytes:
    """Return `size` bytes of the payload from `start` on, all of which must be there."""
    if start + size > len(payload):
        raise PayloadError.too_short(len(payload), start + size)
    return bytes(payload[start : start + size])


def _at_least_one(payload: Payload, layout: Layout[Any]) -> None:
    if len(payload) < layout.size:
        raise PayloadError.too_short(len(payload), layout.size)


def each_inode_ref(payload: Payload) -> Iterator[InodeRef]:
    """Yield the names in an INODE_REF, in the order of their creation."""
    _at_least_one(payload, structs.INODE_REF)
    at = 0
    while at < len(payload):
        index, size = structs.INODE_REF.flat(payload, at)
        at += structs.INODE_REF.size
        yield InodeRef(index, _tail(payload, at, size))
        at += size


def inode_refs(payload: Payload) -> list[InodeRef]:
    """Names in an INODE_REF, in the order of their creation."""
    return list(each_inode_ref(payload))


def each_inode_extref(payload: Payload) -> Iterator[InodeExtref]:
    """Yield the names in an INODE_EXTREF."""
    _at_least_one(payload, structs.INODE_EXTREF)
    at = 0
    while at < len(payload):
        parent, index, size = structs.INODE_EXTREF.flat(payload, at)
        at += structs.INODE_EXTREF.size
        yield InodeExtref(parent, index, _tail(payload, at, size))
        at += size


def inode_extrefs(payload: Payload) -> list[InodeExtref]:
    """Names in an INODE_EXTREF."""
    return list(each_inode_extref(payload))


def each_inode_name(key: tuple[int, int, int], payload: Payload) -> Iterator[InodeExtref]:
    """Yield the names in an INODE_REF or INODE_EXTREF, each with its directory."""
    if key[1] == ItemType.INODE_EXTREF:
        yield from each_inode_extref(payload)
    else:
        for index, name in each_inode_ref(payload):
            yield InodeExtref(key[2], index, name)


def inode_names(key: tuple[int, int, int], payload: Payload) -> list[InodeExtref]:
    """Names in an INODE_REF or INODE_EXTREF, each with its directory."""
    return list(each_inode_name(key, payload))


def dir_items(payload: Payload) -> list[DirItem]:
    """Entries in a DIR_ITEM, DIR_INDEX or XATTR_ITEM; several where hashes of names collide."""
    _at_least_one(payload, structs.DIR_ITEM)
    entries = []
    at = 0
    while at < len(payload):
        objectid, key_type, offset, transid, data_len, name_len, file_type = structs.DIR_ITEM.flat(
            payload, at
        )
        at += structs.DIR_ITEM.size
        both = _tail(payload, at, name_len + data_len)
        entries.append(
            DirItem(
                Key(objectid, key_type, offset),
                transid,
                file_type,
                both[:name_len],
                both[name_len:],
            )
        )
        at += name_len + data_len
    return entries


def file_extent(payload: Payload) -> structs.RawFileExtent | InlineExtent:
    """EXTENT_DATA: inline, regular (a hole has ``disk_bytenr`` 0) or preallocated."""
    head = structs.FILE_EXTENT_HEAD.unpack(payload)
    if head.type == FileExtentType.INLINE:
        return InlineExtent(*head, bytes(payload[structs.FILE_EXTENT_HEAD.size :]))
    return structs.FILE_EXTENT_ITEM.unpack(payload)


def root_item(payload: Payload) -> structs.RootItem:
    """ROOT_ITEM; a short one of Linux before 3.6 is filled up with zeros."""
    if len(payload) < OLD_ROOT_ITEM_SIZE:
        raise PayloadError.too_short(len(payload), OLD_ROOT_ITEM_SIZE)
    return structs.ROOT_ITEM.unpack(bytes(payload).ljust(structs.ROOT_ITEM.size, b"\0"))


def root_ref(payload: Payload) -> RootRef:
    """ROOT_REF or ROOT_BACKREF."""
    dirid, sequence, size = structs.ROOT_REF.flat(payload)
    return RootRef(dirid, sequence, _tail(payload, structs.ROOT_REF.size, size))


def _inline_ref(payload: Payload, at: int) -> tuple[ExtentRef, int]:
    """Decode the inline reference at `at`; also return where it ends."""
    ref_type, offset = structs.EXTENT_INLINE_REF.flat(payload, at)
    end = at + structs.EXTENT_INLINE_REF.size
    match ref_type:
        case ItemType.TREE_BLOCK_REF | ItemType.EXTENT_OWNER_REF:
            return ExtentRef(ref_type, root=offset), end
        case ItemType.SHARED_BLOCK_REF:
            return ExtentRef(ref_type, parent=offset), end
        case ItemType.EXTENT_DATA_REF:
            # the structure takes the place of the offset
            start = at + 1
            root, objectid, file_offset, count = structs.EXTENT_DATA_REF.flat(payload, start)
            ref = ExtentRef(ref_type, root, None, objectid, file_offset, count)
            return ref, start + structs.EXTENT_DATA_REF.size
        case ItemType.SHARED_DATA_REF:
            (count,) = structs.SHARED_DATA_REF.flat(payload, end)
            return ExtentRef(
                ref_type, parent=offset, count=count
            ), end + structs.SHARED_DATA_REF.size
        case _:
            raise PayloadError.bad_value(ref_type)


def extent_item(key: Key, payload: Payload) -> ExtentItem:
    """EXTENT_ITEM or METADATA_ITEM with the inline references."""
    refs, generation, flags = structs.EXTENT_ITEM.flat(payload)
    at = structs.EXTENT_ITEM.size
    first: Key | None = None
    level: int | None = None
    if key.type == ItemType.METADATA_ITEM:
        level = key.offset
    elif flags & ExtentFlag.TREE_BLOCK:
        objectid, key_type, offset, level = structs.TREE_BLOCK_INFO.flat(payload, at)
        first = Key(objectid, key_type, offset)
        at += structs.TREE_BLOCK_INFO.size
    inline_refs = []
    while at < len(payload):
        ref, at = _inline_ref(payload, at)
        inline_refs.append(ref)
    return ExtentItem(refs, generation, flags, first, level, inline_refs)


def keyed_ref(key: Key, payload: Payload) -> ExtentRef:
    """Return the reference that an item of its own is."""
    match key.type:
        case ItemType.TREE_BLOCK_REF:
            return ExtentRef(key.type, root=key.offset)
        case ItemType.SHARED_BLOCK_REF:
            return ExtentRef(key.type, parent=key.offset)
        case ItemType.SHARED_DATA_REF:
            return ExtentRef(
                key.type, parent=key.offset, count=structs.SHARED_DATA_REF.flat(payload)[0]
            )
        case _:
            root, objectid, offset, count = structs.EXTENT_DATA_REF.flat(payload)
            return ExtentRef(key.type, root, None, objectid, offset, count)


def _chunk_item(payload: Payload) -> ChunkItem:
    head, stripes = decode_chunk(payload)
    return ChunkItem(*head, stripes)


def _checksums(payload: Payload, csum_size: int) -> list[bytes]:
    if len(payload) % csum_size:
        raise PayloadError.too_short(
            len(payload), len(payload) // csum_size * csum_size + csum_size
        )
    data = bytes(payload)
    return [data[at : at + csum_size] for at in range(0, len(data), csum_size)]


def subvolume_ids(payload: Payload) -> list[int]:
    """Subvolumes in a UUID_KEY_SUBVOL or UUID_KEY_RECEIVED_SUBVOL."""
    if len(payload) % 8:
        raise PayloadError.too_short(len(payload), len(payload) // 8 * 8 + 8)
    data = bytes(payload)
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


def _raid_strides(payload: Payload) -> list[structs.RaidStride]:
    return [
        structs.RAID_STRIDE.unpack(payload, at)
        for at in range(0, len(payload), structs.RAID_STRIDE.size)
    ]


# Types that have a structure under some keys only.
_UNDER: Final[dict[int, tuple[Callable[[Key], bool], Layout[Any]]]] = {
    0: (lambda key: key.objectid == ObjectId.FREE_SPACE, structs.FREE_SPACE_HEADER),
    # offset 0 holds the size, offset 1 the descriptor of fs-verity itself
    ItemType.VERITY_DESC_ITEM: (lambda key: key.offset == 0, structs.VERITY_DESCRIPTOR_ITEM),
    ItemType.TEMPORARY_ITEM: (lambda key: key.objectid == ObjectId.BALANCE, structs.BALANCE_ITEM),
    ItemType.PERSISTENT_ITEM: (
        lambda key: key.objectid == ObjectId.DEV_STATS, structs.DEV_STATS_ITEM,
    ),
}  # fmt: skip

_BY_PAYLOAD: Final[dict[int, Callable[[Payload], Any]]] = {
    ItemType.INODE_ITEM: structs.INODE_ITEM.unpack,
    ItemType.INODE_REF: inode_refs,
    ItemType.INODE_EXTREF: inode_extrefs,
    ItemType.XATTR_ITEM: dir_items,
    ItemType.DIR_LOG_ITEM: structs.DIR_LOG_ITEM.unpack,
    ItemType.DIR_LOG_INDEX: structs.DIR_LOG_ITEM.unpack,
    ItemType.DIR_ITEM: dir_items,
    ItemType.DIR_INDEX: dir_items,
    ItemType.EXTENT_DATA: file_extent,
    ItemType.ROOT_ITEM: root_item,
    ItemType.ROOT_BACKREF: root_ref,
    ItemType.ROOT_REF: root_ref,
    ItemType.BLOCK_GROUP_ITEM: structs.BLOCK_GROUP_ITEM.unpack,
    ItemType.FREE_SPACE_INFO: structs.FREE_SPACE_INFO.unpack,
    ItemType.DEV_EXTENT: structs.DEV_EXTENT.unpack,
    ItemType.DEV_ITEM: structs.DEV_ITEM.unpack,
    ItemType.CHUNK_ITEM: _chunk_item,
    ItemType.RAID_STRIPE: _raid_strides,
    ItemType.QGROUP_STATUS: structs.QGROUP_STATUS_ITEM.unpack,
    ItemType.QGROUP_INFO: structs.QGROUP_INFO_ITEM.unpack,
    ItemType.QGROUP_LIMIT: structs.QGROUP_LIMIT_ITEM.unpack,
    ItemType.DEV_REPLACE: structs.DEV_REPLACE_ITEM.unpack,
    ItemType.UUID_KEY_SUBVOL: subvolume_ids,
    ItemType.UUID_KEY_RECEIVED_SUBVOL: subvolume_ids,
}

_BY_KEY: Final[dict[int, Callable[[Key, Payload], Any]]] = {
    ItemType.EXTENT_ITEM: extent_item,
    ItemType.METADATA_ITEM: extent_item,
    ItemType.TREE_BLOCK_REF: keyed_ref,
    ItemType.EXTENT_DATA_REF: keyed_ref,
    ItemType.SHARED_BLOCK_REF: keyed_ref,
    ItemType.SHARED_DATA_REF: keyed_ref,
}


def decode(key: Key, payload: Payload, csum_size: int = 4) -> Any:
    """Decode the payload of any item.

    `key`: the item's key.
    `payload`: the item's bytes.
    `csum_size`: bytes of a checksum, for EXTENT_CSUM.
    Returns a record for items that hold one, a list for those that hold any number (names, entries,
    subvolume ids, checksums), and the bytes themselves for types without structure (free space
    bitmaps, Merkle trees, strings, items without payload) and for unknown types.
    Raises PayloadError: when the payload is too short for its type or inconsistent in itself.
    """
    if key.type == ItemType.EXTENT_CSUM:
        return _checksums(payload, csum_size)
    by_payload = _BY_PAYLOAD.get(key.type)
    if by_payload is not None:
        return by_payload(payload)
    if key.type in _UNDER:
        has_structure, layout = _UNDER[key.type]
        return layout.unpack(payload) if has_structure(key) else bytes(payload)
    by_key = _BY_KEY.get(key.type)
    return by_key(key, payload) if by_key is not None else bytes(payload)
