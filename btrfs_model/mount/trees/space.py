# SPDX-License-Identifier: GPL-2.0-only
"""What lies behind the trees that change: block groups, extents, references, checksums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from btrfs_model.native.door import ffi, lib
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.volume.image import Image

_CSUM_TREE = int(ObjectId.CSUM_TREE)


class DataRef(NamedTuple):
    """A reference of a file extent item to a data extent; `parent` 0: by root, inode, offset."""

    bytenr: int
    num_bytes: int
    parent: int
    root: int
    ino: int
    offset: int


class GroupState(NamedTuple):
    """A block group: its range, flags, what is used, free, and free after the next commit."""

    start: int
    length: int
    flags: int
    used: int
    free: int
    pinned: int


class SpaceCalls:
    """Space, references and checksums: the part of the writer that is no editing of trees."""

    handle: Any
    image: Image

    def run(self, function: Any, *args: Any) -> int:
        """Call a kernel that takes the writer first and a fault last."""
        raise NotImplementedError

    def add_group(self, start: int, length: int, flags: int) -> None:
        """Add a block group, all free, whose chunk the image has."""
        self.run(lib.bm_writer_add_group, start, length, flags)

    def occupy(self, ranges: Iterable[tuple[int, int]], *, used: bool = True) -> None:
        """Take ranges (start, length) from the free space; `used`: they count as used."""
        rows = list(ranges)
        starts = ffi.new("uint64_t[]", [start for start, _ in rows])
        lengths = ffi.new("uint64_t[]", [length for _, length in rows])
        self.run(lib.bm_writer_occupy, starts, lengths, len(rows), used)

    def groups(self) -> list[GroupState]:
        """Return all block groups, ascending."""
        with self.image.lease:
            count = lib.bm_writer_groups(self.handle, ffi.NULL, 0)
            rows = ffi.new("struct bm_writer_group[]", count)
            lib.bm_writer_groups(self.handle, rows, count)
        return [
            GroupState(row.start, row.length, row.flags, row.used, row.free, row.pinned)
            for row in rows
        ]

    def room(self, flags: int) -> tuple[int, int]:
        """Return length and free bytes of all block groups with any of the flags together."""
        total, free = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        with self.image.lease:
            lib.bm_writer_room(self.handle, flags, total, free)
        return total[0], free[0]

    def bytes_used(self, trees: ffi.CData) -> int:
        """Return the bytes of all blocks of trees; of those that there are not it is 0.

        Parameters
        ----------
        trees : uint64_t[]
            Their ids.
        """
        with self.image.lease:
            return int(lib.bm_writer_bytes_used(self.handle, trees, len(trees)))

    def reserve_data(self, wanted: int, least: int, hint: int = 0) -> tuple[int, int]:
        """Reserve up to `wanted` bytes for data, halved down to `least` (``btrfs_reserve_extent``).

        Returns
        -------
        bytenr, size : int
            What was reserved.

        Raises
        ------
        OSError
            ENOSPC when no block group has that much in one piece.
        """
        bytenr, size = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self.run(lib.bm_writer_reserve_data, wanted, least, hint, bytenr, size)
        return bytenr[0], size[0]

    def reserve_in_class(self, size: int, hint: int = 0) -> int | None:
        """Reserve `size` bytes where extents of that size class go; None: there is no room there.

        Groups of data that hold nothing yet are for any class, that of their first extent then.
        """
        bytenr = ffi.new("uint64_t *")
        none = self.run(lib.bm_writer_reserve_in_class, size, hint, bytenr)
        return None if none else int(bytenr[0])

    def set_size_class(self, start: int, extent: int) -> None:
        """Say that the group of data at `start` is for extents as large as `extent`."""
        self.run(lib.bm_writer_set_size_class, start, extent)

    def release_data(self, bytenr: int, size: int) -> None:
        """Give back what was reserved and never became an extent."""
        self.run(lib.bm_writer_release_data, bytenr, size)

    def alloc_data_ref(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Make reserved ranges extents with one reference each; rows as :class:`DataRef`."""
        self.run(lib.bm_writer_alloc_data_ref, *_refs(rows))

    def inc_data_ref(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Add references (``btrfs_inc_extent_ref()``); rows as :class:`DataRef`."""
        self.run(lib.bm_writer_inc_data_ref, *_refs(rows))

    def drop_data_ref(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Drop references (``btrfs_free_extent()``); rows as :class:`DataRef`."""
        self.run(lib.bm_writer_drop_data_ref, *_refs(rows))

    def extent_info(self, bytenr: int) -> tuple[int, int]:
        """Return references and flags of an extent, those that wait included."""
        refs, flags = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self.run(lib.bm_writer_extent_info, bytenr, refs, flags)
        return refs[0], flags[0]

    def run_refs(self) -> int:
        """Carry out all waiting references (``btrfs_run_delayed_refs()``); returns how many."""
        return self.run(lib.bm_writer_run_refs)

    def run_some_refs(self, most: int) -> int:
        """Carry out the waiting references of so many extents; returns of how many."""
        return self.run(lib.bm_writer_run_some_refs, most)

    def dirty_bytes(self) -> int:
        """Return how large the tree blocks are that the running transaction made."""
        with self.image.lease:
            return int(lib.bm_writer_dirty_bytes(self.handle))

    def waiting_refs(self) -> int:
        """Return how many extents have references waiting."""
        with self.image.lease:
            return int(lib.bm_writer_waiting_refs(self.handle))

    def delayed_refs(self) -> tuple[int, int]:
        """Return how many references wait, and how many extents of data lose some by them."""
        losing = ffi.new("int64_t *")
        with self.image.lease:
            return int(lib.bm_writer_delayed_refs(self.handle, losing)), int(losing[0])

    def insert_csums(self, bytenr: int, sums: bytes, sectors: int, tree: int = _CSUM_TREE) -> None:
        """Insert checksums of sectors into a tree (``btrfs_csum_file_blocks()``).

        Raises
        ------
        ValueError
            When `sums` is not one checksum for each sector.
        """
        size = self.image.superblock.csum_size
        if len(sums) != sectors * size:
            raise ValueError(f"{len(sums)} bytes are not {sectors} checksums of {size} bytes")
        self.run(lib.bm_writer_insert_csums, tree, bytenr, sums, sectors)

    def delete_csums(self, bytenr: int, length: int, tree: int = _CSUM_TREE) -> None:
        """Delete the checksums of a range (``btrfs_del_csums()``)."""
        self.run(lib.bm_writer_delete_csums, tree, bytenr, length)

    def free_space_group(self, start: int) -> None:
        """Tell the free space tree of a new block group."""
        self.run(lib.bm_writer_free_space_group, start)

    def unpin(self) -> None:
        """End the transaction for space: what was freed in it may be allocated again."""
        self.run(lib.bm_writer_unpin)


def _refs(rows: Iterable[tuple[int, ...]]) -> tuple[Any, int]:
    table = [tuple(row) for row in rows]
    return ffi.new("struct bm_data_ref[]", table), len(table)
