# SPDX-License-Identifier: GPL-2.0-only
"""``native/backref`` and ``native/fiemap``: who refers to an extent; the extents of a file."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.native.door import dtype_of, ffi, lib, new_fault, raise_fault
from btrfs_model.native.tree import RawKey, Root

if TYPE_CHECKING:
    from btrfs_model.native.image import Store

WAITING: Final = dtype_of("struct bm_waiting_ref")
"""A reference that waits."""

_NO_RESTART = 1 << lib.BM_TOGGLE_SEARCH_NO_RESTART


class Forest:
    """The trees that a walk may come to (``struct bm_forest``).

    `store`: where the blocks are.
    `roots`: the trees.
    `opened`: subvolumes that have been opened since mount.
    `waiting`: references that a running transaction has yet to write, rows of :data:`WAITING`;
    None: no transaction runs.
    """

    def __init__(
        self,
        store: Store,
        roots: Sequence[Root],
        opened: Iterable[int],
        waiting: npt.NDArray[Any] | None = None,
    ) -> None:
        self.lease = store.lease
        rows, fault = ffi.new("struct bm_root[]", [root.raw[0] for root in roots]), new_fault()
        with self.lease as image:
            handle = lib.bm_forest_create(image, rows, len(rows), fault)
            if not handle:
                raise_fault(self.lease.path, fault)
            for objectid in opened:
                lib.bm_forest_open(handle, objectid)
        self.raw = ffi.gc(handle, lib.bm_forest_destroy)
        if waiting is not None:
            refs = ffi.from_buffer("struct bm_waiting_ref[]", waiting)
            if lib.bm_forest_set_waiting(handle, refs, len(waiting), fault) < 0:
                raise_fault(self.lease.path, fault)
        self._expected = len(rows) + 1024

    def iterate_extent_inodes(
        self, bytenr: int, extent_item_pos: int, ignore_extent_item_pos: bool, restart: bool
    ) -> list[tuple[int, int, int, int]]:
        """Return inode, offset, length and root of each reference to a data extent."""
        walk = self._walk(bytenr, extent_item_pos, ignore_extent_item_pos, restart)
        refs = ffi.new("struct bm_inode_refs *")
        try:
            self.lease.run(lib.bm_collect_inode_refs, walk, refs)
            rows = refs.rows[0 : refs.count]
            return [(row.ino, row.offset, row.num_bytes, row.root) for row in rows]
        finally:
            lib.bm_inode_refs_free(refs)

    def find_all_leafs(self, bytenr: int, restart: bool) -> list[int]:
        """Return the leaves with file extent items of a data extent."""
        return self._values(lib.bm_find_all_leafs, bytenr, restart)

    def find_all_roots(self, bytenr: int, restart: bool) -> list[int]:
        """Return the trees that reach an extent or tree block."""
        return self._values(lib.bm_find_all_roots, bytenr, restart)

    def extent_from_logical(self, logical: int, restart: bool) -> tuple[RawKey, int, int] | None:
        """Return key, flags and references of the extent that holds an address, or None."""
        key, fault = ffi.new("struct bm_key *"), new_fault()
        flags, refs = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        behaviour = 0 if restart else _NO_RESTART
        with self.lease:
            found = lib.bm_extent_from_logical(
                self.raw, logical, behaviour, key, flags, refs, fault
            )
        if found == 0:
            return (key.objectid, key.type, key.offset), flags[0], refs[0]
        if fault.code == Code.ERRNO and fault.found == errno.ENOENT:
            return None
        raise_fault(self.lease.path, fault)

    def _walk(
        self, bytenr: int, extent_item_pos: int, ignore_extent_item_pos: bool, restart: bool
    ) -> ffi.CData:
        return ffi.new(
            "struct bm_backref_walk *",
            {
                "forest": self.raw,
                "bytenr": bytenr,
                "extent_item_pos": extent_item_pos,
                "ignore_extent_item_pos": ignore_extent_item_pos,
                "behaviour": 0 if restart else _NO_RESTART,
            },
        )

    def _values(self, find: Callable[..., int], bytenr: int, restart: bool) -> list[int]:
        walk = self._walk(bytenr, 0, False, restart)
        capacity = self._expected
        with self.lease:
            while True:
                values = ffi.new("uint64_t[]", capacity)
                count = self.lease.run(find, walk, values, capacity)
                if count <= capacity:
                    return list(ffi.unpack(values, count))
                capacity = count


def account_extents(
    before: Forest | None, now: Forest, bytenr: np.ndarray, num_bytes: np.ndarray
) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Return what extents count for, by the subvolumes that reach them.

    `before`, `now`: two states of a filesystem; None: nothing was there.
    `bytenr`, `num_bytes`: the extents, each uint64.
    Returns subvolumes before, subvolumes now, bytes of all extents of which both are true. Extents
    of which they did not change are left out.
    """
    account = ffi.new("struct bm_account *")
    try:
        now.lease.run(
            lib.bm_account_extents, before.raw if before else ffi.NULL, now.raw,
            ffi.from_buffer("uint64_t[]", bytenr), ffi.from_buffer("uint64_t[]", num_bytes),
            len(bytenr), account,
        )  # fmt: skip
        first = account.first[0 : account.set_count + 1]
        sets = [tuple(account.ids[a:b]) for a, b in pairwise(first)]
        rows = account.rows[0 : account.row_count]
        return [(sets[row.before], sets[row.now], row.bytes) for row in rows]
    finally:
        lib.bm_account_free(account)


# ------------------------------------------------------------------------------- fiemap ---

ROW: Final = dtype_of("struct bm_fiemap_extent")
"""An extent that is reported, and by which call."""


class Fiemap:
    """A file whose extents are asked for, as long as a program has it open.

    `forest`: the trees.
    `file`: ``subvolume``, ``last_snapshot``, ``ino``, ``isize``, ``behaviour`` (bits),
    ``entries`` and ``prev_extents`` (limits).
    `delalloc`: what waits to be written: ascending, none touches the next.
    """

    def __init__(
        self, forest: Forest, file: dict[str, int], delalloc: Sequence[tuple[int, int]]
    ) -> None:
        self._forest = forest
        fault = new_fault()
        maps = lib.bm_extent_maps_create(fault)
        if not maps:
            raise_fault(forest.lease.path, fault)
        self._maps = ffi.gc(maps, lib.bm_extent_maps_destroy)
        self._delalloc = ffi.new("struct bm_byte_range[]", list(delalloc))
        file = {**file, "forest": forest.raw, "maps": self._maps,
                "delalloc": self._delalloc, "delalloc_count": len(delalloc)}  # fmt: skip
        self._args = ffi.new("struct bm_fiemap_args *", file)

    def run(self, start: int, length: int, extents_per_call: int) -> npt.NDArray[Any]:
        """Return the extents of a range of bytes, rows of :data:`ROW`."""
        args, result = self._args, ffi.new("struct bm_fiemap_result *")
        with self._forest.lease:
            args.start, args.length, args.extents_per_call = start, length, extents_per_call
            try:
                self._forest.lease.run(lib.bm_fiemap, args, result)
                if not result.count:
                    return np.zeros(0, ROW)
                rows = ffi.buffer(result.rows, result.count * ROW.itemsize)
                return np.frombuffer(bytes(rows), ROW)
            finally:
                lib.bm_fiemap_result_free(result)
