# SPDX-License-Identifier: GPL-2.0-only
"""The pages of a file that writeback has not seen yet: what the page cache is to a kernel.

A write makes blocks *dirty* (``EXTENT_DELALLOC``): space for them is reserved, but where they go is
decided when they are written back, a contiguous range at a time. Clean pages are not kept: their
data are in the image.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from btrfs_model.mount.files.elided import Elided, Repeated, Told
from btrfs_model.native.bulk import Pieces

BLOCKSIZE: Final = 4096
"""Bytes of a page and of a sector: other filesystems are not mounted (:func:`.check_writable`)."""

MAX_SIZE: Final = 2**63 - 1
"""No file is larger (``MAX_LFS_FILESIZE``)."""

MAX_EXTENT_SIZE: Final = 128 << 20
"""``BTRFS_MAX_EXTENT_SIZE``: no regular extent is larger."""


class DirtyRange(NamedTuple):
    """Dirty bytes [start, end) of a file, whole blocks; held in pages, or told by a pattern.

    Attributes
    ----------
    start, end : int
        Where.
    pattern : bytes or None
        Of data that are told by it; None: the pages hold them.
    stored : bool
        Whether a pattern is written to disk.
    """

    start: int
    end: int
    pattern: bytes | None
    stored: bool = False

    @property
    def told(self) -> Told | None:
        """The data, where a pattern tells them."""
        if self.pattern is None:
            return None
        return (Repeated if self.stored else Elided)(self.end - self.start, self.pattern)


class DirtyBytes:
    """How much waits for writeback in a filesystem (``bytes_may_use`` of its data).

    Attributes
    ----------
    count : int
        Bytes, whole blocks.
    of_root : dict
        The same by subvolume, with the number of dirty ranges; neighbours are one.
    touched : set
        Files of which other pages became dirty or clean since somebody emptied it: subvolume and
        inode number.
    """

    __slots__ = ("count", "of_root", "touched")

    def __init__(self) -> None:
        self.count = 0
        self.of_root: dict[int, tuple[int, int]] = {}
        self.touched: set[tuple[int, int]] = set()

    def change(self, root: int, size: int, ranges: int) -> None:
        """Count bytes and ranges of a subvolume that became dirty, or clean (negative)."""
        self.count += size
        bytes_before, ranges_before = self.of_root.get(root, (0, 0))
        self.of_root[root] = (bytes_before + size, ranges_before + ranges)


class Whole(NamedTuple):
    """Data of a file from its first byte on, which lie in pieces somewhere else in memory.

    Attributes
    ----------
    pieces : Pieces
        Where.
    first, many : int
        Which of the pieces.
    size : int
        How many bytes they have together.
    """

    pieces: Pieces
    first: int
    many: int
    size: int

    def join(self) -> bytes:
        """Return the data in one piece."""
        return self.pieces.join(self.first, self.many)

    def part(self, start: int, end: int) -> Whole:
        """Return bytes [start, end) of the data, which are not copied."""
        rows = self.pieces.rows[self.first : self.first + self.many]
        ends = rows["size"].cumsum()
        low, high = int(ends.searchsorted(start, "right")), int(ends.searchsorted(end)) + 1
        cut, before = rows[low:high].copy(), start - (int(ends[low - 1]) if low else 0)
        cut["size"][-1] -= int(ends[high - 1]) - end
        cut["at"][0] += before
        cut["size"][0] -= before
        return Whole(Pieces(cut, self.pieces.memory), 0, len(cut), end - start)


def _together(wholes: list[Whole]) -> Whole:
    """Return data that follow each other as one."""
    rows = [whole.pieces.rows[whole.first : whole.first + whole.many] for whole in wholes]
    pieces = Pieces(np.concatenate(rows), [whole.pieces for whole in wholes])
    return Whole(pieces, 0, len(pieces.rows), sum(whole.size for whole in wholes))


class FilePages:
    """Dirty pages of one inode, and the size that the file has with them.

    Parameters
    ----------
    i_size : int
        Of the file.
    total : DirtyBytes
        Where what is dirty is counted, of all files.
    key : tuple of int
        Subvolume and inode number.

    Attributes
    ----------
    i_size : int
        The size that calls see; ``inode.item.size`` is ``disk_i_size``, which the tree says.
    flush_on_close : bool
        The file was truncated to nothing: what is written then goes to disk when it is closed.
    cleanings : int
        How often pages became clean.
    """

    def __init__(self, i_size: int, total: DirtyBytes, key: tuple[int, int]) -> None:
        self.i_size = i_size
        self.flush_on_close = False
        self.cleanings = 0
        self._total = total
        self._key = key
        self._ranges: list[DirtyRange] = []  # ascending, disjoint
        self._cut_blocks: dict[int, bytearray] = {}  # by start
        self._whole: list[Whole] = []
        self._taken = 0  # bytes of these

    @property
    def is_dirty(self) -> bool:
        """Whether anything waits for writeback."""
        return bool(self._ranges)

    @property
    def dirty_bytes(self) -> int:
        """How much waits for writeback, whole blocks."""
        return sum(r.end - r.start for r in self._ranges)

    @property
    def whole(self) -> Whole | None:
        """All data of the file, where they were written from its first byte on and wait yet."""
        if len(self._whole) > 1:
            self._whole = [_together(self._whole)]
        return self._whole[0] if self._whole else None

    def may_take(self, offset: int) -> bool:
        """Whether the file ends at an offset, and all before it waits in the pieces it came in."""
        if self._whole:
            return offset == self._taken == self.i_size
        return not (offset or self.i_size or self._ranges)

    @property
    def _blocks(self) -> dict[int, bytearray]:
        if self._whole:
            data, self._whole = b"".join(whole.join() for whole in self._whole), []
            for at in range(0, len(data), BLOCKSIZE):
                block = bytearray(data[at : at + BLOCKSIZE])
                self._cut_blocks[at] = block.ljust(BLOCKSIZE, b"\0")
        return self._cut_blocks

    @_blocks.setter
    def _blocks(self, blocks: dict[int, bytearray]) -> None:
        self._cut_blocks = blocks

    # ------------------------------------------------------------------------------- change --

    def take(self, whole: Whole) -> None:
        """Let the file go on with data that are not copied and do not change; :meth:`may_take`."""
        start, self.i_size = self.i_size, self.i_size + whole.size
        self._taken = self.i_size
        self._whole.append(whole)
        self._mark(start // BLOCKSIZE * BLOCKSIZE, -(-self.i_size // BLOCKSIZE) * BLOCKSIZE, None)

    def clean_whole(self) -> None:
        """Forget :attr:`whole`: all of it was written back."""
        (dirty,) = self._ranges
        self._whole.clear()
        self.cleanings += 1
        self._total.touched.add(self._key)
        self._total.change(self._key[0], dirty.start - dirty.end, -1)
        self._ranges.clear()

    def write(
        self, offset: int, data: bytes | memoryview, read_block: Callable[[int], bytes]
    ) -> None:
        """Write into the pages; `read_block` gives a block that is only written in part."""
        if isinstance(data, memoryview) and type(data.obj) is bytes and self.may_take(offset):
            self.take(Whole(Pieces.of(data, [(0, len(data))]), 0, 1, len(data)))
            return
        size, at, blocks = BLOCKSIZE, offset, self._blocks
        end = offset + len(data)
        while at < end:
            start = at // size * size
            stop = min(start + size, end)
            part = data[at - offset : stop - offset]
            if stop - at == size:
                blocks[start] = bytearray(part)
            else:
                if (block := blocks.get(start)) is None:
                    blocks[start] = block = bytearray(read_block(start))
                block[at - start : stop - start] = part
            at = stop
        self._mark(offset // size * size, -(-end // size) * size, None)

    def tell(self, start: int, end: int, data: Told) -> None:
        """Make whole blocks dirty whose data a pattern tells."""
        self._forget_blocks(start, end)
        self._mark(start, end, data.pattern, data.stored)

    def zero(self, offset: int, end: int) -> None:
        """Zero bytes of one block that is dirty already (truncation, without dirtying it)."""
        start = offset // BLOCKSIZE * BLOCKSIZE
        block = self._blocks.get(start)
        if block is None and any(r.stored for r in self.ranges(start, start + BLOCKSIZE)):
            block = self._blocks[start] = bytearray(self.read(start, start + BLOCKSIZE))
            self._mark(start, start + BLOCKSIZE, None)
        if block is not None:
            block[offset - start : end - start] = bytes(end - offset)

    def clean(self, start: int, end: int) -> None:
        """Forget dirty blocks of [start, end): they were written back, or truncated away."""
        self.cleanings += 1
        self._cut(start, end)
        self._forget_blocks(start, end)

    def _mark(self, start: int, end: int, pattern: bytes | None, stored: bool = False) -> None:
        if start >= end:
            return
        if not self._ranges:
            # the common case: a file that is written from its beginning
            self._total.touched.add(self._key)
            self._total.change(self._key[0], end - start, 1)
            self._ranges.append(DirtyRange(start, end, pattern, stored))
            return
        at = bisect_left(self._ranges, (start + 1,)) - 1
        if at >= 0 and pattern is None:
            before = self._ranges[at]
            if before.pattern is None and end <= before.end:
                return
        self._cut(start, end)
        size, extents = end - start, 1
        at, kind = bisect_left(self._ranges, (start,)), (pattern, stored)
        if at and self._ranges[at - 1].end == start:
            extents -= 1
            if self._ranges[at - 1][2:] == kind:
                at -= 1
                start = self._ranges.pop(at).start
        after = self._ranges[at] if at < len(self._ranges) else None
        if after is not None and after.start == end:
            extents -= 1
            if after[2:] == kind:
                end = self._ranges.pop(at).end
        self._ranges.insert(at, DirtyRange(start, end, pattern, stored))
        self._total.change(self._key[0], size, extents)

    def _cut(self, start: int, end: int) -> None:
        self._total.touched.add(self._key)
        first, last = self._between(start, end)
        if first == last:
            return
        before = self._extents(first - 1, last + 1)
        pieces, size = [], 0
        for r in self._ranges[first:last]:
            size += min(r.end, end) - max(r.start, start)
            if r.start < start:
                pieces.append(r._replace(end=start))
            if r.end > end:
                pieces.append(r._replace(start=end))
        self._ranges[first:last] = pieces
        after = self._extents(first - 1, first + len(pieces) + 1)
        self._total.change(self._key[0], -size, after - before)

    def _extents(self, first: int, last: int) -> int:
        """Count ranges as a kernel does, to which neighbours are one, however they were written."""
        found = self._ranges[max(first, 0) : last]
        return len(found) - sum(one.end == other.start for one, other in pairwise(found))

    def _between(self, start: int, end: int) -> tuple[int, int]:
        """Return the first range that ends behind `start`, and the first from `end` on."""
        first = bisect_left(self._ranges, (start + 1,))
        if first and self._ranges[first - 1].end > start:
            first -= 1
        return first, bisect_left(self._ranges, (end,))

    def _forget_blocks(self, start: int, end: int) -> None:
        if (end - start) // BLOCKSIZE > len(self._blocks):
            self._blocks = {at: b for at, b in self._blocks.items() if not start <= at < end}
            return
        for at in range(start, end, BLOCKSIZE):
            self._blocks.pop(at, None)

    # --------------------------------------------------------------------------------- look --

    def ranges(self, start: int, end: int) -> list[DirtyRange]:
        """Return the dirty ranges in [start, end), cut to it."""
        if len(self._ranges) == 1 and start <= self._ranges[0].start and self._ranges[0].end <= end:
            return self._ranges.copy()
        first, last = self._between(start, end)
        return [
            r._replace(start=max(r.start, start), end=min(r.end, end))
            for r in self._ranges[first:last]
        ]

    def delalloc_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Iterate over what writeback of [start, end) takes at once, each at most 128 MiB.

        ``find_lock_delalloc_range()`` (Linux 6.18): neighbours are one range, however they were
        written; a range may go on beyond `end`, but never begins before `start`.
        """
        joined: list[tuple[int, int]] = []
        for r in self.ranges(start, 2**64):
            if joined and joined[-1][1] == r.start:
                joined[-1] = (joined[-1][0], r.end)
            elif r.start >= end:
                break
            else:
                joined.append((r.start, r.end))
        for low, high in joined:
            for at in range(low, min(high, end), MAX_EXTENT_SIZE):
                yield at, min(at + MAX_EXTENT_SIZE, high)

    def told(self, start: int, end: int) -> Told | None:
        """Return the data of [start, end) where one pattern tells them all, or None."""
        found = self.ranges(start, end)
        return found[0].told if len(found) == 1 and found[0][:2] == (start, end) else None

    def block(self, start: int) -> bytes | None:
        """Return a dirty block, elided ones as zeros; None for a clean one."""
        block = self._blocks.get(start)
        if block is not None:
            return bytes(block)
        is_dirty = self.ranges(start, start + BLOCKSIZE)
        return self.read(start, start + BLOCKSIZE) if is_dirty else None

    def read(self, start: int, end: int) -> bytes:
        """Return dirty blocks side by side, elided ones as zeros."""
        blocks = self._blocks
        repeated = [r for r in self.ranges(start, end) if r.stored] if start < end else []
        if not repeated:
            zeros = bytes(BLOCKSIZE)
            return b"".join(blocks.get(at, zeros) for at in range(start, end, BLOCKSIZE))
        found = bytearray()
        for r in repeated:
            assert r.pattern is not None
            found += self.read(start + len(found), r.start) + r.pattern * (r.end - r.start)
        return bytes(found + self.read(start + len(found), end))
