# SPDX-License-Identifier: GPL-2.0-only
"""What lies behind the trees that change: block groups, extents, references, checksums."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.native.backref import WAITING
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.lease import Lease
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA
from btrfs_model.ondisk.keys import ObjectId

_CSUM_TREE = int(ObjectId.CSUM_TREE)


DataRef = tuple[int, int, int, int, int, int]
"""A reference of a file extent item to a data extent: address, size, parent (0: by root, inode and
offset), root, inode number, offset."""


class QuotaMode(IntEnum):
    """What is remembered of references for quota groups (``enum bm_quota_mode``)."""

    OFF = lib.BM_QUOTA_OFF
    FULL = lib.BM_QUOTA_FULL
    SIMPLE = lib.BM_QUOTA_SIMPLE


class GroupState(NamedTuple):
    """A block group: its range, flags, what is used, free, and free after the next commit.

    ``commit_used`` is what its item says of ``used``.
    """

    start: int
    length: int
    flags: int
    used: int
    free: int
    pinned: int
    commit_used: int


class SpaceInfo(NamedTuple):
    """What decides whether there is room (``struct btrfs_space_info``), bytes where not a count.

    `flags`, `total`, `free`, `pinned`: of all block groups of a kind together.
    `stale_groups`: block groups whose items are not up to date.
    `refs`: delayed references.
    `losing`: data extents that lose references by them.
    `dirty`: tree blocks that were not written yet.
    `trees`, `tree_bytes`: trees that every commit changes, and the bytes of their blocks.
    `has_free_space_tree`: whether the free space tree is one of them.
    """

    flags: int
    total: int
    free: int
    pinned: int
    stale_groups: int
    refs: int
    losing: int
    dirty: int
    trees: int
    tree_bytes: int
    has_free_space_tree: int

    @property
    def used(self) -> int:
        """Bytes that extents take."""
        return self.total - self.free - self.pinned


_group = attrgetter(*GroupState._fields)
_space_info = attrgetter(*SpaceInfo._fields)


class SpaceCalls:
    """Space, references and checksums: the part of the writer that is no editing of trees."""

    handle: Any
    lease: Lease
    csum_size: int
    max_extent_size: int
    """What the last search for room for data that failed found instead; 0: that is of no use now.

    (``space_info->max_extent_size``.)
    """

    def __init__(self) -> None:
        self.max_extent_size = 0
        # by kind: the last one as C has it, and the same as a tuple
        self._infos: dict[int, tuple[ffi.CData, SpaceInfo]] = {}

    def run(self, function: Any, *args: Any) -> int:
        """Call a kernel that takes the writer first and a fault last."""
        raise NotImplementedError

    def add_group(self, start: int, length: int, flags: int) -> None:
        """Add a block group, all free, whose chunk the image has."""
        self.run(lib.bm_writer_add_group, start, length, flags)
        if flags & BTRFS_BLOCK_GROUP_DATA:
            self.max_extent_size = 0

    def set_read_only(self, start: int, read_only: bool) -> None:
        """Allocate nothing in the block group at `start`, or again."""
        self.run(lib.bm_writer_set_read_only, start, read_only)
        self.max_extent_size = 0

    def remove_group(self, start: int) -> None:
        """Forget an empty block group."""
        self.run(lib.bm_writer_remove_group, start)
        self.max_extent_size = 0

    def tree_ref(self, change: int, bytenr: int, parent: int, root: int, level: int) -> None:
        """Add a reference to a tree block, or with a negative `change` drop one.

        `parent`: of the block that refers; 0: it is the tree `root`.
        """
        self.run(lib.bm_writer_tree_ref, change, bytenr, parent, root, level)

    def occupy(self, ranges: Iterable[tuple[int, int]], *, used: bool = True) -> None:
        """Take ranges (start, length) from the free space; `used`: they count as used."""
        rows = list(ranges)
        starts = ffi.new("uint64_t[]", [start for start, _ in rows])
        lengths = ffi.new("uint64_t[]", [length for _, length in rows])
        self.run(lib.bm_writer_occupy, starts, lengths, len(rows), used)

    def groups(self) -> list[GroupState]:
        """Return all block groups, ascending."""
        with self.lease:
            count = lib.bm_writer_groups(self.handle, ffi.NULL, 0)
            rows = ffi.new("struct bm_writer_group[]", count)
            lib.bm_writer_groups(self.handle, rows, count)
        return [GroupState(*_group(row)) for row in rows]

    def space_info(self, kind: int) -> SpaceInfo:
        """Return how full the block groups of a kind are, and what else decides about room."""
        raw, info = self._infos.get(kind) or (ffi.new("struct bm_space_info *"), None)
        with self.lease:
            # asked by every call, and seldom another one
            if lib.bm_writer_space_info(self.handle, kind, raw) or info is None:
                info = SpaceInfo(*_space_info(raw))
                self._infos[kind] = raw, info
        return info

    def set_commit_used(self, start: int, used: int) -> None:
        """Say that the item of the group at `start` is up to date now."""
        self.run(lib.bm_writer_set_commit_used, start, used)

    def reserve_data(self, wanted: int, least: int, hint: int = 0) -> tuple[int, int]:
        """Reserve up to `wanted` bytes for data, halved down to `least` (``btrfs_reserve_extent``).

        Returns `bytenr`, `size`: what was reserved.
        Raises OSError: ENOSPC when no block group has that much in one piece.
        """
        bytenr, size = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self.run(lib.bm_writer_reserve_data, wanted, least, hint, bytenr, size)
        return bytenr[0], size[0]

    def find_data(self, size: int, hint: int = 0) -> int | None:
        """Reserve all of `size` bytes for data; None: no block group has that much in one piece."""
        try:
            return self.reserve_data(size, size, hint)[0]
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        return None

    def remember_largest(self, size: int) -> None:
        """Remember what there is instead of room for `size` bytes of data."""
        with self.lease:
            self.max_extent_size = int(lib.bm_writer_largest_data(self.handle, size))

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
        self.max_extent_size = 0

    def alloc_data_ref(self, rows: Iterable[DataRef]) -> None:
        """Make reserved ranges extents with one reference each; rows as :class:`DataRef`."""
        self.run(lib.bm_writer_alloc_data_ref, *_refs(rows))

    def inc_data_ref(self, rows: Iterable[DataRef]) -> None:
        """Add references (``btrfs_inc_extent_ref()``); rows as :class:`DataRef`."""
        self.run(lib.bm_writer_inc_data_ref, *_refs(rows))

    def drop_data_ref(self, rows: Iterable[DataRef]) -> None:
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

    def list_refs(self) -> npt.NDArray[Any]:
        """Return the references that wait, rows of :data:`~btrfs_model.native.backref.WAITING`."""
        with self.lease:
            count = lib.bm_writer_list_refs(self.handle, ffi.NULL, 0)
            rows = np.zeros(count, WAITING)
            buffer = ffi.from_buffer("struct bm_waiting_ref[]", rows)
            lib.bm_writer_list_refs(self.handle, buffer, count)
        return rows

    def waiting_refs(self) -> int:
        """Return how many extents have references waiting."""
        with self.lease:
            return int(lib.bm_writer_waiting_refs(self.handle))

    def set_quota(self, mode: QuotaMode, enable_gen: int, drop_subtree_threshold: int) -> None:
        """Say what is to be remembered of references.

        `enable_gen`: with simple quotas, the transaction from which on extents count.
        `drop_subtree_threshold`: how high a shared subtree must be not to be looked at.
        """
        with self.lease:
            lib.bm_writer_set_quota(self.handle, mode, enable_gen, drop_subtree_threshold)

    def take_traced(self) -> tuple[np.ndarray, np.ndarray]:
        """Return addresses and sizes of the extents whose references changed, and forget them."""
        with self.lease:
            count = lib.bm_writer_traced(self.handle)
            bytenr, num_bytes = np.empty(count, np.uint64), np.empty(count, np.uint64)
            lib.bm_writer_take_traced(
                self.handle, ffi.from_buffer("uint64_t[]", bytenr),
                ffi.from_buffer("uint64_t[]", num_bytes),
            )  # fmt: skip
        return bytenr, num_bytes

    def quota_inconsistent(self) -> bool:
        """Whether a subtree was too high to be looked at, since this was asked last."""
        with self.lease:
            return bool(lib.bm_writer_quota_inconsistent(self.handle))

    def take_deltas(self) -> list[tuple[int, int]]:
        """Return what subvolumes allocated less what they freed, bytes, and forget it."""
        with self.lease:
            count = lib.bm_writer_take_deltas(self.handle, ffi.NULL, 0)
            rows = ffi.new("struct bm_quota_delta[]", count)
            lib.bm_writer_take_deltas(self.handle, rows, count)
        return [(row.root, row.bytes) for row in rows]

    def insert_csums(self, bytenr: int, sums: bytes, sectors: int, tree: int = _CSUM_TREE) -> None:
        """Insert checksums of sectors into a tree (``btrfs_csum_file_blocks()``).

        Raises ValueError: when `sums` is not one checksum for each sector.
        """
        size = self.csum_size
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
        if self.space_info(BTRFS_BLOCK_GROUP_DATA).pinned:
            self.max_extent_size = 0
        self.run(lib.bm_writer_unpin)


def _refs(rows: Iterable[DataRef]) -> tuple[Any, int]:
    table = [tuple(row) for row in rows]
    return ffi.new("struct bm_data_ref[]", table), len(table)
