# SPDX-License-Identifier: GPL-2.0-only
"""One b-tree of an image: search it, iterate over it, scan it into columns, walk its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.counters import current
from btrfs_model.base.tables import html_table
from btrfs_model.native.choice import use_python
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.faults import new_fault, raise_fault
from btrfs_model.ondisk.keys import Key
from btrfs_model.reference import ctree
from btrfs_model.reference.blocks import HEADER, ITEM, KEY_PTR, Expect, image_block
from btrfs_model.reference.ctree import Path

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.volume.image import Image

MIN_KEY = (0, 0, 0)
MAX_KEY = (2**64 - 1, 255, 2**64 - 1)
RawKey = tuple[int, int, int]

KEY: Final = np.dtype(
    {
        "names": ["objectid", "offset", "type"],
        "formats": ["<u8", "<u8", "u1"],
        "offsets": [0, 8, 16],
        "itemsize": 24,
    }
)
"""``struct bm_key`` as a row of a numpy array."""


class Item(NamedTuple):
    """An item of a leaf.

    Attributes
    ----------
    key : Key
        objectid, type, offset.
    data : memoryview
        The payload, in the image itself.
    block : int
        Logical address of the leaf.
    slot : int
        Place in the leaf.
    """

    key: Key
    data: memoryview
    block: int
    slot: int

    def __reduce__(self) -> tuple[object, ...]:
        # a view of the image stays with the image
        return _apart, (self.key, bytes(self.data), self.block, self.slot)


def _apart(key: Key, data: bytes, block: int, slot: int) -> Item:
    return Item(key, memoryview(data), block, slot)


class Block(NamedTuple):
    """A tree block as an in-order walk meets it.

    Attributes
    ----------
    logical, generation, owner, flags, level, nritems
        As in its header.
    parent, parent_slot : int
        Address of the node that points at it (0: the root) and the slot there.
    first : Key
        Its first key; zeros in an empty root.
    used : int
        Bytes used after the header.
    """

    logical: int
    generation: int
    owner: int
    flags: int
    level: int
    nritems: int
    parent: int
    parent_slot: int
    first: Key
    used: int


class Tree:
    """A b-tree, given by its root.

    Parameters
    ----------
    image : Image
        Where the blocks are.
    objectid : int
        The tree's id, for errors and readers; blocks shared with a snapshot may have another owner.
    bytenr, generation, level : int
        Of the root block, from the root item (or the superblock).
    """

    def __init__(
        self, image: Image, objectid: int, bytenr: int, generation: int, level: int
    ) -> None:
        self.image = image
        self.objectid = objectid
        self.bytenr = bytenr
        self.generation = generation
        self.level = level
        self._root: ffi.CData | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.image, self.objectid, self.bytenr, self.generation, self.level)

    @classmethod
    def of(cls, image: Image, root: ffi.CData) -> Tree:
        """Return the tree that a ``struct bm_root`` of the image describes."""
        tree = cls(image, root.objectid, root.bytenr, root.generation, root.level)
        tree._root = root
        return tree

    def __repr__(self) -> str:
        return f"Tree({self.objectid}, bytenr={self.bytenr}, level={self.level})"

    def _repr_html_(self) -> str:
        names = ("bytenr", "generation", "level")
        return html_table(f"tree {self.objectid}", [], [(n, getattr(self, n)) for n in names])

    def root(self) -> ffi.CData:
        """Return the tree as a ``struct bm_root`` for the C kernels, for who holds the lease."""
        if self._root is None:
            self._root = ffi.new(
                "struct bm_root *",
                (self.image.lease.handle, self.objectid, self.bytenr, self.generation, self.level),
            )
        return self._root

    # --------------------------------------------------------------------- one item ---------

    def get(self, key: RawKey) -> Item | None:
        """Return the item with exactly this key, or None."""
        item = self.first(key)
        return item if item is not None and item.key == key else None

    def first(self, key: RawKey = MIN_KEY) -> Item | None:
        """Return the first item whose key is not less than `key`, or None."""
        return self._find(key, find_higher=True)

    def last(self, key: RawKey = MAX_KEY) -> Item | None:
        """Return the last item whose key is not greater than `key`, or None."""
        return self._find(key, find_higher=False)

    def _find(self, key: RawKey, *, find_higher: bool) -> Item | None:
        if use_python():
            path = Path()
            found = ctree.search_slot_for_read(self, key, path, find_higher=find_higher)
            return self._item(path.leaf, path.slots[0]) if found else None
        raw_path = ffi.new("struct bm_path *")
        if self._search_for_read(key, find_higher, raw_path):
            return self._item(self.image.block_view(raw_path.node[0]), raw_path.slot[0])
        return None

    def _search_for_read(self, key: RawKey, find_higher: bool, path: ffi.CData) -> bool:
        fault = new_fault()
        with self.image.lease:
            ret = lib.bm_search_slot_for_read(self.root(), _raw(key), find_higher, path, fault)
        if ret < 0:
            raise_fault(self.image.path, fault)
        return bool(ret == 0)

    def has_keys(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tell for each of many keys whether there is an item, as :meth:`get` does one by one.

        Parameters
        ----------
        keys : numpy.ndarray
            Rows of :data:`KEY`.
        """
        if use_python():
            rows = zip(
                *(keys[name].tolist() for name in ("objectid", "type", "offset")), strict=True
            )
            return np.array([self.get(key) is not None for key in rows], bool)
        there, fault = np.zeros(len(keys), np.uint8), new_fault()
        raw, out = ffi.from_buffer("struct bm_key[]", keys), ffi.from_buffer("uint8_t[]", there)
        with self.image.lease:
            if lib.bm_has_keys(self.root(), raw, len(keys), out, fault) < 0:
                raise_fault(self.image.path, fault)
        return there.astype(bool)

    def child_at(self, key: RawKey, level: int) -> int | None:
        """Return the address of the block of a level, below the root, whose first key is `key`.

        None when no node points at one.
        """
        if use_python():
            path = Path(lowest_level=level + 1)
            found = ctree.search_slot(self, key, path)
            node, slot = path.nodes[level + 1], path.slots[level + 1]
        else:
            raw_path, fault = ffi.new("struct bm_path *", {"lowest_level": level + 1}), new_fault()
            with self.image.lease:
                ret = lib.bm_search_slot(self.root(), _raw(key), raw_path, fault)
            if ret < 0:
                raise_fault(self.image.path, fault)
            found, slot = ret == 0, raw_path.slot[level + 1]
            node = self.image.block_view(raw_path.node[level + 1])
        assert node is not None
        return ctree.node_ptr(node, slot)[0] if found else None

    def visit_leaves(self, first: RawKey, last: RawKey, reada: ctree.Reada) -> None:
        """Go through the leaves that may hold keys of [first, last], for the reads that it takes.

        Parameters
        ----------
        first, last : key
            Where to start; the walk ends in the first leaf that has a key beyond `last`.
        reada : Reada
            What is read ahead.

        Raises
        ------
        CorruptImageError
            When the tree is broken there.
        """
        if use_python():
            path = Path(reada=reada)
            more = ctree.search_slot_for_read(self, first, path, find_higher=True)
            while more and ctree.block_key(path.leaf, ctree.nritems(path.leaf) - 1) <= last:
                more = ctree.next_leaf(self, path)
            return
        fault = new_fault()
        with self.image.lease:
            if lib.bm_visit_leaves(self.root(), _raw(first), _raw(last), reada, fault) < 0:
                raise_fault(self.image.path, fault)

    @staticmethod
    def _item(leaf: memoryview, slot: int) -> Item:
        objectid, kind, offset, at, size = ITEM.unpack_from(leaf, HEADER.size + slot * ITEM.size)
        start = HEADER.size + at
        bytenr = int.from_bytes(leaf[48:56], "little")
        return Item(Key(objectid, kind, offset), leaf[start : start + size], bytenr, slot)

    # ------------------------------------------------------------------- many items ---------

    def items(
        self, min_key: RawKey = MIN_KEY, max_key: RawKey = MAX_KEY, *, reverse: bool = False
    ) -> Iterator[Item]:
        """Iterate over the items with ``min_key <= key <= max_key``, in either direction.

        Yields
        ------
        Item
            In key order, or against it with `reverse`.
        """
        if use_python():
            yield from self._items_twin(min_key, max_key, reverse)
            return
        path = ffi.new("struct bm_path *")
        fault = new_fault()
        step = lib.bm_prev_leaf if reverse else lib.bm_next_leaf
        more = self._search_for_read(max_key if reverse else min_key, not reverse, path)
        while more:
            leaf = self.image.block_view(path.node[0])
            start, count = path.slot[0], ctree.nritems(leaf)
            block = int.from_bytes(leaf[48:56], "little")
            for slot in range(start, -1, -1) if reverse else range(start, count):
                *key, at, size = ITEM.unpack_from(leaf, HEADER.size + slot * ITEM.size)
                if not min_key <= tuple(key) <= max_key:
                    return
                yield Item(Key(*key), leaf[HEADER.size + at : HEADER.size + at + size], block, slot)
            with self.image.lease:
                ret = step(self.root(), path, fault)
            if ret < 0:
                raise_fault(self.image.path, fault)
            more = ret == 0

    def _items_twin(self, min_key: RawKey, max_key: RawKey, reverse: bool) -> Iterator[Item]:
        path = Path()
        step = ctree.prev_leaf if reverse else ctree.next_leaf
        more = ctree.search_slot_for_read(
            self, max_key if reverse else min_key, path, find_higher=not reverse
        )
        while more:
            leaf, start = path.leaf, path.slots[0]
            for slot in range(start, -1, -1) if reverse else range(start, ctree.nritems(leaf)):
                item = self._item(leaf, slot)
                if item.key < min_key or item.key > max_key:
                    return
                yield item
            more = step(self, path)

    def scan(self, min_key: RawKey = MIN_KEY, max_key: RawKey = MAX_KEY) -> dict[str, npt.NDArray]:  # type: ignore[type-arg]
        """Gather the items with ``min_key <= key <= max_key`` into columns.

        Returns
        -------
        dict of numpy.ndarray
            Arrays of one length, in key order: ``objectid``, ``type``, ``offset`` (the key),
            ``block`` (logical address of the leaf), ``slot``, ``position`` (byte of the image at
            which the payload starts) and ``size`` (of the payload, bytes).
        """
        if use_python():
            return self._scan_twin(min_key, max_key)
        low, high, fault = _raw(min_key), _raw(max_key), new_fault()
        with self.image.lease:
            root = self.root()
            bound = lib.bm_scan_bound(root, low, high, fault)
            if bound < 0:
                raise_fault(self.image.path, fault)
            columns = {name: np.empty(bound, dtype) for name, dtype in COLUMNS}
            count = lib.bm_scan(root, low, high, raw_columns(columns), bound, fault)
        if count < 0:
            raise_fault(self.image.path, fault)
        return {name: array[:count] for name, array in columns.items()}

    def _scan_twin(self, min_key: RawKey, max_key: RawKey) -> dict[str, npt.NDArray]:  # type: ignore[type-arg]
        rows = []
        work = current()
        path = Path()
        more = ctree.search_slot(self, min_key, path) or path.slots[0] < ctree.nritems(path.leaf)
        more = more or ctree.next_leaf(self, path)
        # the bound that the C kernel computes beforehand is a walk of its own
        while more:
            work.count("leaves_visited")
            leaf = path.leaf
            bytenr = int.from_bytes(leaf[48:56], "little")
            physical = self._physical(leaf)
            for slot in range(path.slots[0], ctree.nritems(leaf)):
                objectid, kind, offset, at, size = ITEM.unpack_from(
                    leaf, HEADER.size + slot * ITEM.size
                )
                if (objectid, kind, offset) > max_key:
                    more = False
                    break
                rows.append(
                    (objectid, kind, offset, bytenr, slot, physical + HEADER.size + at, size)
                )
            more = more and ctree.next_leaf(self, path)
        work.count("items_visited", len(rows))
        table = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
        return {
            name: np.array(column, dtype)
            for (name, dtype), column in zip(COLUMNS, table, strict=True)
        }

    def _physical(self, block: memoryview) -> int:
        """Return the byte of the image at which a block lies that was read from it."""
        whole = np.frombuffer(self.image.block_bytes, np.uint8)
        part = np.frombuffer(block, np.uint8)
        return int(part.ctypes.data - whole.ctypes.data)

    # ----------------------------------------------------------------------- blocks ---------

    def blocks(self, min_level: int = 0) -> list[Block]:
        """Walk the tree blocks in order, each node before its children.

        Parameters
        ----------
        min_level : int
            1 leaves the leaves out (and does not read them).
        """
        if use_python():
            return list(self._blocks_twin(min_level))
        fault, capacity = new_fault(), 256
        while True:
            rows = ffi.new("struct bm_block[]", capacity)
            with self.image.lease:
                count = lib.bm_walk_blocks(self.root(), min_level, rows, capacity, fault)
            if count < 0:
                raise_fault(self.image.path, fault)
            if count <= capacity:
                break
            capacity = count
        return [
            Block(
                row.logical,
                row.generation,
                row.owner,
                row.flags,
                row.level,
                row.nritems,
                row.parent,
                row.parent_slot,
                Key(row.first.objectid, row.first.type, row.first.offset),
                row.used,
            )
            for row in (rows[i] for i in range(count))
        ]

    def _blocks_twin(self, min_level: int) -> Iterator[Block]:
        path = Path()
        path.nodes[self.level] = image_block(
            self.image, self.bytenr, Expect(self.objectid, self.generation, self.level)
        )
        at = self.level
        while min_level <= at <= self.level:
            block = path.nodes[at]
            assert block is not None
            above = path.nodes[at + 1] if at < self.level else None
            parent = ctree.bytenr_of(above) if above is not None else 0
            parent_slot = path.slots[at + 1] if above is not None else 0
            _, _, bytenr, flags, _, generation, owner, count, level = HEADER.unpack_from(block)
            current().count("nodes_visited" if level else "leaves_visited")
            used = count * (KEY_PTR.size if level else ITEM.size)
            if count and not level:
                *_, last, _ = ITEM.unpack_from(block, HEADER.size + (count - 1) * ITEM.size)
                used += self.image.nodesize - HEADER.size - last
            first = Key(*ctree.block_key(block, 0)) if count else Key(0, 0, 0)
            yield Block(
                bytenr, generation, owner, flags, level, count, parent, parent_slot, first, used
            )
            path.slots[at] = 0
            if at == min_level:
                at = self._up(path, at)
            if at <= self.level:
                at = self._down(path, at)

    def _up(self, path: Path, level: int) -> int:
        """Go to the next pointer; return its level, which is above the root at the end."""
        level += 1
        while level <= self.level:
            node = path.nodes[level]
            assert node is not None
            path.slots[level] += 1
            if path.slots[level] < ctree.nritems(node):
                break
            level += 1
        return level

    def _down(self, path: Path, level: int) -> int:
        """Go to the child that a path's slot points at; return its level."""
        node = path.nodes[level]
        assert node is not None
        child = ctree.block_of_child(self, node, path.slots[level])
        ctree.check_last_key(self, path, child)
        path.nodes[level - 1] = child
        return level - 1

    def frame(self, min_key: RawKey = MIN_KEY, max_key: RawKey = MAX_KEY) -> pd.DataFrame:
        """Return :meth:`scan` as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.scan(min_key, max_key))


def raw_columns(columns: dict[str, npt.NDArray[Any]]) -> ffi.CData:
    """Hand columns, all of them contiguous, to a C kernel as ``struct bm_columns *``."""
    raw = ffi.new("struct bm_columns *")
    for name, array in columns.items():
        setattr(raw, name, ffi.cast(f"{array.dtype}_t *", array.ctypes.data))
    return raw


COLUMNS: tuple[tuple[str, type[np.generic]], ...] = (
    ("objectid", np.uint64),
    ("type", np.uint8),
    ("offset", np.uint64),
    ("block", np.uint64),
    ("slot", np.uint16),
    ("position", np.uint64),
    ("size", np.uint32),
)
"""The columns of a scan and their types."""


def _raw(key: RawKey) -> ffi.CData:
    return ffi.new("struct bm_key *", (key[0], key[2], key[1]))
