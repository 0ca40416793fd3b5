# SPDX-License-Identifier: GPL-2.0-only
"""Many extents of a size by one call of C (``native/bulk/file.c``): of one file, or one of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.files.bytes import punch, store_bytes, zero_sums
from btrfs_model.mount.files.file_item import extent_key
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.native.bulk import file_extents
from btrfs_model.native.data import sector_sums
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    FileExtentType,
    InodeFlag,
)
from btrfs_model.ondisk.structs import FILE_EXTENT_ITEM
from btrfs_model.patches import Patch

U64 = npt.NDArray[np.uint64]


class Block(NamedTuple):
    """What each extent is like.

    Attributes
    ----------
    length, disk_num_bytes : int
        In the file, and on disk; whole sectors.
    compression : int
        ``enum btrfs_compression``.
    stored : bytes or None
        What is stored; None: nothing.
    """

    length: int
    disk_num_bytes: int
    compression: int
    stored: bytes | None


def fills_holes(fs: Mount, inode: LiveInode, places: U64, length: int) -> bool:
    """Whether no place touches another one, or an extent that the file has."""
    ordered = np.sort(places)
    if (np.diff(ordered) < np.uint64(length)).any():
        return False
    starts, _, ends = _known(fs, inode, int(ordered[0]), int(ordered[-1]) + length)
    behind = np.searchsorted(ends, ordered, "right")
    inside = behind < len(starts)
    return not (starts[behind[inside]] < ordered[inside] + np.uint64(length)).any()


def write_run(
    fs: Mount, inode: LiveInode, places: U64, block: Block, *, together: bool = False
) -> int:
    """Allocate, insert, reference, checksum and store extents in holes of a file.

    `inode`: its ``nbytes`` is changed; size and times are the caller's.
    `places`: offsets in the file, in the order in which they are written.
    `block`: what each of them is.
    `together`: they are all begun before the first is finished, in the order of the machine.
    Returns how many were written: those that surely find room without a new chunk
    (``btrfs_check_data_free_space()``).
    """
    free = sum(group.free for group in fs.writer.groups() if group.flags & BTRFS_BLOCK_GROUP_DATA)
    safe = (free - block.length) // block.disk_num_bytes + 1
    places = places[: max(min(safe, len(places)), 0)]
    if not len(places):
        return 0
    addresses = np.zeros(len(places), np.uint64)
    order = fs.machine.finish_order if together else None
    finish = order(len(places)) if order else None
    written = _call(fs, inode, places, block, addresses, finish)
    _store(fs, addresses[:written], block)
    inode.item.nbytes += written * block.length
    # note_modified() for each
    trans, length = fs.transid, block.length
    inode.log.modified += [(trans, place, place + length) for place in places[:written].tolist()]
    return written


def pass_time(fs: Mount, calls: int) -> None:
    """Let the clock go on as so many calls of ``fs.now()`` do."""
    if calls:
        before = fs.now()
        fs.clock += (calls - 1) * (fs.clock - before)


def _known(fs: Mount, inode: LiveInode, low: int, high: int) -> tuple[U64, U64, U64]:
    """Extents of a file from the one before `low` to the one behind `high`, and the very first.

    Returns starts, addresses and ends. Addresses of holes and inline extents are 0; ends in
    whole sectors.
    """
    tree = fs.writer.tree(inode.root)
    before = tree.last(extent_key(inode, low))
    behind = tree.first(extent_key(inode, high))
    start = before.key.offset if before and _is_extent(inode, before.key) else low
    end = behind.key.offset if behind and _is_extent(inode, behind.key) else high
    columns = tree.scan(extent_key(inode, start), extent_key(inode, end))
    first = tree.first(extent_key(inode, 0))
    if first and _is_extent(inode, first.key) and first.key.offset < start:
        head = tree.scan(first.key, first.key)
        columns = {name: np.concatenate([head[name], columns[name]]) for name in columns}
    return _columns_of(fs, columns)


def _is_extent(inode: LiveInode, key: Any) -> bool:
    return bool(key[:2] == extent_key(inode, 0)[:2])


def _columns_of(fs: Mount, columns: dict[str, npt.NDArray[Any]]) -> tuple[U64, U64, U64]:
    starts = columns["offset"].astype(np.uint64)
    regular = columns["size"] == FILE_EXTENT_ITEM.size
    memory = np.frombuffer(fs.image.view, np.uint8)
    at = columns["position"][regular].astype(np.int64)
    raw = memory[at[:, None] + np.arange(FILE_EXTENT_ITEM.size)]
    items = np.ascontiguousarray(raw).view(FILE_EXTENT_ITEM.dtype).reshape(-1)
    inline = items["type"] == FileExtentType.INLINE
    addresses = np.zeros(len(starts), np.uint64)
    addresses[regular] = np.where(inline, 0, items["disk_bytenr"])
    # inline data never take more than the first sector
    lengths = np.full(len(starts), fs.sectorsize, np.uint64)
    lengths[regular] = np.where(inline, fs.sectorsize, items["num_bytes"])
    return starts, addresses, starts + lengths


def _call(
    fs: Mount,
    inode: LiveInode,
    places: U64,
    block: Block,
    addresses: U64,
    finish: npt.NDArray[np.uint32] | None,
) -> int:
    low, high = int(places.min()), int(places.max()) + block.length
    known_offsets, known_bytenr, _ = _known(fs, inode, low, high)
    together = np.concatenate([known_offsets, places])
    order = np.argsort(together, kind="stable").astype(np.uint32)
    sums = _sums(fs, inode, block)
    chosen = {} if finish is None else {"finish": finish}
    in_class = Patch.ALLOC_SIZE_CLASS in fs.behaviour
    return file_extents(
        fs.writer, addresses,
        tree=inode.root, root=inode.root, ino=inode.ino, length=block.length,
        disk_num_bytes=block.disk_num_bytes, compression=block.compression,
        offsets=places, count=len(places), known_offsets=known_offsets,
        known_bytenr=known_bytenr, known=len(known_offsets), order=order, in_class=in_class,
        **({"sums": sums} if sums else {}), **chosen,
    )  # fmt: skip


def _sums(fs: Mount, inode: LiveInode, block: Block) -> bytes:
    if inode.item.flags & InodeFlag.NODATASUM:
        return b""
    if block.stored is None:
        return zero_sums(fs, block.disk_num_bytes // fs.sectorsize)
    return sector_sums(fs.csum_type, block.stored, fs.sectorsize).tobytes()


def _store(fs: Mount, addresses: U64, block: Block) -> None:
    if block.stored is not None:
        for address in addresses.tolist():
            store_bytes(fs, address, block.stored)
        return
    # neighbours on disk go at once
    ordered = np.sort(addresses)
    breaks = np.flatnonzero(np.diff(ordered) != np.uint64(block.disk_num_bytes)) + 1
    for run in np.split(ordered, breaks):
        if len(run):
            punch(fs, int(run[0]), len(run) * block.disk_num_bytes)
