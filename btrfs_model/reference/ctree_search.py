# SPDX-License-Identifier: GPL-2.0-only
"""Searching a tree that is about to change.

Beside ``native/writer/btree/search.c`` and ``native/tree/tree.c``.

The search knows what is coming: for an insertion it splits nodes on the way that are nearly full
and makes room in the leaf; for a deletion it merges nodes that are nearly empty. Every block of the
path becomes one of the running transaction.
"""

from __future__ import annotations

from bisect import bisect_left

from btrfs_model.base.counters import current
from btrfs_model.reference.ctree_ground import Block, Ground, Node, Path, RawKey
from btrfs_model.reference.ctree_leaf import split_leaf
from btrfs_model.reference.ctree_node import balance_level, split_node
from btrfs_model.volume.blocks import ITEM


def bin_search(block: Block, key: RawKey) -> tuple[int, bool]:
    """Return the slot of the first key that is not less than `key`, and whether it is equal."""
    slot = bisect_left(range(len(block)), key, key=block.key)
    return slot, slot < len(block) and block.key(slot) == key


def upper_bound(path: Path) -> RawKey | None:
    """Return the key that all keys of the leaf are below, None in the last leaf."""
    level = 1
    while path.nodes[level] is not None:
        if path.slots[level] + 1 < len(path.node(level)):
            return path.node(level).key(path.slots[level] + 1)
        level += 1
    return None


def setup_nodes_for_search(
    ground: Ground, path: Path, level: int, ins_len: int, for_split: bool
) -> bool:
    """Split or merge the node of a level before that is needed; False when it is gone."""
    count = len(path.node(level))
    if ins_len > 0 or for_split:
        if count >= ground.node_ptrs - 3:
            split_node(ground, path, level)
    elif ins_len < 0 and count < ground.node_ptrs // 2:
        return balance_level(ground, path, level)
    return True


def search_leaf(ground: Ground, path: Path, key: RawKey, ins_len: int, for_extension: bool) -> bool:
    """Find the place in the leaf and make room there; returns whether the key is there."""
    path.slots[0], found = bin_search(path.leaf, key)
    # without a new item there is no header to make room for
    if found and not for_extension and ins_len > 0:
        ins_len -= ITEM.size
    if ins_len > path.leaf.free():
        split_leaf(ground, path, key, ins_len, extend=found)
    return found


def search_slot(
    ground: Ground,
    key: RawKey,
    ins_len: int = 0,
    *,
    for_extension: bool = False,
    for_split: bool = False,
) -> tuple[Path, bool]:
    """Search a tree that is about to change (``btrfs_search_slot()``).

    `key`: sought.
    `ins_len`: bytes to make room for, an item's header included; -1 before a deletion.
    `for_extension`: the item is to grow by `ins_len`.
    `for_split`: split nodes as for an insertion, but leave the leaf alone.
    Returns `path`: to the item, or to where it would be inserted; all its blocks may be written to.
    Returns `found`: whether the key is there.
    """
    current().count("btrfs_search_slot")
    restarted = False
    while True:
        path = Path()
        block = ground.own_root()
        small = block.level == 1
        while isinstance(block, Node):
            level = block.level
            slot, found = bin_search(block, key)
            path.nodes[level] = block
            path.slots[level] = slot if found or slot == 0 else slot - 1
            if not setup_nodes_for_search(ground, path, level, ins_len, for_split):
                break  # the root is gone: start again
            if (
                small and not restarted and ins_len > 0 and path.slots[1] == 0
                and ground.force_cow
            ):  # fmt: skip
                restarted = True
                break  # for the lock to change the root's first key; the root is copied again
            current().count("read_block_for_search")
            node, slot = path.node(level), path.slots[level]
            ground.read_child(node, slot)
            block = ground.own_child(node, slot)
        else:
            path.nodes[0] = block
            return path, search_leaf(ground, path, key, ins_len, for_extension)
