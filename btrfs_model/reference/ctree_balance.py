# SPDX-License-Identifier: GPL-2.0-only
"""What a deletion leaves behind: the twin of ``balance_level()`` and ``btrfs_del_items()``.

A leaf that is less than a third full is emptied into its neighbours if they have the room, before
Linux 5.18 also in part; a node with at most a quarter of its pointers is merged with them on the
way down, before anything below it is deleted.
"""

from __future__ import annotations

import errno

from btrfs_model.base.codes import Code
from btrfs_model.reference.ctree_ground import Block, Ground, Leaf, Node, Path
from btrfs_model.reference.ctree_push import (
    balance_node_right,
    fixup_low_keys,
    follow_pointer,
    push_leaf_left,
    push_leaf_right,
    push_node_left,
)


def balance_level(ground: Ground, path: Path, level: int) -> bool:
    """Merge a node with few pointers; False when it was the root and is gone."""
    node, parent = path.node(level), path.parent(level)
    if parent is None:
        return not (len(node) == 1 and promote_child(ground, path, level))
    if len(node) > ground.node_ptrs // 4:
        return True
    slot, place = path.slots[level + 1], path.slots[level]
    left = ground.own_node(parent, slot - 1) if slot > 0 else None
    right = ground.own_node(parent, slot + 1) if slot + 1 < len(parent) else None
    if left is not None:
        place += len(left)
        push_node_left(ground, left, node, empty=True)
    if right is not None:
        push_node_left(ground, node, right, empty=True)
        if len(right):
            parent.set_key(slot + 1, right.key(0))
        else:
            remove(ground, path, level + 1, slot + 1, right)
    if len(node) == 1:
        give_second_pointer(ground, node, left)
    if len(node):
        parent.set_key(slot, node.key(0))
    else:
        remove(ground, path, level + 1, slot, node)
    if left is not None:
        follow_pointer(path, level, left, place)
    return True


def promote_child(ground: Ground, path: Path, level: int) -> bool:
    """Make the only child of the root the root."""
    root = path.node(level)
    ground.set_root(ground.own_child(root, 0))
    path.nodes[level] = None
    ground.drop(root)
    return True


def give_second_pointer(ground: Ground, node: Node, left: Node | None) -> None:
    """See that no node has one pointer: a deletion below could take it away.

    What the right neighbour had went into the node before, so the left one gives, or takes.
    """
    if left is None or not (
        balance_node_right(ground, left, node) or push_node_left(ground, left, node, empty=True)
    ):
        raise ground.corrupt(Code.BAD_NRITEMS, node.bytenr)


def remove(ground: Ground, path: Path, level: int, slot: int, block: Block) -> None:
    """Remove an empty block from its parent at `level`."""
    del_ptr(ground, path, level, slot)
    ground.drop(block)


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
        fixup_low_keys(path, node.key(0), level + 1)


def del_items(ground: Ground, path: Path, slot: int, count: int) -> None:
    """Delete items of the leaf of the path."""
    leaf = path.leaf
    if not 0 < count <= len(leaf) - slot:
        raise ground.error(errno.ENOENT)
    del leaf.items[slot : slot + count]
    leaf.store()
    if not len(leaf):
        if path.parent(0) is not None:
            remove(ground, path, 1, path.slots[1], leaf)
        return
    if slot == 0:
        fixup_low_keys(path, leaf.key(0), 1)
    if leaf.used() < ground.leaf_size // 3:
        empty_leaf(ground, path, leaf)


def empty_leaf(ground: Ground, path: Path, leaf: Leaf) -> None:
    """Push what is left to the left as far as it goes, and the rest to the right or nowhere."""
    slot = path.slots[1]
    lazy = ground.writer.balances_lazily
    push_leaf_left(ground, path, not lazy, leaf.size(0) if lazy else 1, empty=True)
    if path.nodes[0] is leaf and len(leaf):
        push_leaf_right(ground, path, not lazy, leaf.used() if lazy else 1, empty=True)
    if not len(leaf):
        path.slots[1] = slot
        remove(ground, path, 1, slot, leaf)
