# SPDX-License-Identifier: GPL-2.0-only
"""The free space of a block group as a kernel has it in memory (``struct btrfs_free_space_ctl``).

Ranges are entries of their own, up to some hundred; then small ones become bits of bitmaps, one for
128 MiB. Which of the two a range is shows in one place: who takes away what is not free gets an
error from a bitmap, and none from a gap between entries (``btrfs_remove_free_space()``, Linux
6.18).
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.roots.load import super_ranges
from btrfs_model.native.space import GroupState
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.patches import Patch

_BITS: Final = 8 * 4096
"""Bits of a bitmap, a page of 4 KiB (``BITS_PER_BITMAP``)."""
_MOST_BYTES: Final = 64 << 10
"""Bytes of memory for 1 GiB (``MAX_CACHE_BYTES_PER_GIG``)."""
_ALWAYS_EXTENT: Final = 1 << 20
"""As large a range is never put into a bitmap (``FORCE_EXTENT_THRESHOLD``)."""
_SMALL: Final = 8
"""Ranges of no more sectors have a third of the entries."""
_ENTRY: Final = (80, 104)
"""Bytes of an entry without and with a place in the tree by size (``struct btrfs_free_space``)."""
_GIB: Final = 1 << 30

_Bits = npt.NDArray[np.bool_]


class _Place(NamedTuple):
    """Where an entry is: an extent stands before a bitmap of the same offset."""

    offset: int
    is_bitmap: bool


class FreeSpaceCtl:
    """The free space of a block group.

    `start`, `length`: of the group.
    `unit`: bytes of a sector.
    `entry_size`: bytes of an entry in the memory of the kernel (``struct btrfs_free_space``).
    `ranges`: what is free, ascending: offset and bytes.
    """

    def __init__(
        self, start: int, length: int, unit: int, entry_size: int, ranges: Iterable[tuple[int, int]]
    ) -> None:
        self._start, self._length, self._unit = start, length, unit
        self._entry_size = entry_size
        self._order: list[_Place] = []
        self._extents: dict[int, int] = {}
        self._bitmaps: dict[int, _Bits] = {}
        for offset, size in ranges:
            self._add(offset, size)

    # --------------------------------------------------------------------------- entries --

    @property
    def bitmaps(self) -> list[int]:
        """Offsets of the bitmaps, ascending."""
        return sorted(self._bitmaps)

    @property
    def _span(self) -> int:
        return _BITS * self._unit

    def _bitmap_of(self, offset: int) -> int:
        """``offset_to_bitmap()``."""
        return offset - (offset - self._start) % self._span

    def _link(self, offset: int, size: int) -> None:
        self._extents[offset] = size
        insort(self._order, _Place(offset, is_bitmap=False))

    def _unlink(self, place: _Place) -> int:
        """Take an extent out; returns how many bytes it had."""
        self._order.pop(bisect_left(self._order, place))
        return self._extents.pop(place.offset)

    def _new_bitmap(self, offset: int) -> None:
        self._bitmaps[offset] = np.zeros(_BITS, np.bool_)
        insort(self._order, _Place(offset, is_bitmap=True))

    def _free_if_empty(self, bitmap: int) -> None:
        if not self._bitmaps[bitmap].any():
            del self._bitmaps[bitmap]
            self._order.pop(bisect_left(self._order, _Place(bitmap, is_bitmap=True)))

    def _before(self, place: _Place) -> _Place | None:
        at = bisect_left(self._order, place)
        return self._order[at - 1] if at else None

    def _behind(self, place: _Place) -> _Place | None:
        at = bisect_right(self._order, place)
        return self._order[at] if at < len(self._order) else None

    def _covers(self, place: _Place, offset: int) -> bool:
        size = self._span if place.is_bitmap else self._extents[place.offset]
        return place.offset + size > offset

    def _search(self, offset: int) -> _Place | None:
        """Find the entry that may hold an offset (``tree_search_offset()``)."""
        place = self._before(_Place(offset + 1, is_bitmap=False))
        if place is None:
            return None
        if place.is_bitmap:
            before = self._before(place)
            if before and not before.is_bitmap and self._covers(before, offset):
                return before
        return place if self._covers(place, offset) else None

    # ------------------------------------------------------------------------------- adding --

    def _add(self, offset: int, size: int) -> None:
        """``__btrfs_add_free_space()``."""
        offset, size, merged = self._merge(offset, size)
        if not merged and self._uses_bitmap(size):
            while size:
                bitmap = self._bitmap_of(offset)
                if bitmap not in self._bitmaps:
                    self._new_bitmap(bitmap)
                count = min(size, bitmap + self._span - offset)
                self._bits(bitmap, offset, count)[:] = True
                offset, size = offset + count, size - count
            return
        offset, size = self._steal(offset, size)
        self._link(offset, size)

    def _merge(self, offset: int, size: int) -> tuple[int, int, bool]:
        """Join neighbours (``try_merge_free_space()``); whether there was one."""
        right = self._search(offset + size)
        left = self._before(right) if right else None
        if right is None:
            left = self._search(offset - 1)
        merged = False
        if right and not right.is_bitmap:
            size += self._unlink(right)
            merged = True
        if left and not left.is_bitmap and left.offset + self._extents[left.offset] == offset:
            size += self._unlink(left)
            offset, merged = left.offset, True
        return offset, size, merged

    def _uses_bitmap(self, size: int) -> bool:
        """``use_bitmap()``."""
        if size >= _ALWAYS_EXTENT or self._span >> 1 > self._length:
            return False
        count, most = len(self._extents), self._threshold()
        if size <= _SMALL * self._unit:
            return count >= most or count * 3 > most
        return count >= most

    def _threshold(self) -> int:
        """Return how many extents there may be (``recalculate_thresholds()``)."""
        most = _MOST_BYTES * max(1, self._length // _GIB)
        left = most - len(self._bitmaps) * self._unit
        return min(left, most >> 1) // self._entry_size

    def _steal(self, offset: int, size: int) -> tuple[int, int]:
        """Take what a bitmap has on both sides of a range (``steal_from_bitmap()``)."""
        end = offset + size
        bitmap = self._bitmap_of(end)
        if bitmap in self._bitmaps:
            size += self._take(bitmap, end, bitmap + self._span - end)
        bitmap = self._bitmap_of(offset - 1)
        if offset and bitmap in self._bitmaps:
            bits = self._bits(bitmap, bitmap, offset - bitmap)
            gaps = np.flatnonzero(~bits)
            first = bitmap + (int(gaps[-1]) + 1 if gaps.size else 0) * self._unit
            if first < offset:
                self._take(bitmap, first, offset - first)
                size += offset - first
                offset = first
        return offset, size

    # ----------------------------------------------------------------------------- bitmaps --

    def _bits(self, bitmap: int, offset: int, size: int) -> _Bits:
        first = (offset - bitmap) // self._unit
        return self._bitmaps[bitmap][first : first + size // self._unit]

    def _run(self, bitmap: int, offset: int, most: int) -> int:
        """Return how many bytes from an offset on a bitmap has, at most."""
        bits = self._bits(bitmap, offset, min(most, bitmap + self._span - offset))
        gaps = np.flatnonzero(~bits)
        return int(gaps[0] if gaps.size else bits.size) * self._unit

    def _take(self, bitmap: int, offset: int, most: int) -> int:
        """Clear the bits from an offset on; returns how many bytes they were."""
        size = self._run(bitmap, offset, most)
        self._bits(bitmap, offset, size)[:] = False
        self._free_if_empty(bitmap)
        return size

    # ---------------------------------------------------------------------------- removing --

    def remove(self, offset: int, size: int) -> None:
        """Take a range away, whether it is free or not (``btrfs_remove_free_space()``).

        Raises OSError: EINVAL where a bitmap does not have it (``remove_from_bitmap()``).
        """
        while size:
            place = self._search(offset)
            if place is None:
                bitmap = self._bitmap_of(offset)
                if bitmap not in self._bitmaps:
                    return
                place = _Place(bitmap, is_bitmap=True)
            if place.is_bitmap:
                taken = self._remove_bits(place, offset, size)
            else:
                taken = self._remove_extent(place, offset, size)
            offset, size = offset + taken, size - taken

    def _remove_extent(self, place: _Place, offset: int, size: int) -> int:
        end = place.offset + self._unlink(place)
        taken = min(size, end - offset)
        if place.offset < offset:
            self._link(place.offset, offset - place.offset)
            if offset + taken < end:
                self._add(offset + taken, end - offset - taken)
        elif offset + taken < end:
            self._link(offset + taken, end - offset - taken)
        return taken

    def _remove_bits(self, place: _Place, offset: int, size: int) -> int:
        behind = self._behind(place)
        taken = self._take(place.offset, offset, size)
        if not taken or (taken < size and behind is None):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return taken


def free_space_of(fs: Mount, group: GroupState) -> FreeSpaceCtl:
    """Read the free space of a block group, as the first look at it after a mount does.

    (``btrfs_cache_block_group()``; the cache of ``space_cache=v1`` is not asked.)
    """
    end = group.start + group.length
    chunk = next(chunk for chunk in fs.image.chunks if chunk.logical == group.start)
    taken = [(start, start + size) for start, size in super_ranges(chunk)]
    tree = fs.writer.tree(ObjectId.EXTENT_TREE)
    for item in tree.items((group.start, 0, 0), (end, 0, 0)):
        if item.key.type == ItemType.EXTENT_ITEM:
            taken.append((item.key.objectid, item.key.objectid + item.key.offset))
        elif item.key.type == ItemType.METADATA_ITEM:
            taken.append((item.key.objectid, item.key.objectid + fs.nodesize))
    ranges, at = [], group.start
    for low, high in [*sorted(taken), (end, end)]:
        if low > at:
            ranges.append((at, low - at))
        at = max(at, high)
    by_size = Patch.FREE_SPACE_BY_SIZE in fs.behaviour
    return FreeSpaceCtl(group.start, group.length, fs.sectorsize, _ENTRY[by_size], ranges)
