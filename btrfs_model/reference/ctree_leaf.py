# SPDX-License-Identifier: GPL-2.0-only
"""Leaves that change: items come and go; a full leaf gives or is split, a poor one is emptied.

Beside ``native/writer/btree/leaf.c`` and ``native/writer/writer.h``.

A full leaf first gives to its neighbours; if that is not enough it is split, in the middle when the
new item fits into its half, else where the new item goes::

    [ a b c d e f ]  + x after c       [ a b c ] [ d e f ]       x fits into one half
                                       [ a b c ] [ x ] ...       it does not: split at its place

A leaf that is less than a third full is emptied into its neighbours if they have the room, before
Linux 5.18 also in part. The path stands where an item is about to be inserted (or was deleted), and
goes with its item.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from btrfs_model.base.counters import current
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.reference.ctree_ground import Ground, Leaf, Path, RawKey
from btrfs_model.reference.ctree_node import (
    check_sibling_keys,
    del_ptr,
    fixup_low_keys,
    insert_new_root,
    insert_ptr,
    set_parent_key,
)
from btrfs_model.volume.blocks import ITEM

_TREE_LOG: Final = int(ObjectId.TREE_LOG) % 2**64
_LOG_CACHES: Final = {
    "log_leaves_uncached": 192, "log_leaves_uncached_16m": 96, "log_leaves_uncached_8m": 48,
}  # fmt: skip


def count_copied(ground: Ground, items: int, nbytes: int) -> None:
    """Count what is copied into a log."""
    if ground.owner == _TREE_LOG:
        current().count("log_items_copied", items)
        current().count("log_bytes_copied", nbytes)


def count_entered(ground: Ground, bytenr: int) -> None:
    """Count a leaf of a log that an insertion goes to: as another one, and as one far away."""
    writer = ground.writer
    current().count("log_leaves_entered", bytenr != writer.log_leaf)
    for name, leaves in _LOG_CACHES.items():
        place = name, bytenr // ground.image.nodesize % leaves
        current().count(name, bytenr != writer.log_cache.get(place))
        writer.log_cache[place] = bytenr
    writer.log_leaf = bytenr


def setup_items_for_insert(
    ground: Ground, path: Path, items: Sequence[tuple[RawKey, bytes]]
) -> None:
    """Insert items where a search made room."""
    leaf, slot = path.leaf, path.slots[0]
    current().count("setup_items_for_insert")
    count_copied(ground, len(items), sum(ITEM.size + len(data) for _, data in items))
    if ground.owner == _TREE_LOG:
        count_entered(ground, leaf.bytenr)
    if slot == 0:
        fixup_low_keys(ground, path, items[0][0], 1)
    leaf.items[slot:slot] = items
    leaf.store()


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

    `minimum`: bytes that the item to be inserted needs beside those that move.
    `wanted`: bytes that the next leaf must have free, else nothing is tried.
    `empty`: the leaf may become empty: move as much as fits.
    """
    left, parent, slot = path.leaf, path.parent(0), path.slots[1]
    if parent is None or slot + 1 >= len(parent):
        return False
    sibling = ground.read_child(parent, slot + 1)
    assert isinstance(sibling, Leaf)
    room = sibling.free()
    if room < wanted:
        return False
    right = ground.cow_child(parent, slot + 1, Leaf)
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
    set_parent_key(parent, slot + 1, right)
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
    sibling = ground.read_child(parent, slot - 1)
    assert isinstance(sibling, Leaf)
    room = sibling.free()
    if room < wanted:
        return False
    left = ground.cow_child(parent, slot - 1, Leaf)
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
        fixup_low_keys(ground, path, right.key(0), 1)
    if place < cut:
        path.nodes[0], path.slots[0], path.slots[1] = left, before + place, slot - 1
    else:
        path.slots[0] = place - cut
    return True


def push_for_double_split(ground: Ground, path: Path, size: int) -> None:
    """Try to get the place of the new item to the start or the end of a leaf."""
    leaf, slot = path.leaf, path.slots[0]
    needed = size - (leaf.free() if slot < len(leaf) else 0)
    push_leaf_right(ground, path, 1, needed, min_slot=slot)
    leaf, slot = path.leaf, path.slots[0]
    if slot in (0, len(leaf)) or leaf.free() >= size:
        return
    push_leaf_left(ground, path, 1, size - leaf.free(), max_slot=slot)


def push_to_neighbours(ground: Ground, path: Path, size: int) -> None:
    """Try the next leaf, and if nothing went there the one before."""
    leaf, slot = path.leaf, path.slots[0]
    needed = size - (leaf.free() if slot < len(leaf) else 0)
    if not push_leaf_right(ground, path, needed, needed):
        needed = size - (leaf.free() if slot > 0 else 0)
        push_leaf_left(ground, path, needed, needed)


def choose_split(ground: Ground, path: Path, size: int, *, extend: bool) -> tuple[int | None, bool]:
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


def split_for_new_item(ground: Ground, path: Path, key: RawKey) -> None:
    """Make an empty leaf behind the present one, or before it when the path is at its start."""
    new = ground.make_block(0, key, path.leaf.bytenr)
    slot = path.slots[1] + (1 if path.slots[0] else 0)
    insert_ptr(ground, path, key, new.bytenr, slot, 1)
    path.nodes[0], path.slots[0], path.slots[1] = new, 0, slot
    if slot == 0:
        fixup_low_keys(ground, path, key, 1)


def copy_for_split(ground: Ground, path: Path, mid: int) -> None:
    """Move the items from `mid` on to a new leaf behind."""
    leaf = path.leaf
    new = ground.make_block(0, leaf.key(mid), leaf.bytenr)
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


def split_leaf(ground: Ground, path: Path, key: RawKey, size: int, *, extend: bool) -> None:
    """Make room for `size` bytes where the path stands.

    `key`: of the item to be inserted.
    `size`: bytes, the header of a new item included.
    `extend`: the item at the path grows, no item is inserted.
    Raises OSError: EOVERFLOW when no leaf can hold it.
    """
    total = size + (path.leaf.size(path.slots[0]) if extend else 0)
    if total > ground.leaf_size:
        raise ground.errno(errno.EOVERFLOW)
    if path.parent(0) is None:
        insert_new_root(ground, path, 1)
    else:
        push_to_neighbours(ground, path, size)
        if path.leaf.free() >= size:
            return
    pushed = False
    while True:
        mid, enough = choose_split(ground, path, size, extend=extend)
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


def del_leaf(ground: Ground, path: Path, leaf: Leaf) -> None:
    """Remove an empty leaf from its parent."""
    del_ptr(ground, path, 1, path.slots[1])
    ground.drop_block(leaf)


def empty_leaf(ground: Ground, path: Path, leaf: Leaf) -> None:
    """Push what is left to the left as far as it goes, and the rest to the right or nowhere."""
    slot = path.slots[1]
    lazy = ground.writer.balances_lazily
    push_leaf_left(ground, path, not lazy, leaf.size(0) if lazy else 1, empty=True)
    if path.nodes[0] is leaf and len(leaf):
        push_leaf_right(ground, path, not lazy, leaf.used() if lazy else 1, empty=True)
    if not len(leaf):
        path.slots[1] = slot
        del_leaf(ground, path, leaf)


def del_items(ground: Ground, path: Path, slot: int, count: int) -> None:
    """Delete items of the leaf of the path."""
    leaf = path.leaf
    if not 0 < count <= len(leaf) - slot:
        raise ground.errno(errno.ENOENT)
    del leaf.items[slot : slot + count]
    leaf.store()
    if not len(leaf):
        if path.parent(0) is not None:
            del_leaf(ground, path, leaf)
        return
    if slot == 0:
        fixup_low_keys(ground, path, leaf.key(0), 1)
    if leaf.used() < ground.leaf_size // 3:
        empty_leaf(ground, path, leaf)
