# SPDX-License-Identifier: GPL-2.0-only
"""Changing items by key: each change is a search and an edit of the leaf that it ends in.

Beside ``native/writer/btree/edit.c`` and, for entries, ``native/bulk/apply.c``. For reading, and
for testing the C against: payloads are copied with every change.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import DIR_ITEM, INODE_REF
from btrfs_model.reference.ctree_ground import Ground, Node, Path, RawKey
from btrfs_model.reference.ctree_leaf import (
    count_copied,
    del_items,
    setup_items_for_insert,
    split_leaf,
)
from btrfs_model.reference.ctree_node import fixup_low_keys
from btrfs_model.reference.ctree_search import bin_search, search_slot, upper_bound
from btrfs_model.volume.blocks import ITEM

if TYPE_CHECKING:
    from btrfs_model.mount.tree_writer import TreeWriter


def get(writer: TreeWriter, tree_id: int, key: RawKey) -> bytes | None:
    """Return a copy of an item's payload, or None."""
    item = writer.tree(tree_id).get(key)
    return None if item is None else bytes(item.data)


def find_item(ground: Ground, key: RawKey) -> Path:
    """Return the path to an item that must be there."""
    path, found = search_slot(ground, key)
    if not found:
        raise ground.errno(errno.ENOENT)
    return path


def look(ground: Ground, key: RawKey) -> tuple[Path, bool]:
    """Look at what is there, which the kernel does not: nothing is copied, changed or counted."""
    path = Path()
    state = ground.writer.tree_state(ground.id)
    block = ground.read(state.bytenr, state.generation, state.level)
    while isinstance(block, Node):
        slot, found = bin_search(block, key)
        path.nodes[block.level] = block
        path.slots[block.level] = slot if found or slot == 0 else slot - 1
        block = ground.read_child(block, path.slots[block.level])
    path.nodes[0] = block
    path.slots[0], found = bin_search(block, key)
    return path, found


def next_key(path: Path, slot: int) -> RawKey | None:
    """Return the key in a slot of the leaf, or the bound of the leaf."""
    return path.leaf.key(slot) if slot < len(path.leaf) else upper_bound(path)


# --------------------------------------------------------------------------------- insertion --


def insert(writer: TreeWriter, tree_id: int, items: Sequence[tuple[RawKey, bytes]]) -> None:
    """Insert items side by side (``btrfs_insert_empty_items()``)."""
    ground = Ground(writer, tree_id)
    total = sum(ITEM.size + len(data) for _, data in items)
    if total > ground.leaf_size:
        raise ground.errno(errno.EOVERFLOW)
    if len(items) > 1:
        check_batch(ground, [key for key, _ in items])
    if not items:
        return
    path, found = search_slot(ground, items[0][0], total)
    if found:
        raise ground.errno(errno.EEXIST)
    setup_items_for_insert(ground, path, items)


def check_batch(ground: Ground, keys: list[RawKey]) -> None:
    """Refuse keys that do not ascend, or that an item lies between."""
    if any(a >= b for a, b in pairwise(keys)):
        raise ground.errno(errno.EINVAL)
    path, found = look(ground, keys[0])
    after = next_key(path, path.slots[0])
    if not found and after is not None and keys[-1] >= after:
        raise ground.errno(errno.EINVAL)


def insert_each(writer: TreeWriter, tree_id: int, items: Sequence[tuple[RawKey, bytes]]) -> None:
    """Insert items one by one; the C kernel leaves out searches that would find the same leaf."""
    for item in items:
        insert(writer, tree_id, [item])


# ---------------------------------------------------------------------------------- one item --


def update(writer: TreeWriter, tree_id: int, key: RawKey, offset: int, data: bytes) -> None:
    """Overwrite bytes of a payload."""
    ground = Ground(writer, tree_id)
    path = find_item(ground, key)
    old = payload(path)
    if offset + len(data) > len(old):
        raise ground.errno(errno.EINVAL)
    if len(data) == len(old):
        count_copied(ground, 1, ITEM.size + len(data))
    _set_payload(path, old[:offset] + data + old[offset + len(data) :])


def payload(path: Path) -> bytes:
    """Return the payload of the item that the path stands at."""
    return path.leaf.items[path.slots[0]][1]


def _set_payload(path: Path, data: bytes) -> None:
    """Give the item that the path stands at another payload, for which there is room."""
    path.leaf.items[path.slots[0]] = (path.leaf.key(path.slots[0]), data)
    path.leaf.store()


def extend(writer: TreeWriter, tree_id: int, key: RawKey, data: bytes) -> None:
    """Append bytes to a payload (``btrfs_extend_item()``)."""
    ground = Ground(writer, tree_id)
    path, found = look(ground, key)
    if not found:
        raise ground.errno(errno.ENOENT)
    if len(payload(path)) + len(data) + ITEM.size > ground.leaf_size:
        raise ground.errno(errno.EOVERFLOW)
    path, _ = search_slot(ground, key, len(data), for_extension=True)
    count_copied(ground, 0, len(data))
    _set_payload(path, payload(path) + data)


def truncate(
    writer: TreeWriter, tree_id: int, key: RawKey, size: int, *, from_end: bool = False
) -> None:
    """Keep the first (`from_end`: the last) `size` bytes of a payload."""
    ground = Ground(writer, tree_id)
    path = find_item(ground, key)
    old = payload(path)
    if size > len(old):
        raise ground.errno(errno.EINVAL)
    _set_payload(path, old[len(old) - size :] if from_end else old[:size])


def set_key(writer: TreeWriter, tree_id: int, old: RawKey, new: RawKey) -> None:
    """Give an item another key between its neighbours (``btrfs_set_item_key_safe()``)."""
    ground = Ground(writer, tree_id)
    path = find_item(ground, old)
    slot = path.slots[0]
    after = next_key(path, slot + 1)
    before = last_key_before(ground, path)
    if (after is not None and new >= after) or (before is not None and new <= before):
        raise ground.errno(errno.EINVAL)
    path.leaf.items[slot] = (new, payload(path))
    path.leaf.store()
    if slot == 0:
        fixup_low_keys(ground, path, new, 1)


def last_key_before(ground: Ground, path: Path) -> RawKey | None:
    """Return the key of the item before the path, None when there is none."""
    if path.slots[0]:
        return path.leaf.key(path.slots[0] - 1)
    level = 1
    while path.nodes[level] is not None and path.slots[level] == 0:
        level += 1
    if path.nodes[level] is None:
        return None
    block = ground.read_child(path.node(level), path.slots[level] - 1)
    while isinstance(block, Node):
        block = ground.read_child(block, len(block) - 1)
    return block.key(len(block) - 1)


def setup_leaf_for_split(ground: Ground, key: RawKey) -> Path:
    """Return the path to an item, in a leaf that has room for another like it."""
    path = find_item(ground, key)
    size = path.leaf.size(path.slots[0])
    if path.leaf.free() < size:
        path, _ = search_slot(ground, key, for_split=True)
        split_leaf(ground, path, key, size, extend=True)
    return path


def duplicate(writer: TreeWriter, tree_id: int, old: RawKey, new: RawKey) -> None:
    """Insert a copy of an item behind it (``btrfs_duplicate_item()``)."""
    ground = Ground(writer, tree_id)
    path, found = look(ground, old)
    if not found:
        raise ground.errno(errno.ENOENT)
    after = next_key(path, path.slots[0] + 1)
    if new <= old or (after is not None and new >= after):
        raise ground.errno(errno.EINVAL)
    path = setup_leaf_for_split(ground, old)
    data = payload(path)
    path.slots[0] += 1
    setup_items_for_insert(ground, path, [(new, data)])


# ----------------------------------------------------------------------------------- entries --


def insert_entry(writer: TreeWriter, tree_id: int, key: RawKey, entry: bytes) -> None:
    """Add an entry to an item, or make the item (``insert_with_overflow()``)."""
    there = writer.get(tree_id, key)
    if there is None:
        insert(writer, tree_id, [(key, entry)])
        return
    (name, *_), *_ = _entries(key, entry)
    if any(other == name for other, *_ in _entries(key, there)):
        raise Ground(writer, tree_id).errno(errno.EEXIST)
    extend(writer, tree_id, key, entry)


def delete_entry(writer: TreeWriter, tree_id: int, key: RawKey, name: bytes) -> int | None:
    """Remove an entry, the item with its last one (``btrfs_delete_one_dir_name()``)."""
    there = writer.get(tree_id, key)
    found = _entries(key, there) if there is not None else []
    for other, start, end, index in found:
        if other == name:
            assert there is not None
            if len(found) == 1:
                delete(writer, tree_id, key, key)
            else:
                writer.replace(tree_id, key, there[:start] + there[end:])
            return index
    return None


def _entries(key: RawKey, payload: bytes) -> list[tuple[bytes, int, int, int]]:
    """Return names of entries, where each begins and ends, and its index in an INODE_REF."""
    found = []
    start = 0
    while start < len(payload):
        if key[1] == ItemType.INODE_REF:
            index, size = INODE_REF.flat(payload, start)
            at, end = start + INODE_REF.size, start + INODE_REF.size + size
        else:
            *_, data_size, size, _ = DIR_ITEM.flat(payload, start)
            index, at = 0, start + DIR_ITEM.size
            end = at + size + data_size
        found.append((payload[at : at + size], start, end, index))
        start = end
    return found


# ---------------------------------------------------------------------------------- deletion --


def delete(
    writer: TreeWriter, tree_id: int, first: RawKey, last: RawKey, *, backward: bool = False
) -> int:
    """Delete items, a leaf's run at a time, from the first leaf on or from the last one back."""
    ground = Ground(writer, tree_id)
    deleted = 0
    more = first <= last
    while more:
        path, start, end = (last_run if backward else first_run)(ground, first, last)
        if start >= end:
            break
        # a leaf that has none of the items is not searched for: it would be copied
        if backward:
            more = start == 0 and path.leaf.key(0) > first
        else:
            bound = upper_bound(path) if end == len(path.leaf) else None
            more = bound is not None and bound <= last
            first = bound if bound is not None else first
        path.slots[0] = start
        del_items(ground, path, start, end - start)
        deleted += end - start
    return deleted


def first_run(ground: Ground, first: RawKey, last: RawKey) -> tuple[Path, int, int]:
    """Find the first items of a range that lie in one leaf, as ``btrfs_drop_extents()`` does."""
    path, _ = search_slot(ground, first, -1)
    if path.slots[0] >= len(path.leaf):
        bound = upper_bound(path)
        if bound is None or bound > last:
            return path, 0, 0
        path, _ = search_slot(ground, bound, -1)
    end, found = bin_search(path.leaf, last)
    return path, path.slots[0], end + found


def last_run(ground: Ground, first: RawKey, last: RawKey) -> tuple[Path, int, int]:
    """Find the last ones, as ``btrfs_truncate_inode_items()`` does."""
    path, found = search_slot(ground, last, -1)
    start, _ = bin_search(path.leaf, first)
    return path, start, path.slots[0] + found


# --------------------------------------------------------------------------------- replacing --


def insert_extent(
    writer: TreeWriter, tree_id: int, key: RawKey, data: bytes, last: RawKey | None
) -> None:
    """Delete items from `key` to `last`, and insert a file extent where they were."""
    ground = Ground(writer, tree_id)
    size = ITEM.size + len(data)
    if size > ground.leaf_size:
        raise ground.errno(errno.EOVERFLOW)
    path = place_for_extent(ground, key) if last is None else drop_extents(ground, key, last)
    if path is None or path.leaf.free() < size:
        insert(writer, tree_id, [(key, data)])
    else:
        setup_items_for_insert(ground, path, [(key, data)])


def place_for_extent(ground: Ground, key: RawKey) -> Path | None:
    """Search for where an extent would go; None at the end of a leaf, which the kernel leaves."""
    path, found = search_slot(ground, key, -1)
    if found:
        raise ground.errno(errno.EEXIST)
    return path if path.slots[0] < len(path.leaf) else None


def drop_extents(ground: Ground, key: RawKey, last: RawKey) -> Path | None:
    """Delete from `key` to `last`; returns the path to where the last ones were, if it is there."""
    first: RawKey | None = key
    while first is not None and first <= last:
        path, start, end = first_run(ground, first, last)
        if start >= end:
            return None
        leaf = path.leaf
        first = upper_bound(path) if end == len(leaf) else None
        path.slots[0] = start
        del_items(ground, path, start, end - start)
    return path if len(leaf) or path.parent(0) is None else None
