# SPDX-License-Identifier: GPL-2.0-only
"""The containers of a backref walk, with the kernel's orders. Beside ``native/backref/prelim.c``.

A walk gathers *preliminary references* in three trees and takes them out again in descending order
of (level, root, key, parent): the kernel inserts larger elements to the left. What a walk reports,
and in which order, follows from that. The trees are red-black trees as in the kernel, so that the
number of comparisons is the kernel's as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from btrfs_model.base.counters import current


class InodeElem(NamedTuple):
    """A file extent item that refers to a data extent (``struct extent_inode_elem``, 6.12).

    `inum`: inode number.
    `offset`: byte of the file at which the byte of the extent is shown that was asked for.
    `num_bytes`: of the file extent item.
    """

    inum: int
    offset: int
    num_bytes: int


@dataclass(slots=True)
class UlistNode:
    """A value of a :class:`Ulist` and what it carries.

    `val`: address of a tree block, or id of a tree.
    `level`: level of the tree block, as far as the reference says.
    `elems`: of a leaf: its file extent items that refer to the extent.
    """

    val: int
    level: int = 0
    elems: list[InodeElem] = field(default_factory=list)


class Ulist:
    """Numbers without duplicates, in the order in which they were added (``ulist.c``)."""

    def __init__(self) -> None:
        self._nodes: dict[int, UlistNode] = {}
        self._order: list[UlistNode] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[UlistNode]:
        """Iterate; what is added meanwhile comes too."""
        return iter(self._order)

    def values(self) -> list[int]:
        """Return the numbers, in order."""
        return [node.val for node in self._order]

    def add_merge(self, val: int) -> tuple[UlistNode, bool]:
        """Return the node of `val` and whether it is new (``ulist_add_merge()``)."""
        current().count("ulist_add_merge")
        node = self._nodes.get(val)
        if node is not None:
            return node, False
        node = self._nodes[val] = UlistNode(val)
        self._order.append(node)
        return node, True

    def add(self, val: int, level: int = 0) -> None:
        """Add a value that carries nothing (``ulist_add()``)."""
        node, new = self.add_merge(val)
        current().count("ulist_add")
        if new:
            node.level = level


@dataclass(slots=True, eq=False)
class PrelimRef:
    """A reference as the extent tree has it (``struct prelim_ref``).

    `level`: of the tree block that refers; 0 for references to data.
    `root_id`: tree to search, 0 for a direct reference.
    `key`: (objectid, type, offset) to search there.
    `parent`: address of the tree block that refers; 0 as long as it is not known.
    `wanted`: address that is referred to.
    `count`: how many file extent items of this key refer.
    `elems`: those file extent items, once found.
    """

    level: int
    wanted: int
    count: int = 1
    root_id: int = 0
    key: tuple[int, int, int] = (0, 0, 0)
    parent: int = 0
    elems: list[InodeElem] = field(default_factory=list)

    def order(self) -> tuple[int, ...]:
        """Sort key: what ``prelim_ref_compare()`` looks at, in that order."""
        objectid, kind, offset = self.key
        return self.level, self.root_id, kind, objectid, offset, self.parent


@dataclass(slots=True, eq=False)
class _Node:
    ref: PrelimRef
    order: tuple[int, ...]
    up: _Node | None
    red: bool = True
    left: _Node | None = None
    right: _Node | None = None


class PrefTree:
    """References in descending order; equal ones are merged (``struct preftree``)."""

    def __init__(self) -> None:
        self._root: _Node | None = None

    def prelim_ref_insert(self, ref: PrelimRef) -> PrelimRef:
        """Add a reference, or its count and inodes to an equal one.

        Returns the one that is in the tree then.
        """
        current().count("prelim_ref_insert")
        order = ref.order()
        up, left = self._descend(order)
        if up is not None and up.order == order:
            up.ref.elems += ref.elems
            up.ref.count += ref.count
            return up.ref
        node = _Node(ref, order, up)
        if up is None:
            self._root = node
        elif left:
            up.left = node
        else:
            up.right = node
        self._rebalance(node)
        return ref

    def _descend(self, order: tuple[int, ...]) -> tuple[_Node | None, bool]:
        """Return the equal node, or the one below which it belongs and whether to the left."""
        up, node, left = None, self._root, False
        while node is not None:
            current().count("prelim_ref_compare")
            up = node
            if node.order == order:
                break
            left = node.order < order
            node = node.left if left else node.right
        return up, left

    def is_shared_data_backref(self, leaf: int) -> bool:
        """Whether a leaf refers to the data extent directly."""
        current().count("is_shared_data_backref")
        order = PrelimRef(level=0, wanted=0, parent=leaf).order()
        node, _ = self._descend(order)
        return node is not None and node.order == order

    def __iter__(self) -> Iterator[PrelimRef]:
        """Iterate in descending order; nothing may be added meanwhile."""
        stack: list[_Node] = []
        node = self._root
        while stack or node is not None:
            while node is not None:
                stack.append(node)
                node = node.left
            node = stack.pop()
            yield node.ref
            node = node.right

    # ------------------------------------------------------------------ red-black balance ---

    def _rebalance(self, node: _Node) -> None:
        """Restore the rule that no red node has a red child, after a red leaf was added."""
        while (parent := node.up) is not None and parent.red:
            grand = parent.up
            assert grand is not None  # the root is black
            left = parent is grand.left
            uncle = grand.right if left else grand.left
            grand.red = True
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                node = grand
                continue
            if node is (parent.right if left else parent.left):
                self._rotate(parent, to_left=left)
                parent = node
            parent.red = False
            self._rotate(grand, to_left=not left)
            break
        assert self._root is not None
        self._root.red = False

    def _rotate(self, node: _Node, *, to_left: bool) -> None:
        child = node.right if to_left else node.left
        assert child is not None
        inner = child.left if to_left else child.right
        if inner is not None:
            inner.up = node
        child.up = node.up
        if node.up is None:
            self._root = child
        elif node.up.left is node:
            node.up.left = child
        else:
            node.up.right = child
        node.up = child
        if to_left:
            node.right, child.left = inner, node
        else:
            node.left, child.right = inner, node
