# SPDX-License-Identifier: GPL-2.0-only
"""``native/tree``: search a b-tree, walk it, compare two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from btrfs_model.native.door import dtype_of, ffi, lib, new_fault, raise_fault
from btrfs_model.native.items import BLOCK, COLUMNS, raw_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from btrfs_model.native.image import Store
    from btrfs_model.native.items import Columns

RawKey = tuple[int, int, int]

KEY: Final = dtype_of("struct bm_key")
"""A key as a row of a numpy array."""

_BATCH = 1024


def raw_key(key: RawKey) -> ffi.CData:
    """Return a key as a ``struct bm_key *``."""
    return ffi.new("struct bm_key *", (key[0], key[2], key[1]))


class Root:
    """A tree as C knows it (``struct bm_root``), given by its root block.

    `store`: where the blocks are.
    `objectid`, `bytenr`, `generation`, `level`: as of :class:`btrfs_model.volume.tree.Tree`.
    """

    __slots__ = ("_lease", "_store", "raw")

    def __init__(
        self, store: Store, objectid: int, bytenr: int, generation: int, level: int
    ) -> None:
        self._store, self._lease = store, store.lease
        with self._lease as handle:
            self.raw = ffi.new("struct bm_root *", (handle, objectid, bytenr, generation, level))

    @classmethod
    def of(cls, store: Store, raw: ffi.CData) -> Root:
        """Take over a ``struct bm_root``."""
        root = cls.__new__(cls)
        root._store, root._lease, root.raw = store, store.lease, raw
        return root

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Id, address, generation and level."""
        raw = self.raw
        return raw.objectid, raw.bytenr, raw.generation, raw.level

    def find(self, key: RawKey, find_higher: bool) -> tuple[int, int] | None:
        """Find the first item >= key, or the last <= key (``btrfs_search_slot_for_read()``).

        Returns `place`, `slot`: byte of the image at which the leaf lies, and the slot in it.
        """
        path = ffi.new("struct bm_path *")
        return self._found(path) if self._search_for_read(key, find_higher, path) else None

    def _found(self, path: ffi.CData) -> tuple[int, int]:
        return self._store.place(path.node[0]), path.slot[0]

    def _search_for_read(self, key: RawKey, find_higher: bool, path: ffi.CData) -> bool:
        find = lib.bm_search_slot_for_read
        return not self._lease.run(find, self.raw, raw_key(key), find_higher, path)

    def search(self, key: RawKey, level: int) -> tuple[int, int] | None:
        """Search for the pointer with exactly this key in a node of a level; as :meth:`find`."""
        path = ffi.new("struct bm_path *", {"lowest_level": level})
        if self._lease.run(lib.bm_search_slot, self.raw, raw_key(key), path):
            return None
        return self._store.place(path.node[level]), path.slot[level]

    def leaves(self, key: RawKey, reverse: bool) -> Iterator[tuple[int, int]]:
        """Go through the leaves from an item on, as :meth:`find` finds it, or back from it.

        Yields `place`, `slot`: as :meth:`find`.
        """
        path = ffi.new("struct bm_path *")
        step = lib.bm_prev_leaf if reverse else lib.bm_next_leaf
        more = self._search_for_read(key, not reverse, path)
        while more:
            yield self._found(path)
            more = not self._lease.run(step, self.raw, path)

    def lookup_path(self, directory: RawKey, path: bytes) -> RawKey | None:
        """Return the key of what a path leads to from a directory, or None."""
        key = raw_key(directory)
        if self._lease.run(lib.bm_lookup_path, self.raw, path, len(path), key):
            return None
        return key.objectid, key.type, key.offset

    def has_keys(self, keys: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell for each of many keys, rows of :data:`KEY`, whether there is an item."""
        there = np.zeros(len(keys), np.uint8)
        raw, out = ffi.from_buffer("struct bm_key[]", keys), ffi.from_buffer("uint8_t[]", there)
        self._lease.run(lib.bm_has_keys, self.raw, raw, len(keys), out)
        return there.astype(bool)

    def visit_leaves(self, first: RawKey, last: RawKey, reada: int) -> None:
        """Go through the leaves that may hold keys of [first, last]."""
        self._lease.run(lib.bm_visit_leaves, self.raw, raw_key(first), raw_key(last), reada)

    def scan(self, min_key: RawKey, max_key: RawKey) -> Columns:
        """Gather the items with ``min_key <= key <= max_key`` into columns."""
        low, high = raw_key(min_key), raw_key(max_key)
        with self._lease:
            bound = self._lease.run(lib.bm_scan_bound, self.raw, low, high)
            columns = {name: np.empty(bound, dtype) for name, dtype in COLUMNS.items()}
            count = self._lease.run(lib.bm_scan, self.raw, low, high, raw_columns(columns), bound)
        return {name: array[:count] for name, array in columns.items()}

    def blocks(self, min_level: int) -> NDArray[Any]:
        """Walk the tree blocks in order; return rows of :data:`BLOCK`."""
        capacity = 256
        while True:
            rows = np.empty(capacity, BLOCK)
            raw = ffi.from_buffer("struct bm_block[]", rows)
            count = self._lease.run(lib.bm_walk_blocks, self.raw, min_level, raw, capacity)
            if count <= capacity:
                return rows[:count]
            capacity = count


def compare_trees(left: Root, right: Root) -> Iterator[tuple[int, RawKey, Any, Any]]:
    """Iterate over the differences of two trees of one image.

    Yields `change`: ``enum bm_change``.
    Yields `key`: objectid, type, offset.
    Yields `left`, `right`: address of the leaf and slot in it, on each side that has the key.
    """
    fault, lease = new_fault(), left._lease
    with lease:
        handle = lib.bm_compare_create(left.raw, right.raw, fault)
    if not handle:
        raise_fault(lease.path, fault)
    handle = ffi.gc(handle, lib.bm_compare_destroy)
    rows = ffi.new("struct bm_difference[]", _BATCH)
    while True:
        count = lease.run(lib.bm_compare_next, handle, rows, _BATCH)
        if not count:
            return
        for row in rows[0:count]:
            yield (
                row.change, (row.key.objectid, row.key.type, row.key.offset),
                (row.left_block, row.left_slot), (row.right_block, row.right_slot),
            )  # fmt: skip
