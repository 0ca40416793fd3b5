# SPDX-License-Identifier: GPL-2.0-only
"""Comparison of two trees: ``btrfs_compare_trees()`` of the kernel's send.c.

Both trees are walked in key order. Where both walks stand on pointers to the same block (same
address, same generation) everything below is shared, and both step over it::

    left   [ a | b | c ]          a: shared, skipped
    right  [ a | b'| c ]          b, b': descend into both; c: shared, skipped

so the cost is that of the parts that differ, not of the whole. The plain Python here is the twin of
``native/compare.c``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from btrfs_model.blocks import Expect, read_block
from btrfs_model.btree import search
from btrfs_model.counters import current
from btrfs_model.errors import new_fault, raise_fault
from btrfs_model.kernels import ffi, lib, use_python
from btrfs_model.ondisk.keys import Key

if TYPE_CHECKING:
    from btrfs_model.btree.tree import Tree

__all__ = ["Change", "Difference", "compare_trees"]

_BATCH = 1024


class Change(IntEnum):
    """What a comparison says of a key; SAME where equal items lie in leaves that are not shared."""

    NEW = lib.BM_CHANGE_NEW
    DELETED = lib.BM_CHANGE_DELETED
    CHANGED = lib.BM_CHANGE_CHANGED
    SAME = lib.BM_CHANGE_SAME


class Difference(NamedTuple):
    """A key that one tree or both have outside of shared subtrees.

    Attributes
    ----------
    change : Change
        NEW: only the left tree has it; DELETED: only the right.
    key : Key
        objectid, type, offset.
    left, right : tuple of int or None
        Address of the leaf and slot in it, on each side.
    """

    change: Change
    key: Key
    left: tuple[int, int] | None
    right: tuple[int, int] | None


def compare_trees(left: Tree, right: Tree) -> Iterator[Difference]:
    """Iterate over the differences of two trees of one image, in key order.

    Parameters
    ----------
    left, right : Tree
        For send: the snapshot sent and its parent.

    Yields
    ------
    Difference
        SAME ones included, as the kernel reports them to its callback.

    Raises
    ------
    CorruptImageError
        When a block of either tree cannot be read.
    """
    if use_python():
        yield from _compare_twin(left, right)
        return
    fault = new_fault()
    handle = lib.bm_compare_create(left.root(), right.root(), fault)
    if not handle:
        raise_fault(left.image.path, fault)
    handle = ffi.gc(handle, lib.bm_compare_destroy)
    rows = ffi.new("struct bm_difference[]", _BATCH)
    while True:
        left.image.count_here()
        count = lib.bm_compare_next(handle, rows, _BATCH, fault)
        if count < 0:
            raise_fault(left.image.path, fault)
        if not count:
            return
        for row in rows[0:count]:
            change = Change(row.change)
            yield Difference(
                change,
                Key(row.key.objectid, row.key.type, row.key.offset),
                None if change == Change.DELETED else (row.left_block, row.left_slot),
                None if change == Change.NEW else (row.right_block, row.right_slot),
            )


class _Side:
    """The position of the walk in one tree: a level, and a slot at each level from there up."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.path = search.Path()
        self.level = tree.level
        expect = Expect(tree.objectid, tree.generation, tree.level)
        self.path.nodes[self.level] = read_block(tree.image, tree.bytenr, expect)
        self.ended = not search.nritems(self.block)

    @property
    def block(self) -> memoryview:
        block = self.path.nodes[self.level]
        assert block is not None
        return block

    @property
    def slot(self) -> int:
        return self.path.slots[self.level]

    @property
    def key(self) -> tuple[int, int, int]:
        return search.key_at(self.block, self.slot)

    @property
    def place(self) -> tuple[int, int]:
        return int.from_bytes(self.block[48:56], "little"), self.slot

    def descend(self) -> None:
        """Go down to the first child, or on where there is none (``tree_advance()``)."""
        if self.level == 0:
            self.step()
            return
        child, _ = search._read_child(self.tree, self.path, self.level, self.slot, 0)
        self.level -= 1
        self.path.nodes[self.level] = child
        self.path.slots[self.level] = 0

    def step(self) -> None:
        """Go to the next slot, upwards where a node ends."""
        self.path.slots[self.level] += 1
        while self.slot >= search.nritems(self.block):
            if self.level == self.tree.level:
                self.ended = True
                return
            self.level += 1
            self.path.slots[self.level] += 1


def _compare_twin(left_tree: Tree, right_tree: Tree) -> Iterator[Difference]:
    left, right = _Side(left_tree), _Side(right_tree)
    while not (left.ended and right.ended):
        if left.ended or right.ended:
            rest = right if left.ended else left
            if rest.level == 0:
                change = Change.DELETED if left.ended else Change.NEW
                yield _difference(change, rest.key, left, right)
            rest.descend()
        elif left.level != right.level:
            (left if left.level > right.level else right).descend()
        elif left.key != right.key:
            before = left if left.key < right.key else right
            if before.level == 0:
                change = Change.NEW if before is left else Change.DELETED
                yield _difference(change, before.key, left, right)
            before.descend()
        elif left.level == 0:
            same = search.payload_at(left.block, left.slot) == search.payload_at(
                right.block, right.slot
            )
            yield _difference(Change.SAME if same else Change.CHANGED, left.key, left, right)
            left.step()
            right.step()
        elif search.pointer_at(left.block, left.slot) == search.pointer_at(right.block, right.slot):
            current().count("subtrees_skipped")
            left.step()
            right.step()
        else:
            left.descend()
            right.descend()


def _difference(change: Change, key: tuple[int, int, int], left: _Side, right: _Side) -> Difference:
    return Difference(
        change,
        Key(*key),
        None if change == Change.DELETED else left.place,
        None if change == Change.NEW else right.place,
    )
