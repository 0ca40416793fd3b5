# SPDX-License-Identifier: GPL-2.0-only
"""Items and pointers that move to a neighbour of the same parent: the twin of parts of ``ctree.c``.

The path stands where an item is about to be inserted (or was deleted), and goes with its item. Each
function tells whether it moved anything; the kernel's return 0 for that, and 1 for nothing.
"""

from __future__ import annotations

from btrfs_model.base.codes import Code
from btrfs_model.reference.ctree_ground import Block, Ground, Leaf, Node, Path, RawKey

KEEP = 8
"""Pointers that a node keeps which gives to its left neighbour and need not become empty."""


def check_sibling_keys(ground: Ground, left: Block, right: Block) -> None:
    """Refuse neighbours whose keys overlap."""
    if len(left) and len(right) and left.key(len(left) - 1) >= right.key(0):
        raise ground.corrupt(Code.BAD_KEY_ORDER, left.bytenr, len(left) - 1)


def fixup_low_keys(path: Path, key: RawKey, level: int) -> None:
    """Tell the parents that the first key of the block at ``level - 1`` is now `key`."""
    while path.nodes[level] is not None:
        path.node(level).set_key(path.slots[level], key)
        if path.slots[level]:
            return
        level += 1


def push_leaf_right(
    ground: Ground,
    path: Path,
    minimum: int,
    wanted: int,
    *,
    empty: bool = False,
    min_slot: int = 0,
) -> bool:
    """Move items from the end of the leaf, down to `min_slot`, to the next leaf.

    Parameters
    ----------
    minimum : int
        Bytes that the item to be inserted needs beside those that move.
    wanted : int
        Bytes that the next leaf must have free, else nothing is tried.
    empty : bool
        The leaf may become empty: move as much as fits.
    """
    left, parent, slot = path.leaf, path.parent(0), path.slots[1]
    if parent is None or slot + 1 >= len(parent):
        return False
    sibling = ground.child(parent, slot + 1)
    assert isinstance(sibling, Leaf)
    room = sibling.free()
    if room < wanted:
        return False
    right = ground.own_leaf(parent, slot + 1)
    if not len(left):
        return False
    check_sibling_keys(ground, left, right)
    place = path.slots[0]
    if place == len(left) and not empty:
        # greater than all keys of the leaf: it can be the first item of the next one
        path.nodes[0], path.slots[0], path.slots[1] = right, 0, slot + 1
        return True

    space = minimum if place >= len(left) else 0
    cut = len(left)
    for i in range(len(left) - 1, (0 if empty else max(1, min_slot)) - 1, -1):
        if cut < len(left) and not empty:
            if place > i:
                break
            if place == i and left.free() + 2 * space > room:
                break
        if place == i:
            space += minimum
        if left.size(i) + space > room:
            break
        space += left.size(i)
        cut = i
    if cut == len(left):
        return False

    right.items[:0] = left.items[cut:]
    del left.items[cut:]
    left.store()
    right.store()
    parent.set_key(slot + 1, right.key(0))
    if place >= cut:
        path.nodes[0], path.slots[0], path.slots[1] = right, place - cut, slot + 1
    return True


def push_leaf_left(
    ground: Ground,
    path: Path,
    minimum: int,
    wanted: int,
    *,
    empty: bool = False,
    max_slot: int | None = None,
) -> bool:
    """Move items from the start of the leaf, up to `max_slot`, to the leaf before.

    The parameters are those of :func:`push_leaf_right`.
    """
    right, parent, slot = path.leaf, path.parent(0), path.slots[1]
    if parent is None or slot == 0 or not len(right):
        return False
    sibling = ground.child(parent, slot - 1)
    assert isinstance(sibling, Leaf)
    room = sibling.free()
    if room < wanted:
        return False
    left = ground.own_leaf(parent, slot - 1)
    check_sibling_keys(ground, left, right)

    place, space, cut = path.slots[0], 0, 0
    end = len(right) if empty else len(right) - 1
    for i in range(end if max_slot is None else min(end, max_slot)):
        if cut and not empty:
            if place < i:
                break
            if place == i and right.free() + 2 * space > room:
                break
        if place == i:
            space += minimum
        if right.size(i) + space > room:
            break
        space += right.size(i)
        cut = i + 1
    if not cut:
        return False

    before = len(left)
    left.items += right.items[:cut]
    del right.items[:cut]
    left.store()
    right.store()
    if len(right):
        fixup_low_keys(path, right.key(0), 1)
    if place < cut:
        path.nodes[0], path.slots[0], path.slots[1] = left, before + place, slot - 1
    else:
        path.slots[0] = place - cut
    return True


def push_node_left(ground: Ground, left: Node, right: Node, *, empty: bool) -> bool:
    """Move pointers from the start of `right` to the end of `left`.

    Unless `right` may become empty, it keeps some pointers.
    """
    count = len(right)
    room = ground.node_ptrs - len(left)
    if not room or (not empty and count <= KEEP):
        return False
    if empty:
        moved = min(count, room)
        if moved < count and count - moved < KEEP:
            if moved <= KEEP:
                return False
            moved -= KEEP
    else:
        moved = min(count - KEEP, room)
    check_sibling_keys(ground, left, right)
    left.ptrs += right.ptrs[:moved]
    del right.ptrs[:moved]
    left.store()
    right.store()
    return True


def follow_pointer(path: Path, level: int, left: Node, place: int) -> None:
    """Let the path go with its pointer, which may have moved to or from the node before.

    Parameters
    ----------
    path : Path
        That stands in a node of `level`.
    level : int
        The level.
    left : Node
        The node before.
    place : int
        Where the pointer is, counted from the start of `left`.
    """
    if place < len(left):
        path.nodes[level] = left
        path.slots[level + 1] -= 1
    else:
        place -= len(left)
    path.slots[level] = place


def balance_node_right(ground: Ground, left: Node, right: Node) -> bool:
    """Move up to half of the pointers of `left`, from its end, to the start of `right`."""
    count = len(left)
    room = ground.node_ptrs - len(right)
    if not room or count < 4:
        return False
    cut = count - min(room, count // 2 + 1)
    check_sibling_keys(ground, left, right)
    right.ptrs[:0] = left.ptrs[cut:]
    del left.ptrs[cut:]
    left.store()
    right.store()
    return True
