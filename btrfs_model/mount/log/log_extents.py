# SPDX-License-Identifier: GPL-2.0-only
"""Extents of files in a log, with their checksums (Linux 6.18).

A full sync copies the items of this transaction; a fast one writes items for the ranges that
changed since the file was logged last, which a kernel knows from its extent maps.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from btrfs_model.mount.files.file_item import (
    PREALLOC,
    REGULAR,
    Extent,
    align,
    extent_key,
    extents_between,
    modified_maps,
    pack_regular,
)
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.state import log_tree_id
from btrfs_model.mount.mount import Mount
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId

_MOST_EXTENTS: Final = 32768
_EXTENT_CSUM: Final = (int(ObjectId.EXTENT_CSUM) % 2**64, int(ItemType.EXTENT_CSUM))


# ------------------------------------------------------------------------------ full sync ----


def is_copied(fs: Mount, inode: LiveInode, start: int, payload: bytes) -> bool:
    """Whether an extent item goes into the log; its checksums are logged then.

    Old extents do not, unless they came by a clone or lie beyond the end (``copy_items()``).
    """
    extent = Extent(start, file_extent(payload))
    old = extent.item.generation < fs.transid
    if old and start < inode.i_size and inode.log.last_reflink_trans < fs.transid:
        return False
    log_new_csums(fs, inode, extent)
    return True


def log_new_csums(fs: Mount, inode: LiveInode, extent: Extent) -> None:
    """Log the checksums of an extent whose item was copied, unless it is old (``copy_items()``)."""
    if extent.item.generation < fs.transid or extent.is_inline:
        return
    if extent.item.type == REGULAR and extent.disk_bytenr:
        _log_extent_csums(fs, inode, extent, extent.start, extent.end)


def log_holes(fs: Mount, inode: LiveInode) -> None:
    """Say where nothing is (``btrfs_log_holes()``), where holes have no items."""
    size = inode.i_size
    if not fs.no_holes or not size:
        return
    end = 0
    for extent in extents_between(fs, inode, 0, U64_MAX):
        if end < extent.start:
            _insert_hole(fs, inode, end, extent.start - end)
        end = align(extent.end, fs.sectorsize) if extent.is_inline else extent.end
    if end < size:
        _insert_hole(fs, inode, end, align(size - end, fs.sectorsize))


def _insert_hole(fs: Mount, inode: LiveInode, start: int, length: int) -> None:
    payload = pack_regular(fs.transid, REGULAR, 0, 0, length)
    fs.writer.insert(log_tree_id(inode.root), extent_key(inode, start), payload)


def log_prealloc(fs: Mount, inode: LiveInode) -> None:
    """Copy what is allocated beyond the end of the file (``btrfs_log_prealloc_extents()``)."""
    if not inode.item.flags & InodeFlag.PREALLOC:
        return
    size = inode.i_size
    across = [e for e in extents_between(fs, inode, max(size - 1, 0), size) if e.start < size]
    low = size
    if across and across[-1].is_prealloc and across[-1].end > size:
        low = across[-1].end
    beyond = fs.writer.tree(inode.root).items(extent_key(inode, size), extent_key(inode, U64_MAX))
    items = [(item.key, bytes(item.data), item.block) for item in beyond]
    if not items:
        return
    _drop_in_log(fs, inode, min(items[0][0].offset, align(low, fs.sectorsize)), U64_MAX)
    batch = [(key, data) for key, data, _ in items if is_copied(fs, inode, key[2], data)]
    fs.writer.insert_each(log_tree_id(inode.root), batch)


# ------------------------------------------------------------------------------ fast sync ----


def log_changed_extents(fs: Mount, inode: LiveInode, logged_before: bool) -> None:
    """Log the ranges that changed since the last time (``btrfs_log_changed_extents()``).

    Raises OSError: EFBIG when there are too many.
    """
    size = inode.i_size
    maps = modified_maps(inode)
    ranges = [(start, end) for start, end, transid in maps if transid == fs.transid]
    inode.log.modified.clear()
    inode.hole_maps = _joined(inode.hole_maps)
    pieces = [piece for low, high in ranges for piece in _pieces(fs, inode, low, high)]
    if len(pieces) > _MOST_EXTENTS:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), fs.path)
    for start, end, extent in pieces:
        if extent is not None and extent.is_prealloc and start >= size:
            continue
        _log_one_extent(fs, inode, start, end, extent, logged_before)
    log_prealloc(fs, inode)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


def _pieces(
    fs: Mount, inode: LiveInode, low: int, high: int
) -> list[tuple[int, int, Extent | None]]:
    """Return what is in a range now: start, end and extent, None for a hole."""
    pieces: list[tuple[int, int, Extent | None]] = []
    at = low
    for extent in extents_between(fs, inode, low, high):
        if isinstance(extent.item, InlineExtent) or extent.end <= at:
            continue
        if extent.start > at:
            pieces.append((at, extent.start, None))
            at = extent.start
        stop = min(extent.end, high)
        pieces.append((at, stop, extent if extent.disk_bytenr else None))
        at = stop
    if at < high:
        pieces.append((at, high, None))
    return pieces


def _log_one_extent(
    fs: Mount, inode: LiveInode, start: int, end: int, extent: Extent | None,
    logged_before: bool,
) -> None:  # fmt: skip
    """``log_one_extent()``."""
    if extent is None:
        payload = pack_regular(fs.transid, REGULAR, 0, 0, end - start)
    else:
        item = extent.regular
        if not extent.is_prealloc:
            _log_extent_csums(fs, inode, extent, start, end)
        payload = pack_regular(
            fs.transid, PREALLOC if extent.is_prealloc else REGULAR, item.disk_bytenr,
            item.disk_num_bytes, end - start, ram_bytes=item.ram_bytes,
            offset=item.offset + start - extent.start, compression=item.compression,
        )  # fmt: skip
    if logged_before:
        _drop_in_log(fs, inode, start, end)
    fs.writer.insert(log_tree_id(inode.root), extent_key(inode, start), payload)


def _drop_in_log(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """Make a range of the log free of extents (``btrfs_drop_extents()`` on a log)."""
    log = log_tree_id(inode.root)
    tree = fs.writer.tree(log)
    first = tree.last(extent_key(inode, start))
    low = first.key if first is not None and first.key[:2] == extent_key(inode, 0)[:2] else None
    found = [
        Extent(item.key.offset, file_extent(item.data))
        for item in tree.items(low or extent_key(inode, start), extent_key(inode, end - 1))
    ]
    for extent in found:
        whole_end = align(extent.end, fs.sectorsize) if extent.is_inline else extent.end
        if whole_end <= start:
            continue
        fs.writer.delete(log, extent_key(inode, extent.start))
        if extent.start < start and not extent.is_inline:
            _insert_part(fs, inode, extent, extent.start, start)
        if extent.end > end and not extent.is_inline:
            _insert_part(fs, inode, extent, end, extent.end)


def _insert_part(fs: Mount, inode: LiveInode, extent: Extent, start: int, end: int) -> None:
    item = extent.regular
    payload = pack_regular(
        item.generation, item.type, item.disk_bytenr, item.disk_num_bytes, end - start,
        ram_bytes=item.ram_bytes, offset=item.offset + start - extent.start,
        compression=item.compression,
    )  # fmt: skip
    fs.writer.insert(log_tree_id(inode.root), extent_key(inode, start), payload)


# ------------------------------------------------------------------------------ checksums ----


def _log_extent_csums(fs: Mount, inode: LiveInode, extent: Extent, start: int, end: int) -> None:
    """Copy the checksums of a part of an extent, of a compressed one all (``log_csums()``)."""
    if inode.item.flags & InodeFlag.NODATASUM:
        return
    item = extent.regular
    low = item.disk_bytenr
    high = low + item.disk_num_bytes
    if not item.compression:
        low += item.offset + start - extent.start
        high = low + end - start
    for bytenr, sums in _sums_between(fs, low, high):
        if inode.log.last_reflink_trans >= fs.transid:
            fs.writer.delete_csums(
                bytenr, len(sums) // fs.csum_size * fs.sectorsize, tree=log_tree_id(inode.root)
            )
        fs.writer.insert_csums(
            bytenr, sums, len(sums) // fs.csum_size, tree=log_tree_id(inode.root)
        )


def _sums_between(fs: Mount, low: int, high: int) -> list[tuple[int, bytes]]:
    """Checksums of [low, high): address and sums of each item that has some of them."""
    tree, size, sector = fs.writer.tree(int(ObjectId.CSUM_TREE)), fs.csum_size, fs.sectorsize
    before = tree.last((*_EXTENT_CSUM, low))
    first = before.key.offset if before and before.key[:2] == _EXTENT_CSUM else low
    found = []
    for item in tree.items((*_EXTENT_CSUM, first), (*_EXTENT_CSUM, high - 1)):
        start = max(low, item.key.offset)
        end = min(high, item.key.offset + len(item.data) // size * sector)
        if start < end:
            at = (start - item.key.offset) // sector * size
            found.append((start, bytes(item.data[at : at + (end - start) // sector * size])))
    return found
