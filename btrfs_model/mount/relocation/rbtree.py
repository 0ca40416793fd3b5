# SPDX-License-Identifier: GPL-2.0-only
"""The order in which the kernel goes through blocks that it has put into a red-black tree."""

from __future__ import annotations

from collections.abc import Iterable


class _Node:
    __slots__ = ("key", "parent", "red", "sides")

    def __init__(self, key: int, parent: _Node | None) -> None:
        self.key, self.parent, self.red = key, parent, True
        self.sides: list[_Node | None] = [None, None]


def postorder(keys: Iterable[int]) -> list[int]:
    """Return keys with those below each other first, as they were put in one after another.

    (``rb_insert_color()``, ``rbtree_postorder_for_each_entry_safe()``.)
    """
    root: _Node | None = None
    for key in keys:
        root = _insert(root, key)
    found: list[int] = []
    waiting = [(root, False)]
    while waiting:
        node, seen = waiting.pop()
        if node is None:
            continue
        if seen:
            found.append(node.key)
        else:
            waiting += [(node, True), (node.sides[1], False), (node.sides[0], False)]
    return found


def _insert(root: _Node | None, key: int) -> _Node:
    parent, at = None, root
    while at is not None:
        if at.key == key:
            assert root is not None
            return root
        parent, at = at, at.sides[key > at.key]
    node = _Node(key, parent)
    if parent is not None:
        parent.sides[key > parent.key] = node
    return _balanced(root or node, node)


def _balanced(root: _Node, node: _Node) -> _Node:
    """Colour and rotate from a new node up; returns the root."""
    while (parent := node.parent) is not None and parent.red and parent.parent is not None:
        above = parent.parent
        side = above.sides[1] is parent
        uncle = above.sides[not side]
        if uncle is not None and uncle.red:
            parent.red = uncle.red = False
            above.red = True
            node = above
            continue
        if parent.sides[not side] is node:
            root = _rotate(root, parent, side)
            parent = node
        parent.red, above.red = False, True
        root = _rotate(root, above, not side)
        break
    root.red = False
    return root


def _rotate(root: _Node, node: _Node, side: bool) -> _Node:
    """Turn a node down to a side, so that its child on the other one takes its place."""
    child = node.sides[not side]
    assert child is not None
    inner = node.sides[not side] = child.sides[side]
    if inner is not None:
        inner.parent = node
    child.parent = node.parent
    if node.parent is None:
        root = child
    else:
        node.parent.sides[node.parent.sides[1] is node] = child
    child.sides[side], node.parent = node, child
    return root
