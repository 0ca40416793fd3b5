# SPDX-License-Identifier: GPL-2.0-only
"""Comparison of two trees: ``btrfs_compare_trees()`` of the kernel's send.c.

Both trees are walked in key order. Where both walks stand on pointers to the same block (same
address, same generation) everything below is shared, and both step over it::

    left   [ a | b | c ]          a: shared, skipped
    right  [ a | b'| c ]          b, b': descend into both; c: shared, skipped

so the cost is that of the parts that differ, not of the whole. The same in C is
``native/tree/compare.c``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from btrfs_model.base.counters import current
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import Expect, image_block
from btrfs_model.volume.compare import Change, Difference

if TYPE_CHECKING:
    from btrfs_model.volume.tree import Tree


def compare_trees(left: Tree, right: Tree) -> Iterator[Difference]:
    """Do what :func:`btrfs_model.volume.compare.compare_trees` does."""
    sides = Side(left), Side(right)
    for change, key in compare_sides(*sides):
        places = [side.place for side in sides]
        yield Difference.of(change, key, *places)


class Side:
    """The position of the walk in one tree: a level, and a slot at each level from there up.

    `tree`: the tree.
    `newer_than`: read children of a later generation ahead when descending.
    """

    def __init__(self, tree: Tree, newer_than: int | None = None) -> None:
        self.tree = tree
        self.newer_than = newer_than
        self.path = ctree.Path()
        self.level = tree.level
        expect = Expect(tree.objectid, tree.generation, tree.level)
        self.path.nodes[self.level] = image_block(tree.image, tree.bytenr, expect)
        self.ended = not ctree.nritems(self.block)

    @property
    def block(self) -> memoryview:
        """The node or leaf that the walk stands in."""
        block = self.path.nodes[self.level]
        assert block is not None
        return block

    @property
    def slot(self) -> int:
        """The slot in it."""
        return self.path.slots[self.level]

    @property
    def key(self) -> tuple[int, int, int]:
        """The key in that slot."""
        return ctree.block_key(self.block, self.slot)

    @property
    def place(self) -> tuple[int, int]:
        """Address of the block, and the slot."""
        return int.from_bytes(self.block[48:56], "little"), self.slot

    def advance(self, *, allow_down: bool = True) -> None:
        """Go down to the first child, or on to the next slot (``tree_advance()``)."""
        current().count("tree_advance")
        if self.level and allow_down:
            self._move_down()
        else:
            self._move_next_or_upnext()

    def _move_down(self) -> None:
        node, slot = self.block, self.slot
        child = ctree.read_node_slot(self.tree, node, slot, self.newer_than)
        ctree.check_last_key(self.tree, self.path, child)
        self.level -= 1
        self.path.nodes[self.level] = child
        self.path.slots[self.level] = 0

    def _move_next_or_upnext(self) -> None:
        self.path.slots[self.level] += 1
        while self.slot >= ctree.nritems(self.block):
            if self.level == self.tree.level:
                self.ended = True
                return
            self.level += 1
            self.path.slots[self.level] += 1


def compare_sides(left: Side, right: Side) -> Iterator[tuple[Change, tuple[int, int, int]]]:
    """Walk two trees side by side; at each difference the sides stand on it."""
    while not (left.ended and right.ended):
        if left.ended or right.ended:
            rest = right if left.ended else left
            if rest.level == 0:
                yield Change.DELETED if left.ended else Change.NEW, rest.key
            rest.advance()
        elif left.level != right.level:
            (left if left.level > right.level else right).advance()
        elif left.key != right.key:
            before = left if left.key < right.key else right
            if before.level == 0:
                yield Change.NEW if before is left else Change.DELETED, before.key
            before.advance()
        elif left.level == 0:
            same = ctree.item_data(left.block, left.slot) == ctree.item_data(
                right.block, right.slot
            )
            yield Change.SAME if same else Change.CHANGED, left.key
            left.advance()
            right.advance()
        else:
            # a shared block is not entered
            shared = ctree.node_ptr(left.block, left.slot) == ctree.node_ptr(
                right.block, right.slot
            )
            current().count("subtrees_skipped", shared)
            left.advance(allow_down=not shared)
            right.advance(allow_down=not shared)
