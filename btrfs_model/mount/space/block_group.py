# SPDX-License-Identifier: GPL-2.0-only
"""New chunks, where and as large as the kernel makes them (``btrfs_create_chunk()``, Linux 6.18).

A chunk is taken from the first hole of the device that is large enough, or else from the largest.
Its size is bound by three things: by its kind (10 GiB of data, 32 MiB for the chunk tree, 256 MiB
or 1 GiB of metadata), by a tenth of the device, and by 1 GiB a stripe. DUP takes two stripes.
"""

from __future__ import annotations

import errno
import os
from functools import cache

from btrfs_model.mount.log.log_tree import set_full_commit
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.roots.load import group_tree, super_ranges
from btrfs_model.native.space import GroupState, SpaceInfo
from btrfs_model.ondisk.chunk_write import CHUNK_OBJECTID, chunk_item, dev_extent
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_DUP,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_BLOCK_GROUP_RAID1,
    BTRFS_BLOCK_GROUP_SYSTEM,
    BTRFS_MAX_LEVEL,
    BTRFS_STRIPE_LEN,
)
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import (
    BLOCK_GROUP_ITEM,
    DEV_EXTENT,
    DEV_ITEM,
    DISK_KEY,
    BlockGroupItem,
    DiskKey,
)

_KINDS = BTRFS_BLOCK_GROUP_DATA | BTRFS_BLOCK_GROUP_SYSTEM | BTRFS_BLOCK_GROUP_METADATA
_MIB, _GIB = 1 << 20, 1 << 30
# BTRFS_DEVICE_RANGE_RESERVED: nothing is allocated before it
_RESERVED = 1 << 20
# Room for the items of a chunk in the chunk tree: a path of copied nodes each for the device item
# and the chunk item, twice as much for what is inserted (check_system_chunk()).
_SYSTEM_PATHS = 3
_SYS_CHUNK_ARRAY = 2048
# BTRFS_UNLINK_METADATA_UNITS
_UNLINK_ITEMS = 7
# Blocks that one small call may copy or make: the leaf of a name, that of an inode, and a split.
_CALL_BLOCKS = 4
# An entry of a directory has no more bytes in a leaf.
_ENTRY = 512
# As much is free before a call, and before what many do at once.
_OF_A_CALL = 2 * _MIB
# What frees space may take all but this part of what is kept for commits.
_KEPT_OF_RESERVE = 4


def ensure_metadata(fs: Mount, *, from_reserve: bool = False) -> SpaceInfo:
    """See that a call has room for metadata before it changes anything.

    A chunk is added when the kernel would, and where the items that wait would not fit. Where the
    device has no room for one, a commit carries out what waits and frees what the running
    transaction has pinned (COMMIT_TRANS of ``flush_space()``).

    `from_reserve`: what is kept for commits may be used, except for a part.
    Returns how full it is then.
    Raises OSError: ENOSPC when there is no more than what is kept; EROFS when a transaction was
    aborted.
    """
    info = fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA)
    if fs.committing:
        # what is kept is for this
        return info
    if fs.writer.aborted:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), fs.path)
    # nearly always there is plenty
    delayed, free = fs.delayed, info.free
    enough = _needed(info) + _OF_A_CALL + _coming(fs) <= free
    if enough and delayed.waiting_changes * fs.nodesize <= free:
        return info
    kept = 0
    grown, info = _grow(fs, info)
    if grown:
        if _copies_fit(fs, info):
            return info
    else:
        kept = _kept(fs, info, from_reserve)
        if kept + _coming(fs) + _copies(fs, info) <= info.free:
            return info
    fs.hooks.commit(fs)
    info = fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA)
    if info.free < kept:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fs.path)
    return info


def stays_enough(fs: Mount, calls: int) -> bool:
    """Whether :func:`ensure_metadata` surely does nothing before any of so many calls.

    `calls`: each copies or makes a few blocks, and puts off one entry and two inodes at most.
    """
    info, path = fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA), fs.nodesize * calls
    free = info.free - _CALL_BLOCKS * path
    needed = (info.tree_bytes + _CALL_BLOCKS * path) * 5 // 4 + _OF_A_CALL
    if needed + _coming(fs) + 2 * calls * _ENTRY > free:
        return False
    missing = fs.delayed.waiting_changes * fs.nodesize + 2 * path - free
    device = fs.raw_super.dev_item
    copies = 2 if info.flags & BTRFS_BLOCK_GROUP_DUP else 1
    left = (device.total_bytes - device.bytes_used - _RESERVED) // copies
    return not fs.committing and missing <= max(left, 0)


def grow_metadata(fs: Mount) -> bool:
    """Add a chunk for metadata where what waits may not fit (``find_free_extent()``).

    The kernel does so when it finds no room for a block, here it is a little before that. So many
    are added that the items that wait have room, where the kernel counts on reservations.

    False where one was needed and the device had no room for it.
    """
    return _grow(fs, fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA))[0]


def _grow(fs: Mount, info: SpaceInfo) -> tuple[bool, SpaceInfo]:
    """Do so; `info`: how full it is."""
    needed = _needed(info) + _OF_A_CALL
    while needed + _coming(fs) > info.free:
        try:
            allocate_chunk(fs, BTRFS_BLOCK_GROUP_METADATA)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False, info
        info = fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA)
    return True, info


def _coming(fs: Mount) -> int:
    """Return at most what the items that wait will take: their leaves may be half full."""
    return 2 * fs.delayed.nbytes


def _copies(fs: Mount, info: SpaceInfo) -> int:
    """Return at most what the next commit copies, of leaves that the transaction did not yet."""
    touched = fs.delayed.waiting_changes * fs.nodesize
    return touched if touched <= info.free else min(touched, info.total - info.free - info.dirty)


def _copies_fit(fs: Mount, info: SpaceInfo) -> bool:
    """Whether the next commit has room for its copies, be it in chunks that it adds."""
    missing = _copies(fs, info) - info.free
    if missing <= 0:
        return True
    device = fs.raw_super.dev_item
    copies = 2 if info.flags & BTRFS_BLOCK_GROUP_DUP else 1
    return missing <= (device.total_bytes - device.bytes_used - _RESERVED) // copies


def calls_that_fit(fs: Mount, info: SpaceInfo | None = None) -> int:
    """Return how many small calls surely have room for what they change, at least one.

    Without `info`, how full it is, a chunk is added first where the kernel would.
    """
    info = info or _grow(fs, fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA))[1]
    free = info.free - _kept(fs, info, from_reserve=True)
    return max(1, free // (_CALL_BLOCKS * fs.nodesize))


def global_reserve(fs: Mount, info: SpaceInfo, unlink_items: int = _UNLINK_ITEMS) -> int:
    """Return what the kernel keeps for commits (``btrfs_update_global_block_rsv()``), bytes.

    That is room for all of the trees that every commit changes, or for the items of an unlink, of
    which there are `unlink_items`.
    """
    item = 2 * BTRFS_MAX_LEVEL * fs.nodesize
    references = (1 + info.has_free_space_tree) * unlink_items
    least = (1 + info.trees + unlink_items + references) * item
    return min(max(info.tree_bytes, least), 512 * _MIB)


def _kept(fs: Mount, info: SpaceInfo, from_reserve: bool) -> int:
    """Return what must be free for a call: the reserve, and room for what references change."""
    return global_reserve(fs, info) // (_KEPT_OF_RESERVE if from_reserve else 1) + _needed(info)


def _needed(info: SpaceInfo) -> int:
    """Return what references that wait may take: all of their trees copied, and grown by a part."""
    return info.tree_bytes * 5 // 4


def _groups(fs: Mount, kind: int) -> list[GroupState]:
    return [group for group in fs.writer.groups() if group.flags & kind]


def alloc_profile(fs: Mount, kind: int) -> int:
    """Return the flags of the next chunk of a kind (``btrfs_get_alloc_profile()``).

    Those that a balance converts to, else those of the last such chunk.
    """
    groups = _groups(fs, kind)
    flags = groups[-1].flags if groups else kind
    if kind in fs.restripe:
        flags = flags & _KINDS | fs.restripe[kind]
    if flags & BTRFS_BLOCK_GROUP_RAID1:
        # takes two devices: one device gets single chunks (btrfs_reduce_alloc_profile())
        flags &= _KINDS
    return flags


def allocate_chunk(fs: Mount, kind: int) -> Chunk:
    """Make a chunk and its block group.

    `kind`: DATA 1, SYSTEM 2 or METADATA 4; the profile is that of :func:`alloc_profile`.
    Raises OSError: ENOSPC when the device has no hole for it.
    """
    if kind != BTRFS_BLOCK_GROUP_SYSTEM:
        ensure_system(fs)
    chunk = _place(fs, alloc_profile(fs, kind))
    if kind == BTRFS_BLOCK_GROUP_SYSTEM:
        _check_system_array(fs, chunk)
    _add_group(fs, chunk)
    return chunk


def ensure_system(fs: Mount) -> None:
    """Add a chunk for the chunk tree before that is full (``check_system_chunk()``)."""
    free = sum(group.free for group in _groups(fs, BTRFS_BLOCK_GROUP_SYSTEM))
    if free < _SYSTEM_PATHS * BTRFS_MAX_LEVEL * fs.nodesize:
        allocate_chunk(fs, BTRFS_BLOCK_GROUP_SYSTEM)


def remove_chunk(fs: Mount, chunk: Chunk) -> None:
    """Delete all records of a chunk whose block group is empty (``btrfs_remove_chunk()``).

    Its place on the device is free after the commit.
    """
    writer, raw = fs.writer, fs.raw_super
    devid = raw.dev_item.devid
    for stripe in chunk.stripes:
        writer.delete(ObjectId.DEV_TREE, (devid, int(ItemType.DEV_EXTENT), stripe))
        fs.freed_dev_extents.append((stripe, chunk.length))
    left = raw.dev_item.bytes_used - chunk.length * len(chunk.stripes)
    fs.raw_super = raw._replace(dev_item=raw.dev_item._replace(bytes_used=left))
    # what was found free of the device before
    fs.reservations.chunks = -1
    ensure_system(fs)
    device = fs.raw_super.dev_item
    key = (1, int(ItemType.DEV_ITEM), devid)
    writer.update(ObjectId.CHUNK_TREE, key, 0, DEV_ITEM.pack(device))
    chunk_key = (CHUNK_OBJECTID, int(ItemType.CHUNK_ITEM), chunk.logical)
    writer.delete(ObjectId.CHUNK_TREE, chunk_key)
    if chunk.type & BTRFS_BLOCK_GROUP_SYSTEM:
        _remove_from_array(fs, chunk)
    if fs.image.superblock.has_compat_ro("FREE_SPACE_TREE"):
        last = (chunk.end - 1, 255, U64_MAX)
        writer.delete_range(ObjectId.FREE_SPACE_TREE, (chunk.logical, 0, 0), last)
    group = (chunk.logical, int(ItemType.BLOCK_GROUP_ITEM), chunk.length)
    writer.delete(group_tree(fs.image.superblock), group)
    writer.remove_group(chunk.logical)
    fs.image.remove_chunk(chunk.logical)


def _remove_from_array(fs: Mount, chunk: Chunk) -> None:
    """Delete the copy of a chunk item in the superblock (``btrfs_del_sys_chunk()``)."""
    raw, device = fs.raw_super, fs.raw_super.dev_item
    size = DISK_KEY.size + len(chunk_item(chunk, device.devid, device.uuid))
    array = bytes(raw.sys_chunk_array[: raw.sys_chunk_array_size])
    head = DISK_KEY.pack(DiskKey(CHUNK_OBJECTID, int(ItemType.CHUNK_ITEM), chunk.logical))
    at = array.index(head)
    array = array[:at] + array[at + size :]
    fs.raw_super = raw._replace(sys_chunk_array=array, sys_chunk_array_size=len(array))


def _check_system_array(fs: Mount, chunk: Chunk) -> None:
    """Refuse a chunk of which the superblock cannot have a copy (``btrfs_add_system_chunk()``)."""
    device = fs.raw_super.dev_item
    size = DISK_KEY.size + len(chunk_item(chunk, device.devid, device.uuid))
    if fs.raw_super.sys_chunk_array_size + size > _SYS_CHUNK_ARRAY:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), fs.path)


# ------------------------------------------------------------------------------ place, size --


@cache
def chunk_sizes(flags: int, total: int) -> tuple[int, int]:
    """Return the largest chunk and the largest stripe of that kind on a device of `total` bytes.

    Those of ``calc_chunk_size()`` and ``init_alloc_chunk_ctl_policy_regular()``.
    """
    if flags & BTRFS_BLOCK_GROUP_DATA:
        largest = 10 * _GIB
    elif flags & BTRFS_BLOCK_GROUP_SYSTEM:
        largest = 32 * _MIB
    else:
        largest = _GIB if total > 50 * _GIB else 256 * _MIB
    return min(largest, total * 10 // 100), min(largest, _GIB)


def _place(fs: Mount, flags: int) -> Chunk:
    """Find room on the device (``gather_device_info()``, ``decide_stripe_size_regular()``)."""
    device = fs.raw_super.dev_item
    total = device_end(fs)
    most, most_stripe = chunk_sizes(flags, total)
    stripes = 2 if flags & BTRFS_BLOCK_GROUP_DUP else 1
    start, room = _find_free_dev_extent(fs, most_stripe * stripes)
    if room < BTRFS_STRIPE_LEN * stripes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fs.path)
    stripe = room // stripes
    if stripe > most:
        stripe = min(-(-most // (16 * _MIB)) * 16 * _MIB, stripe)
    stripe = min(stripe, _GIB) // BTRFS_STRIPE_LEN * BTRFS_STRIPE_LEN
    logical = max(chunk.end for chunk in fs.image.chunks)
    places = tuple(start + n * stripe for n in range(stripes))
    devids, uuids = (device.devid,) * stripes, (device.uuid,) * stripes
    return Chunk(logical, stripe, flags, places, devids, uuids=uuids)


def dev_extents(fs: Mount) -> list[tuple[int, int]]:
    """Return what chunks have of the device, ascending: start, size."""
    devid = fs.raw_super.dev_item.devid
    first, last = ((devid, ItemType.DEV_EXTENT, at) for at in (0, U64_MAX))
    return [(item.key.offset, DEV_EXTENT.unpack(item.data).length)
            for item in fs.writer.tree(ObjectId.DEV_TREE).items(first, last)]  # fmt: skip


def device_end(fs: Mount) -> int:
    """Return where chunks have to end on the device."""
    return fs.raw_super.dev_item.total_bytes if fs.device_end is None else fs.device_end


def room_for_chunks(fs: Mount, flags: int) -> int:
    """Return how many bytes chunks of that profile could have of the device."""
    at, room = _RESERVED, 0
    for start, length in [*_taken(fs), (device_end(fs), 0)]:
        room += max(0, min(start, device_end(fs)) - at)
        at = max(at, start + length)
    return room // (2 if flags & BTRFS_BLOCK_GROUP_DUP else 1)


def _taken(fs: Mount) -> list[tuple[int, int]]:
    """Return the same with what the running transaction freed, which the last commit has still."""
    return sorted([*dev_extents(fs), *fs.freed_dev_extents])


def _find_free_dev_extent(fs: Mount, wanted: int) -> tuple[int, int]:
    """Return the first hole of the device with `wanted` bytes, else the largest: start, size."""
    best = (_RESERVED, 0)
    at = _RESERVED
    for start, length in [*_taken(fs), (device_end(fs), 0)]:
        hole = min(start, device_end(fs)) - at
        if hole > best[1]:
            best = (at, min(hole, wanted))
            if hole >= wanted:
                break
        at = max(at, start + length)
    return best


# ---------------------------------------------------------------------------------- records --


def _add_group(fs: Mount, chunk: Chunk) -> None:
    """Tell the image and all trees of a chunk (``btrfs_create_pending_block_groups()``)."""
    writer = fs.writer
    # a log must not refer to a chunk that is not on disk (btrfs_make_block_group())
    set_full_commit(fs)
    fs.image.add_chunk(chunk)
    writer.add_group(chunk.logical, chunk.length, chunk.type)
    writer.occupy(super_ranges(chunk), used=False)
    item = BLOCK_GROUP_ITEM.pack(BlockGroupItem(0, CHUNK_OBJECTID, chunk.type))
    key = (chunk.logical, int(ItemType.BLOCK_GROUP_ITEM), chunk.length)
    writer.insert(group_tree(fs.image.superblock), key, item)
    _add_chunk_item(fs, chunk)
    for stripe in chunk.stripes:
        _insert_dev_extent(fs, chunk, stripe)
    if fs.image.superblock.has_compat_ro("FREE_SPACE_TREE"):
        writer.free_space_group(chunk.logical)


def _insert_dev_extent(fs: Mount, chunk: Chunk, stripe: int) -> None:
    """Say what lies at a place of the device (``insert_dev_extent()``).

    The kernel leaves the uuid in the item as the leaf has it: where another device extent made way
    for the new one that of the other, else zero.
    """
    key = (fs.raw_super.dev_item.devid, int(ItemType.DEV_EXTENT), stripe)
    fs.writer.insert(ObjectId.DEV_TREE, key, dev_extent(chunk, bytes(16)))
    tree = fs.writer.tree(ObjectId.DEV_TREE)
    made, behind = tree.first(key), tree.first((*key[:2], stripe + 1))
    assert made is not None
    if behind is not None and behind.key[:2] == key[:2] and behind.block == made.block:
        uuid = DEV_EXTENT.unpack(behind.data).chunk_tree_uuid
        fs.writer.update(ObjectId.DEV_TREE, key, 0, dev_extent(chunk, uuid))


def _add_chunk_item(fs: Mount, chunk: Chunk) -> None:
    """Bring the chunk tree up to date (``btrfs_chunk_alloc_add_chunk_item()``)."""
    raw = fs.raw_super
    grown = raw.dev_item.bytes_used + chunk.length * len(chunk.stripes)
    device = raw.dev_item._replace(bytes_used=grown)
    fs.raw_super = raw = raw._replace(dev_item=device)
    key = (1, int(ItemType.DEV_ITEM), device.devid)
    fs.writer.update(ObjectId.CHUNK_TREE, key, 0, DEV_ITEM.pack(device))
    item = chunk_item(chunk, device.devid, device.uuid)
    chunk_key = (CHUNK_OBJECTID, int(ItemType.CHUNK_ITEM), chunk.logical)
    fs.writer.insert(ObjectId.CHUNK_TREE, chunk_key, item)
    if chunk.type & BTRFS_BLOCK_GROUP_SYSTEM:
        array = raw.sys_chunk_array[: raw.sys_chunk_array_size]
        array += DISK_KEY.pack(DiskKey(*chunk_key)) + item
        fs.raw_super = raw._replace(sys_chunk_array=array, sys_chunk_array_size=len(array))
