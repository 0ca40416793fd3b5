# SPDX-License-Identifier: GPL-2.0-only
"""fallocate(2): preallocate, punch holes, zero (``btrfs_fallocate()``, Linux 6.18)."""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from typing import Final, NamedTuple

from btrfs_model.mount.files.file_item import (
    INLINE,
    PREALLOC,
    REGULAR,
    Extent,
    add_hole_map,
    align,
    drop_extents,
    extent_key,
    extents_between,
    file_ranges,
    find_extent,
    forget_modified,
    insert_hole,
    insert_regular,
    look_up_hole,
    note_modified,
    pack_regular,
)
from btrfs_model.mount.files.pages import MAX_SIZE
from btrfs_model.mount.files.write import cont_expand, set_i_size, touch, truncate_block
from btrfs_model.mount.files.writeback import writeback
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.data import ensure_data, reserve_data
from btrfs_model.mount.space.quota_reserve import book, reserve
from btrfs_model.mount.space.space_info import reserve_items
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.keys import U64_MAX
from btrfs_model.patches import Patch

_MAX_PREALLOC: Final = 256 << 20
# two extents that are split and the inode (insert_prealloc_file_extent())
_ITEMS: Final = 3


class _Map(NamedTuple):
    """What ``btrfs_get_extent()`` says of a place: an extent map.

    Holes without items are as large as they are: a kernel has their maps in memory from the calls
    that made them. Right after a mount it sees no further than it is asked for, and nowhere behind
    the end of a file, where its answer stays in memory.
    """

    start: int
    end: int
    extent: Extent | None

    @property
    def is_hole(self) -> bool:
        if self.extent is None:
            return True
        return self.extent.item.type != INLINE and not self.extent.disk_bytenr

    @property
    def is_prealloc(self) -> bool:
        return self.extent is not None and self.extent.is_prealloc


def _get_extent(fs: Mount, inode: LiveInode, start: int, length: int) -> _Map:
    far = max(start + length, align(inode.pages.i_size, fs.sectorsize))
    first = 0
    maps = inode.hole_maps
    at = bisect_right(maps, (start, U64_MAX))
    if at < len(maps):
        far = min(far, maps[at][0])
    for begin, end in reversed(maps[max(0, at - 2) : at]):
        if end <= start:
            first = end
            break
        if (stop := _end_of_holes(fs, inode, start, end)) > start:
            return _Map(begin, stop, None)
    low, high, extent = next(file_ranges(fs, inode, start, far))
    if extent is None:
        if start >= align(inode.pages.i_size, fs.sectorsize):
            low, high = look_up_hole(inode, low, high)
        return _Map(low, high, None)
    found = _Map(extent.start, align(extent.end, fs.sectorsize), extent)
    if found.is_hole:
        # of its item no more than what no other map has
        return found._replace(start=max(found.start, first), end=min(found.end, far))
    return found


def _end_of_holes(fs: Mount, inode: LiveInode, start: int, end: int) -> int:
    """Return how far there are holes alone, with items or without."""
    stop = start
    for low, high, extent in file_ranges(fs, inode, start, end):
        if not _Map(low, high, extent).is_hole:
            break
        stop = high
    return stop


def _check_range(fs: Mount, offset: int, length: int) -> None:
    """``vfs_fallocate()``."""
    if offset < 0 or length <= 0:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), fs.path)
    if offset + length > MAX_SIZE:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), fs.path)


# --------------------------------------------------------------------------- preallocate ------


def fallocate(
    fs: Mount, inode: LiveInode, offset: int, length: int, *, keep_size: bool = False
) -> None:
    """Preallocate what is not allocated of a range.

    `offset`, `length`: bytes.
    `keep_size`: FALLOC_FL_KEEP_SIZE: the file's size stays.
    Raises OSError: EINVAL or EFBIG for an impossible range, ENOSPC when there is no room.
    """
    _check_range(fs, offset, length)
    start, end = _prepare(fs, inode, offset, length)
    wanted: list[tuple[int, int]] = []
    size = inode.pages.i_size
    for low, high, extent in file_ranges(fs, inode, start, end):
        hole = _Map(low, high, extent).is_hole
        if hole or (low >= size and not (extent and extent.is_prealloc)):
            if wanted and wanted[-1][1] == low:
                low = wanted.pop()[0]
            wanted.append((low, high))
    ensure_data(fs, sum(high - low for low, high in wanted))
    hint = 0
    for low, high in wanted:
        hint = _prealloc_file_range(fs, inode, low, high, offset + length, keep_size, hint)
    _update_isize(fs, inode, offset + length, keep_size)


def _prepare(fs: Mount, inode: LiveInode, offset: int, length: int) -> tuple[int, int]:
    """Do what comes first for every mode but holes; returns the range in whole blocks."""
    blocksize = fs.sectorsize
    start, end = offset // blocksize * blocksize, align(offset + length, blocksize)
    size = inode.pages.i_size
    touch(fs, inode)
    mark_inode_dirty(fs, inode)
    if start > size:
        cont_expand(fs, inode, size, start)
    elif offset + length > size:
        truncate_block(fs, inode, size)
    writeback(fs, inode, start, end)
    return start, end


def _prealloc_file_range(
    fs: Mount, inode: LiveInode, start: int, end: int, size: int, keep_size: bool, hint: int
) -> int:
    """``__btrfs_prealloc_file_range()``; returns the hint for what comes next."""
    largest = _MAX_PREALLOC
    reserve(fs, inode.root, end - start)
    book(fs, inode.root, end - start)
    ensure_data(fs, end - start)
    while start < end:
        wanted = min(end - start, largest)
        bytenr, length = reserve_data(fs, wanted, fs.sectorsize, hint)
        largest = length
        reserve_items(fs, _ITEMS)
        payload = pack_regular(fs.transid, PREALLOC, bytenr, length, length)
        insert_regular(fs, inode, start, payload, new=True)
        start += length
        hint = bytenr + length
        inode.item.sequence += 1
        inode.item.ctime = fs.now()
        inode.item.flags |= InodeFlag.PREALLOC
        if not keep_size and inode.pages.i_size < min(start, size):
            set_i_size(fs, inode, min(start, size))
        mark_inode_dirty(fs, inode)
    return hint


def _update_isize(fs: Mount, inode: LiveInode, end: int, keep_size: bool) -> None:
    """``btrfs_fallocate_update_isize()``."""
    if keep_size or end <= inode.pages.i_size:
        return
    inode.item.ctime = fs.now()
    set_i_size(fs, inode, end)
    mark_inode_dirty(fs, inode)


# ---------------------------------------------------------------------------- punch a hole ----


def punch_hole(fs: Mount, inode: LiveInode, offset: int, length: int) -> None:
    """Make a hole: whole blocks are dropped, parts of blocks zeroed.

    ``btrfs_punch_hole()`` (Linux 6.18).
    """
    _check_range(fs, offset, length)
    writeback(fs, inode, offset, offset + length)
    blocksize = fs.sectorsize
    size_end = align(inode.pages.i_size, blocksize)
    original = offset
    is_hole, offset, length = _skip_hole(fs, inode, offset, length)
    if is_hole and not length:
        return
    touch(fs, inode)
    low = align(offset, blocksize)
    high = (offset + length) // blocksize * blocksize
    one_block = offset // blocksize == (offset + length - 1) // blocksize
    if one_block and length < blocksize:
        if offset < size_end:
            truncate_block(fs, inode, offset, length)
        mark_inode_dirty(fs, inode)
        return
    if offset < size_end:
        truncate_block(fs, inode, offset)
    if offset == original:
        is_hole, low, length = _skip_hole(fs, inode, low, offset + length - low)
        if is_hole and not length:
            mark_inode_dirty(fs, inode)
            return
        offset = low
    tail = offset + length - high
    if tail > 0:
        is_hole, tail_start, tail = _skip_hole(fs, inode, high, tail)
        if not is_hole and tail_start + tail < size_end:
            truncate_block(fs, inode, tail_start + tail, front=True)
    if low < high:
        replace_with_hole(fs, inode, low, high)
    mark_inode_dirty(fs, inode)


def _skip_hole(fs: Mount, inode: LiveInode, start: int, length: int) -> tuple[bool, int, int]:
    """Say whether a hole is there, and what is left of the range (``find_first_non_hole()``)."""
    if length <= 0:
        return True, start, 0
    blocksize = fs.sectorsize
    at = start // blocksize * blocksize
    found = _get_extent(fs, inode, at, align(length, blocksize))
    if not found.is_hole:
        return False, start, length
    end = start + length
    return True, found.end, max(end - found.end, 0)


def replace_with_hole(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """Drop whole blocks, and put a hole item there unless the filesystem does without.

    ``btrfs_replace_file_extents()`` without an extent, and ``fill_holes()``.
    """
    inode.item.nbytes -= drop_extents(fs, inode, start, end)
    if start >= align(inode.pages.i_size, fs.sectorsize):
        forget_modified(inode, start, end)
        return
    note_modified(fs, inode, start, end)
    add_hole_map(inode, start, end)
    if fs.no_holes:
        return
    before = extents_between(fs, inode, start - 1, start)[:1] if start else []
    behind = find_extent(fs, inode, end)
    if behind is not None and not _Map(0, 0, behind).is_hole:
        behind = None
    if before and before[0].end == start and _Map(0, 0, before[0]).is_hole:
        if behind is not None and Patch.MERGE_HOLES in fs.behaviour:
            fs.writer.delete(inode.root, extent_key(inode, end))
            end = behind.end
        _resize_hole(fs, inode, before[0].start, end - before[0].start)
        return
    if behind is not None:
        fs.writer.set_key(inode.root, extent_key(inode, end), extent_key(inode, start))
        _resize_hole(fs, inode, start, behind.end - start)
        return
    insert_hole(fs, inode, start, end - start)


def _resize_hole(fs: Mount, inode: LiveInode, start: int, length: int) -> None:
    payload = pack_regular(fs.transid, REGULAR, 0, 0, length)
    fs.writer.replace(inode.root, extent_key(inode, start), payload)


# --------------------------------------------------------------------------------- zero -------


def zero_range(
    fs: Mount, inode: LiveInode, offset: int, length: int, *, keep_size: bool = False
) -> None:
    """Make a range read as zeros: preallocated blocks, zeroed parts of blocks.

    ``btrfs_zero_range()`` (Linux 6.18).
    """
    _check_range(fs, offset, length)
    start, stop = _prepare(fs, inode, offset, length)
    blocksize, end = fs.sectorsize, offset + length
    hint = 0
    first = _get_extent(fs, inode, start, stop - start)
    if first.start <= start and first.is_prealloc:
        if first.end >= end:
            _update_isize(fs, inode, end, keep_size)
            return
        start = offset = first.end
        assert first.extent is not None
        hint = first.extent.disk_bytenr + first.extent.regular.disk_num_bytes
    if offset // blocksize == (end - 1) // blocksize:
        block = _get_extent(fs, inode, start, blocksize)
        if block.is_prealloc:
            _update_isize(fs, inode, end, keep_size)
            return
        if end - offset < blocksize and not block.is_hole:
            truncate_block(fs, inode, offset, end - offset)
            _update_isize(fs, inode, end, keep_size)
            return
        start = offset // blocksize * blocksize
        stop = start + blocksize
    else:
        start, stop = _zero_boundaries(fs, inode, offset, end)
    if start < stop:
        writeback(fs, inode, start, stop)
        hint = _prealloc_file_range(fs, inode, start, stop, end, keep_size, hint)
    _update_isize(fs, inode, end, keep_size)


def _zero_boundaries(fs: Mount, inode: LiveInode, offset: int, end: int) -> tuple[int, int]:
    """Zero the parts of blocks at both ends; where they are holes, they join the allocation."""
    blocksize = fs.sectorsize
    start, stop = align(offset, blocksize), end // blocksize * blocksize
    if offset % blocksize:
        found = _get_extent(fs, inode, start - blocksize, blocksize)
        if found.is_hole:
            start -= blocksize
        elif not found.is_prealloc:
            truncate_block(fs, inode, offset)
    if end % blocksize:
        found = _get_extent(fs, inode, stop, blocksize)
        if found.is_hole:
            stop += blocksize
        elif not found.is_prealloc:
            truncate_block(fs, inode, end, front=True)
    return start, stop
