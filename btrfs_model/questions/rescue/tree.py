# SPDX-License-Identifier: GPL-2.0-only
"""A tree of which blocks may be lost: what can be read of it, and which keys cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.errors import CorruptImageError
from btrfs_model.native.items import scan_leaves, select
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.ondisk.keys import Key, ObjectId
from btrfs_model.ondisk.structs import DISK_KEY, HEADER, KEY_PTR
from btrfs_model.volume.blocks import ITEM
from btrfs_model.volume.roots import is_subvolume_id
from btrfs_model.volume.tree import MAX_KEY, MIN_KEY, RawKey, Tree

if TYPE_CHECKING:
    from btrfs_model.native.items import Columns
    from btrfs_model.volume.image import Image

_END = (1 << 64, 0, 0)


class Lost(NamedTuple):
    """A tree block that cannot be read, or is another one than was pointed at.

    `block`: its logical address.
    `low`, `high`: the keys of what is below it: from `low` on, and less than `high`.
    `problem`: what is wrong.
    `is_taken`: whether what is there was taken nevertheless.
    """

    block: int
    low: RawKey
    high: RawKey
    problem: str
    is_taken: bool = False

    @property
    def where(self) -> str:
        """The block and the keys, in words."""
        high = "the end" if self.high == _END else str(Key(*self.high))
        return f"block {self.block}: keys from {Key(*self.low)} to {high}"


class _Visit(NamedTuple):
    logical: int
    generation: int
    level: int
    low: RawKey
    high: RawKey


class SalvagedTree(Tree):
    """A tree that is read as far as that goes.

    Parameters are those of :class:`.Tree`. A block whose copies are all bad is left out. One of
    another generation than its parent says was overwritten, or its write was lost: of trees of
    files and of roots it is taken where it is of that tree, level and place, and noted.

    Attributes
    ----------
    lost : list of Lost
        What is missing, in the order of the keys, and what was taken that is of another time.
    leaves : numpy.ndarray
        uint64, logical addresses of those that can be read, in order.
    pointers : list of (int, int, int)
        Address, generation and level of each block that is pointed at, lost ones too.
    """

    def __init__(
        self, image: Image, objectid: int, bytenr: int, generation: int, level: int
    ) -> None:
        super().__init__(image, objectid, bytenr, generation, level)
        self.lost: list[Lost] = []
        self.pointers: list[tuple[int, int, int]] = []
        self.leaves = np.array(self._walk(), np.uint64)

    @classmethod
    def at(cls, tree: Tree) -> SalvagedTree:
        """Return what can be read of a tree."""
        return cls(tree.image, tree.objectid, tree.bytenr, tree.generation, tree.level)

    @property
    def is_whole(self) -> bool:
        """Whether every block is there and the one that was meant."""
        return not self.lost

    def _walk(self) -> list[int]:
        leaves, seen = [], set()
        stack = [_Visit(self.bytenr, self.generation, self.level, MIN_KEY, _END)]
        while stack:
            at = stack.pop()
            if at.logical in seen or not 0 <= at.level < BTRFS_MAX_LEVEL:
                # so no walk is longer than the image
                self.lost.append(Lost(at.logical, at.low, at.high, "the walk has been there"))
                continue
            seen.add(at.logical)
            self.pointers.append((at.logical, at.generation, at.level))
            block = self._read(at)
            if block is None:
                continue
            if not at.level:
                leaves.append(at.logical)
                continue
            count = int.from_bytes(block[96:100], "little")
            rows = np.frombuffer(block, KEY_PTR.dtype, count, HEADER.size)
            keys = [tuple(key) for key in rows["key"].tolist()]
            ends = [*keys[1:], at.high]
            below = [
                _Visit(logical, generation, at.level - 1, key, min(end, at.high))
                for logical, generation, key, end in zip(
                    rows["blockptr"].tolist(), rows["generation"].tolist(), keys, ends, strict=True
                )
            ]
            stack += reversed(below)
        return leaves

    def _read(self, at: _Visit) -> memoryview | None:
        """Read a block; note what is wrong, and return it where it can be used."""
        try:
            return self.image.block(
                at.logical, level=at.level, generation=at.generation, tree=self.objectid
            )
        except CorruptImageError as error:
            problem = str(error.strerror)
        block = self._of_another_time(at)
        self.lost.append(Lost(at.logical, at.low, at.high, problem, block is not None))
        return block

    def _of_another_time(self, at: _Visit) -> memoryview | None:
        if not (is_subvolume_id(self.objectid) or self.objectid == ObjectId.ROOT_TREE):
            return None
        try:
            block = self.image.block(at.logical, level=at.level, tree=self.objectid)
        except CorruptImageError:
            return None
        *_, owner, count, _ = HEADER.struct.unpack_from(block)
        files = is_subvolume_id(owner) and is_subvolume_id(self.objectid)
        if not (files or owner == self.objectid) or not count:
            return None
        size = ITEM.size if not at.level else KEY_PTR.size
        first = tuple(DISK_KEY.struct.unpack_from(block, HEADER.size))
        last = tuple(DISK_KEY.struct.unpack_from(block, HEADER.size + (count - 1) * size))
        return block if at.low <= first and last < at.high else None

    def scan(self, min_key: RawKey = MIN_KEY, max_key: RawKey = MAX_KEY) -> Columns:
        """Gather what there is of the items with ``min_key <= key <= max_key``, by key."""
        columns = _ascending(scan_leaves(self.image, self.leaves))
        inside = ~_less(columns, min_key) & (_less(columns, max_key) | _equal(columns, max_key))
        return columns if inside.all() else select(columns, inside)


def _equal(columns: Columns, key: RawKey) -> npt.NDArray[np.bool_]:
    objectid, kind, offset = _numbers(key)
    return np.asarray(
        (columns["objectid"] == objectid) & (columns["type"] == kind)
        & (columns["offset"] == offset)
    )  # fmt: skip


def _less(columns: Columns, key: RawKey) -> npt.NDArray[np.bool_]:
    objectid, kind, offset = _numbers(key)
    same = columns["objectid"] == objectid
    same_type = same & (columns["type"] == kind)
    return np.asarray(
        (columns["objectid"] < objectid) | (same & (columns["type"] < kind))
        | (same_type & (columns["offset"] < offset))
    )  # fmt: skip


def _numbers(key: RawKey) -> tuple[Any, ...]:
    return np.uint64(key[0]), np.uint8(key[1]), np.uint64(key[2])


def _ascending(columns: Columns) -> Columns:
    """Bring items into order, of equal keys the first; blocks that fit together are in order."""
    order = np.lexsort((columns["offset"], columns["type"], columns["objectid"]))
    columns = columns if (order == np.arange(len(order))).all() else select(columns, order)
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any(
        [columns[name][1:] != columns[name][:-1] for name in ("objectid", "type", "offset")], axis=0
    )
    return columns if is_new.all() else select(columns, is_new)
