# SPDX-License-Identifier: GPL-2.0-only
"""What :class:`btrfs_model.volume.tree.Tree` is asked, answered by :mod:`.ctree`.

Beside ``native/tree/tree.c``, ``native/tree/items.c`` and ``native/tree/lookup.c``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume import ctree
from btrfs_model.volume.ctree import Path, RawKey

if TYPE_CHECKING:
    from btrfs_model.volume.tree import Item, Tree


def find(tree: Tree, key: RawKey, find_higher: bool) -> Item | None:
    """Return the first item >= key, or the last <= key."""
    path = Path()
    found = ctree.search_slot_for_read(tree, key, path, find_higher=find_higher)
    return tree.item(path.leaf, path.slots[0]) if found else None


def lookup_path(tree: Tree, directory: RawKey, path: bytes) -> RawKey | None:
    """Return the key of what a path leads to from a directory, or None."""
    location = directory
    for name in path.split(b"/"):
        if name in (b"", b"."):
            continue
        if location[1] != ItemType.INODE_ITEM:
            return None
        entry = tree.lookup(location[0], name)
        if entry is None:
            return None
        location = entry.location
    return location


def child_at(tree: Tree, key: RawKey, level: int) -> int | None:
    """Return the address of the block of a level whose first key is `key`, or None."""
    path = Path(lowest_level=level + 1)
    found = ctree.search_slot(tree, key, path)
    node = path.nodes[level + 1]
    assert node is not None
    return ctree.node_ptr(node, path.slots[level + 1])[0] if found else None


def visit_leaves(tree: Tree, first: RawKey, last: RawKey, reada: ctree.Reada) -> None:
    """Go through the leaves that may hold keys of [first, last]."""
    path = Path(reada=reada)
    more = ctree.search_slot_for_read(tree, first, path, find_higher=True)
    while more and ctree.block_key(path.leaf, ctree.nritems(path.leaf) - 1) <= last:
        more = ctree.next_leaf(tree, path)


def items(
    tree: Tree,
    min_key: RawKey = (0, 0, 0),
    max_key: RawKey = (2**64 - 1, 255, 2**64 - 1),
    *,
    reverse: bool = False,
) -> Iterator[Item]:
    """Iterate over the items with ``min_key <= key <= max_key``, in either direction."""
    path = Path()
    step = ctree.prev_leaf if reverse else ctree.next_leaf
    start = max_key if reverse else min_key
    more = ctree.search_slot_for_read(tree, start, path, find_higher=not reverse)
    while more:
        leaf, at = path.leaf, path.slots[0]
        for slot in range(at, -1, -1) if reverse else range(at, ctree.nritems(leaf)):
            item = tree.item(leaf, slot)
            if item.key < min_key or item.key > max_key:
                return
            yield item
        more = step(tree, path)
