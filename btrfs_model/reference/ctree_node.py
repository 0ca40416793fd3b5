# SPDX-License-Identifier: GPL-2.0-only
"""Nodes that change: pointers come and go, full nodes are split, poor ones are merged.

Beside ``native/writer/btree/node.c``.

A node is split before it is full, on the way down to an insertion, so that a parent always has
room. On the way down to a deletion a node with at most a quarter of its pointers is merged with its
neighbours. Who pushes tells whether anything moved; the kernel's functions return 0 for that, and 1
for nothing.
"""

from __future__ import annotations

from btrfs_model.base.codes import Code
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.reference.ctree_ground import Block, Ground, Node, Path, RawKey

KEEP = 8
"""Pointers that a node keeps which gives to its left neighbour and need not become empty."""


def check_sibling_keys(ground: Ground, left: Block, right: Block) -> None:
    """Refuse neighbours whose keys overlap."""
    if len(left) and len(right) and left.key(len(left) - 1) >= right.key(0):
        raise ground.corrupt(Code.BAD_KEY_ORDER, left.bytenr, len(left) - 1)


def check_between(ground: Ground, node: Node, before: int, behind: int, key: RawKey) -> None:
    """Refuse a key that does not sort between the pointers before and behind a slot."""
    if (before and node.key(before - 1) >= key) or (behind < len(node) and node.key(behind) <= key):
        raise ground.corrupt(Code.BAD_KEY_ORDER, node.bytenr, before)


def fixup_low_keys(ground: Ground, path: Path, key: RawKey, level: int) -> None:
    """Tell the parents that the first key of the block at ``level - 1`` is now `key`."""
    while path.nodes[level] is not None:
        node, slot = path.node(level), path.slots[level]
        check_between(ground, node, slot, slot + 1, key)
        node.ptrs[slot] = (key, *node.ptrs[slot][1:])
        node.store()
        if path.slots[level]:
            return
        level += 1


def set_parent_key(parent: Node, slot: int, child: Block) -> None:
    """Give the pointer in a slot the first key of the block that it points at."""
    parent.ptrs[slot] = (child.key(0), *parent.ptrs[slot][1:])
    parent.store()


def insert_ptr(ground: Ground, path: Path, key: RawKey, bytenr: int, slot: int, level: int) -> None:
    """Insert a pointer to a new block into the node of `level`."""
    node = path.node(level)
    if len(node) >= ground.node_ptrs:
        raise ground.corrupt(Code.BAD_NRITEMS, node.bytenr)
    check_between(ground, node, slot, slot, key)
    node.ptrs.insert(slot, (key, bytenr, ground.writer.transid))
    node.store()


def del_ptr(ground: Ground, path: Path, level: int, slot: int) -> None:
    """Delete a pointer; the root of level 1 becomes an empty leaf with its last one."""
    node = path.node(level)
    if len(node) == 1 and not (level == 1 and ground.is_root(node)):
        raise ground.corrupt(Code.BAD_NRITEMS, node.bytenr)
    del node.ptrs[slot]
    node.store()
    if not len(node):
        node.level = 0
        node.view[100] = 0
        ground.set_root(node)
    elif slot == 0:
        fixup_low_keys(ground, path, node.key(0), level + 1)


def insert_new_root(ground: Ground, path: Path, level: int) -> None:
    """Put a root of `level` above what was the root."""
    lower = path.nodes[level - 1]
    assert lower is not None
    if level >= BTRFS_MAX_LEVEL:
        raise ground.corrupt(Code.BAD_LEVEL, lower.bytenr)
    root = ground.make_block(level, lower.key(0), lower.bytenr)
    assert isinstance(root, Node)
    root.ptrs = [(lower.key(0), lower.bytenr, lower.generation)]
    root.store()
    ground.set_root(root)
    path.nodes[level], path.slots[level] = root, 0


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


def follow_ptr(path: Path, level: int, left: Node, place: int) -> None:
    """Let the path go with its pointer, which may have moved to or from the node before.

    `path`: that stands in a node of `level`.
    `level`: the level.
    `left`: the node before.
    `place`: where the pointer is, counted from the start of `left`.
    """
    if place < len(left):
        path.nodes[level] = left
        path.slots[level + 1] -= 1
    else:
        place -= len(left)
    path.slots[level] = place


def push_nodes_for_insert(ground: Ground, path: Path, level: int) -> bool:
    """Give pointers to the left neighbour, or else to the right one, if it is not full."""
    node, parent = path.node(level), path.node(level + 1)
    slot, place = path.slots[level + 1], path.slots[level]
    if slot > 0:
        before = len(ground.read_child(parent, slot - 1))
        if before < ground.node_ptrs - 1:
            left = ground.cow_child(parent, slot - 1, Node)
            if push_node_left(ground, left, node, empty=False):
                set_parent_key(parent, slot, node)
                follow_ptr(path, level, left, before + place)
                return True
    if slot + 1 < len(parent) and len(ground.read_child(parent, slot + 1)) < ground.node_ptrs - 1:
        right = ground.cow_child(parent, slot + 1, Node)
        if balance_node_right(ground, node, right):
            set_parent_key(parent, slot + 1, right)
            if place >= len(node):
                path.nodes[level], path.slots[level + 1] = right, slot + 1
                path.slots[level] = place - len(node)
            return True
    return False


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
    new = ground.make_block(level, node.key(mid), node.bytenr)
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


def promote_child(ground: Ground, path: Path, level: int) -> bool:
    """Make the only child of the root the root."""
    root = path.node(level)
    ground.set_root(ground.own_child(root, 0))
    path.nodes[level] = None
    ground.drop_block(root)
    return True


def remove_node(ground: Ground, path: Path, level: int, slot: int, node: Node) -> None:
    """Remove an empty node of `level` from its parent."""
    del_ptr(ground, path, level + 1, slot)
    ground.drop_block(node)


def give_second_ptr(ground: Ground, node: Node, left: Node | None) -> None:
    """See that no node has one pointer: a deletion below could take it away.

    What the right neighbour had went into the node before, so the left one gives, or takes.
    """
    if left is None or not (
        balance_node_right(ground, left, node) or push_node_left(ground, left, node, empty=True)
    ):
        raise ground.corrupt(Code.BAD_NRITEMS, node.bytenr)


def balance_level(ground: Ground, path: Path, level: int) -> bool:
    """Merge a node with few pointers; False when it was the root and is gone."""
    node, parent = path.node(level), path.parent(level)
    if parent is None:
        return not (len(node) == 1 and promote_child(ground, path, level))
    if len(node) > ground.node_ptrs // 4:
        return True
    slot, place = path.slots[level + 1], path.slots[level]
    left = ground.cow_child(parent, slot - 1, Node) if slot > 0 else None
    right = ground.cow_child(parent, slot + 1, Node) if slot + 1 < len(parent) else None
    if left is not None:
        place += len(left)
        push_node_left(ground, left, node, empty=True)
    if right is not None:
        push_node_left(ground, node, right, empty=True)
        if len(right):
            set_parent_key(parent, slot + 1, right)
        else:
            remove_node(ground, path, level, slot + 1, right)
    if len(node) == 1:
        give_second_ptr(ground, node, left)
    if len(node):
        set_parent_key(parent, slot, node)
    else:
        remove_node(ground, path, level, slot, node)
    if left is not None:
        follow_ptr(path, level, left, place)
    return True
