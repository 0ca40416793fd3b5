# SPDX-License-Identifier: GPL-2.0-only
"""Room for what is to be inserted: the twin of the splits of ``ctree.c``.

A full leaf first gives to its neighbours (:mod:`.ctree_push`); if that is not enough it is split,
in the middle when the new item fits into its half, else where the new item goes::

    [ a b c d e f ]  + x after c       [ a b c ] [ d e f ]       x fits into one half
                                       [ a b c ] [ x ] ...       it does not: split at its place

Nodes are split before they are full, on the way down, so that a parent always has room.
"""

from __future__ import annotations

import errno

from btrfs_model.base.codes import Code
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.reference.ctree_ground import Ground, Leaf, Node, Path, RawKey
from btrfs_model.reference.ctree_push import (
    balance_node_right,
    fixup_low_keys,
    follow_pointer,
    push_leaf_left,
    push_leaf_right,
    push_node_left,
)

# ------------------------------------------------------------------------------------ leaves --


def split_leaf(ground: Ground, path: Path, key: RawKey, size: int, *, extend: bool) -> None:
    """Make room for `size` bytes where the path stands.

    Parameters
    ----------
    key : RawKey
        Of the item to be inserted.
    size : int
        Bytes, the header of a new item included.
    extend : bool
        The item at the path grows, no item is inserted.

    Raises
    ------
    OSError
        EOVERFLOW when no leaf can hold it.
    """
    total = size + (path.leaf.size(path.slots[0]) if extend else 0)
    if total > ground.leaf_size:
        raise ground.error(errno.EOVERFLOW)
    if path.parent(0) is None:
        insert_new_root(ground, path, 1)
    else:
        push_to_neighbours(ground, path, size)
        if path.leaf.free() >= size:
            return
    pushed = False
    while True:
        mid, enough = split_place(ground, path, size, extend=extend)
        if mid is None:
            split_for_new_item(ground, path, key)
            return
        if not enough and not pushed:
            # two splits would be needed, or none if the neighbours take enough
            push_for_double_split(ground, path, size)
            pushed = True
            if path.leaf.free() >= size:
                return
            continue
        copy_for_split(ground, path, mid)
        if enough:
            return


def push_to_neighbours(ground: Ground, path: Path, size: int) -> None:
    """Try the next leaf, and if nothing went there the one before."""
    leaf, slot = path.leaf, path.slots[0]
    needed = size - (leaf.free() if slot < len(leaf) else 0)
    if not push_leaf_right(ground, path, needed, needed):
        needed = size - (leaf.free() if slot > 0 else 0)
        push_leaf_left(ground, path, needed, needed)


def split_place(ground: Ground, path: Path, size: int, *, extend: bool) -> tuple[int | None, bool]:
    """Return where to split, and whether that is enough.

    None stands for a new leaf of its own for the new item.
    """
    leaf, slot = path.leaf, path.slots[0]
    mid = (len(leaf) + 1) // 2
    if mid <= slot:
        if len(leaf) > 1 and leaf.used(mid) + size <= ground.leaf_size:
            return mid, True
        if slot == len(leaf):
            return None, True
    else:
        if leaf.used(0, mid) + size <= ground.leaf_size:
            return mid, True
        if slot == 0:
            return (1 if extend else None), True
    return slot, leaf.used(slot) + size <= ground.leaf_size


def push_for_double_split(ground: Ground, path: Path, size: int) -> None:
    """Try to get the place of the new item to the start or the end of a leaf."""
    leaf, slot = path.leaf, path.slots[0]
    needed = size - (leaf.free() if slot < len(leaf) else 0)
    push_leaf_right(ground, path, 1, needed, min_slot=slot)
    leaf, slot = path.leaf, path.slots[0]
    if slot in (0, len(leaf)) or leaf.free() >= size:
        return
    push_leaf_left(ground, path, 1, size - leaf.free(), max_slot=slot)


def split_for_new_item(ground: Ground, path: Path, key: RawKey) -> None:
    """Make an empty leaf behind the present one, or before it when the path is at its start."""
    new = ground.make(0, key, path.leaf.bytenr)
    slot = path.slots[1] + (1 if path.slots[0] else 0)
    insert_ptr(ground, path, key, new.bytenr, slot, 1)
    path.nodes[0], path.slots[0], path.slots[1] = new, 0, slot
    if slot == 0:
        fixup_low_keys(path, key, 1)


def copy_for_split(ground: Ground, path: Path, mid: int) -> None:
    """Move the items from `mid` on to a new leaf behind."""
    leaf = path.leaf
    new = ground.make(0, leaf.key(mid), leaf.bytenr)
    assert isinstance(new, Leaf)
    new.items = leaf.items[mid:]
    del leaf.items[mid:]
    new.store()
    leaf.store()
    insert_ptr(ground, path, new.key(0), new.bytenr, path.slots[1] + 1, 1)
    if path.slots[0] >= mid:
        path.nodes[0] = new
        path.slots[0] -= mid
        path.slots[1] += 1


# ------------------------------------------------------------------------------------- nodes --


def insert_new_root(ground: Ground, path: Path, level: int) -> None:
    """Put a root of `level` above what was the root."""
    lower = path.nodes[level - 1]
    assert lower is not None
    if level >= BTRFS_MAX_LEVEL:
        raise ground.corrupt(Code.BAD_LEVEL, lower.bytenr)
    root = ground.make(level, lower.key(0), lower.bytenr)
    assert isinstance(root, Node)
    root.ptrs = [(lower.key(0), lower.bytenr, lower.generation)]
    root.store()
    ground.set_root(root)
    path.nodes[level], path.slots[level] = root, 0


def insert_ptr(ground: Ground, path: Path, key: RawKey, bytenr: int, slot: int, level: int) -> None:
    """Insert a pointer to a new block into the node of `level`."""
    node = path.node(level)
    if len(node) >= ground.node_ptrs:
        raise ground.corrupt(Code.BAD_NRITEMS, node.bytenr)
    node.ptrs.insert(slot, (key, bytenr, ground.writer.transid))
    node.store()


def split_node(ground: Ground, path: Path, level: int) -> None:
    """Make room in a node that is nearly full."""
    if ground.is_root(path.node(level)):
        insert_new_root(ground, path, level + 1)
    elif (
        push_nodes_for_insert(ground, path, level) and len(path.node(level)) < ground.node_ptrs - 3
    ):
        return
    node = path.node(level)
    mid = (len(node) + 1) // 2
    new = ground.make(level, node.key(mid), node.bytenr)
    assert isinstance(new, Node)
    new.ptrs = node.ptrs[mid:]
    del node.ptrs[mid:]
    new.store()
    node.store()
    insert_ptr(ground, path, new.key(0), new.bytenr, path.slots[level + 1] + 1, level + 1)
    if path.slots[level] >= mid:
        path.nodes[level] = new
        path.slots[level] -= mid
        path.slots[level + 1] += 1


def push_nodes_for_insert(ground: Ground, path: Path, level: int) -> bool:
    """Give pointers to the left neighbour, or else to the right one, if it is not full."""
    node, parent = path.node(level), path.node(level + 1)
    slot, place = path.slots[level + 1], path.slots[level]
    if slot > 0:
        before = len(ground.child(parent, slot - 1))
        if before < ground.node_ptrs - 1:
            left = ground.own_node(parent, slot - 1)
            if push_node_left(ground, left, node, empty=False):
                parent.set_key(slot, node.key(0))
                follow_pointer(path, level, left, before + place)
                return True
    if slot + 1 < len(parent) and len(ground.child(parent, slot + 1)) < ground.node_ptrs - 1:
        right = ground.own_node(parent, slot + 1)
        if balance_node_right(ground, node, right):
            parent.set_key(slot + 1, right.key(0))
            if place >= len(node):
                path.nodes[level], path.slots[level + 1] = right, slot + 1
                path.slots[level] = place - len(node)
            return True
    return False
