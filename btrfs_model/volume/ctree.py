# SPDX-License-Identifier: GPL-2.0-only
"""Searching a b-tree.

Beside ``native/tree/tree.c``; what a block says is in ``native/image/internal.h``.

A node holds keys and pointers in ascending order, a leaf keys and items. A search starts at the
root and at each node follows the last key that is not greater than the one sought::

    sought 35        [ 10 | 30 | 50 ]            30 <= 35 < 50: follow 30
                            |
                     [ 30 | 33 | 40 ]            the leaf: 35 would stand in slot 2

so it ends in the one leaf that can hold the key, after as many steps as the tree is high. To get
from a leaf to the next, the kernel searches again for the last key it saw (the locks on the path
were dropped, and the tree may have changed) and takes one step from there.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.volume.blocks import HEADER, ITEM, KEY_PTR, Device, Expect, ReadBy, image_block

RawKey = tuple[int, int, int]
_NRITEMS_AT = 96
_LEVEL_AT = 100


class Tree(Protocol):
    """What is asked of the tree that is searched: :class:`~btrfs_model.volume.tree.Tree`."""

    objectid: int
    bytenr: int
    generation: int
    level: int

    @property
    def image(self) -> Device:
        """Where its blocks are."""


class Reada(IntEnum):
    """Readahead of a search: ``path->reada`` of the kernel."""

    NONE = 0
    BACK = 1
    FORWARD = 2
    FORWARD_ALWAYS = 3


def bytenr_of(block: memoryview) -> int:
    """Return the address that the header of a block says."""
    return int.from_bytes(block[48:56], "little")


def nritems(block: memoryview) -> int:
    """Return the number of items or pointers in a block."""
    return int.from_bytes(block[_NRITEMS_AT : _NRITEMS_AT + 4], "little")


def block_key(block: memoryview, slot: int) -> RawKey:
    """Return the key in a slot of a leaf or node."""
    size = KEY_PTR.size if block[_LEVEL_AT] else ITEM.size
    objectid, kind, offset, *_ = (KEY_PTR if block[_LEVEL_AT] else ITEM).unpack_from(
        block, HEADER.size + slot * size
    )
    return objectid, kind, offset


def node_ptr(node: memoryview, slot: int) -> tuple[int, int]:
    """Return the address and generation that a node has in a slot."""
    *_, blockptr, generation = KEY_PTR.unpack_from(node, HEADER.size + slot * KEY_PTR.size)
    return blockptr, generation


def item_data(leaf: memoryview, slot: int) -> memoryview:
    """Return the payload of an item of a verified leaf."""
    *_, offset, size = ITEM.unpack_from(leaf, HEADER.size + slot * ITEM.size)
    start = HEADER.size + offset
    return leaf[start : start + size]


class Path:
    """The way from a root to a leaf: a block and a slot for each level.

    `nodes` (list of memoryview or None): by level, ``nodes[0]`` the leaf.
    `slots` (list of int): by level.
    `restart` (bool): search again after a block had to be read (kernels before 5.19).
    `reada_missing` (bool): FORWARD_ALWAYS acts only where the block itself is not cached (before
    5.15).
    """

    def __init__(
        self,
        reada: Reada = Reada.NONE,
        lowest_level: int = 0,
        restart: bool = False,
        reada_missing: bool = False,
    ) -> None:
        self.nodes: list[memoryview | None] = [None] * BTRFS_MAX_LEVEL
        self.slots = [0] * BTRFS_MAX_LEVEL
        self.reada = reada
        self.lowest_level = lowest_level
        self.restart = restart
        self.reada_missing = reada_missing

    @property
    def leaf(self) -> memoryview:
        """The leaf that the path ends in."""
        leaf = self.nodes[0]
        assert leaf is not None
        return leaf


def bin_search(block: memoryview, key: RawKey) -> tuple[int, bool]:
    """Return the slot of the first key that is not less than `key`, and whether it is equal."""
    low, high = 0, nritems(block)
    while low < high:
        mid = (low + high) // 2
        found = block_key(block, mid)
        if found == key:
            return mid, True
        if found < key:
            low = mid + 1
        else:
            high = mid
    return low, False


def block_of_child(tree: Tree, node: memoryview, slot: int) -> memoryview:
    """Return the block below a slot of a node, which begins with the key there."""
    blockptr, generation = node_ptr(node, slot)
    expect = Expect(tree.objectid, generation, node[_LEVEL_AT] - 1)
    child = image_block(tree.image, blockptr, expect)
    if not nritems(child) or block_key(child, 0) != block_key(node, slot):
        raise CorruptImageError(
            tree.image.path, Fault(Code.BAD_FIRST_KEY, tree.objectid, blockptr, slot)
        )
    return child


def check_last_key(tree: Tree, path: Path, block: memoryview) -> None:
    """See that the last key of a block comes before the next key of each node above it.

    A walk that sees to this in each block goes on in ascending order, so it meets no block twice,
    even where blocks have several parents in one tree.
    """
    count = nritems(block)
    if not count:
        return
    last = block_key(block, count - 1)
    for level in range(block[_LEVEL_AT] + 1, BTRFS_MAX_LEVEL):
        node, slot = path.nodes[level], path.slots[level]
        if node is None:
            return
        if slot + 1 < nritems(node) and block_key(node, slot + 1) <= last:
            raise CorruptImageError(
                tree.image.path,
                Fault(Code.BAD_LAST_KEY, tree.objectid, bytenr_of(node), slot, 0, bytenr_of(block)),
            )


def reada_for_search(tree: Tree, path: Path, level: int, slot: int, objectid: int) -> None:
    """Read ahead the siblings of the child at `slot`."""
    current().count("reada_for_search")
    node, cache = path.nodes[level], tree.image.reads
    always = path.reada == Reada.FORWARD_ALWAYS
    if (level != 1 and not always) or node is None or cache is None:
        return
    target = node_ptr(node, slot)[0]
    ahead = cache.limits.readahead(tree.image.nodesize)
    limit = ahead["near"]
    if always:
        limit = ahead["always_nodes" if level > 1 else "always_leaves"]
    elif target in cache.held:
        return
    nread = nscan = 0
    while nread <= limit and nscan <= ahead["siblings"]:
        slot += -1 if path.reada == Reada.BACK else 1
        if not 0 <= slot < nritems(node):
            return
        if path.reada == Reada.BACK and objectid and block_key(node, slot)[0] != objectid:
            return
        blockptr, generation = node_ptr(node, slot)
        if always or abs(blockptr - target) <= ahead["distance"]:
            current().count("btrfs_readahead_node_child")
            cache.submit(blockptr, generation, level - 1, True, ReadBy.reada_for_search)
            nread += tree.image.nodesize
        nscan += 1


def read_block_for_search(
    tree: Tree, path: Path, level: int, objectid: int, by: ReadBy
) -> tuple[memoryview, bool]:
    """Go down one level; True when the search is to start again."""
    node, slot = path.nodes[level], path.slots[level]
    assert node is not None
    current().count("read_block_for_search")
    restart = False
    cache = tree.image.reads
    if cache is not None:
        blockptr, generation = node_ptr(node, slot)
        cached = blockptr in cache.held
        always = path.reada == Reada.FORWARD_ALWAYS and not path.reada_missing
        if always or (not cached and path.reada != Reada.NONE):
            reada_for_search(tree, path, level, slot, objectid)
        cache.submit(blockptr, generation, level - 1, False, by)
        if not cached:
            current().count("read_tree_block")
            restart = path.restart
    return block_of_child(tree, node, slot), restart


def read_node_slot(tree: Tree, node: memoryview, slot: int, newer_than: int | None) -> memoryview:
    """Read a child without a search (``btrfs_read_node_slot()``).

    With `newer_than`, the children behind it that are of a later generation are read ahead.
    """
    current().count("read_tree_block")
    cache, level = tree.image.reads, node[_LEVEL_AT]
    if cache is not None:
        cache.submit(*node_ptr(node, slot), level - 1, False, ReadBy.btrfs_read_node_slot)
    child = block_of_child(tree, node, slot)
    if newer_than is None or cache is None:
        return child
    limits = cache.limits.readahead(tree.image.nodesize)
    left = limits["compare_leaves" if level == 1 else "compare_nodes"]
    for after in range(slot + 1, nritems(node)):
        if left <= 0:
            break
        blockptr, generation = node_ptr(node, after)
        if generation > newer_than:
            current().count("btrfs_readahead_node_child")
            cache.submit(blockptr, generation, level - 1, True, ReadBy.tree_move_down)
            left -= tree.image.nodesize
    return child


def search_slot(tree: Tree, key: RawKey, path: Path) -> bool:
    """Search a key without changing the tree (``btrfs_search_slot()``).

    Returns whether the key is at ``path.slots[0]``; otherwise that is where it would be inserted,
    which may be one past the last item of the leaf.
    """
    current().count("btrfs_search_slot")
    while True:
        path.nodes = [None] * BTRFS_MAX_LEVEL
        expect = Expect(tree.objectid, tree.generation, tree.level)
        block = image_block(tree.image, tree.bytenr, expect)
        if tree.image.reads is not None:
            tree.image.reads.submit(
                tree.bytenr, tree.generation, tree.level, False, ReadBy.read_tree_block
            )
        restart = False
        while not restart:
            slot, found = bin_search(block, key)
            level = block[_LEVEL_AT]
            path.nodes[level] = block
            path.slots[level] = slot
            if level in (0, path.lowest_level):
                return found
            if not found and slot > 0:
                slot -= 1
                path.slots[level] = slot
            block, restart = read_block_for_search(
                tree, path, level, key[0], ReadBy.btrfs_search_slot
            )


def next_leaf(tree: Tree, path: Path) -> bool:
    """Go to slot 0 of the next leaf (``btrfs_next_old_leaf()``); False when there is none."""
    current().count("btrfs_next_old_leaf")
    count = nritems(path.leaf)
    if not count:
        return False
    check_last_key(tree, path, path.leaf)
    last = block_key(path.leaf, count - 1)
    while True:
        search_back(tree, last, path)
        level = _level_to_step(path, 1)
        if level is None:
            return False
        path.slots[level] += 1
        restart = False
        while level and not restart:
            block, restart = read_block_for_search(
                tree, path, level, last[0], ReadBy.btrfs_next_old_leaf
            )
            level -= 1
            path.nodes[level] = block
            path.slots[level] = 0
        if not restart:
            return True


def search_back(tree: Tree, last: RawKey, path: Path) -> None:
    """Search for the last key of the leaf of a path.

    It leads to the same leaf, so it is carried out only where the reads that it takes are modelled.
    """
    if tree.image.reads is not None:
        search_slot(tree, last, path)
        return
    current().count("btrfs_search_slot")
    current().count("read_block_for_search", tree.level)


def prev_leaf(tree: Tree, path: Path) -> bool:
    """Go to the last slot of the previous leaf; False when there is none."""
    level = _level_to_step(path, -1)
    if level is None:
        return False
    path.slots[level] -= 1
    while level:
        node = path.nodes[level]
        assert node is not None
        block = block_of_child(tree, node, path.slots[level])
        level -= 1
        path.nodes[level] = block
        path.slots[level] = nritems(block) - 1
    check_last_key(tree, path, path.leaf)
    return True


def _level_to_step(path: Path, step: int) -> int | None:
    """Return the lowest level above the leaf at which the path can move on by one slot."""
    for level in range(1, BTRFS_MAX_LEVEL):
        node = path.nodes[level]
        if node is None:
            return None
        if 0 <= path.slots[level] + step < nritems(node):
            return level
    return None


def search_slot_for_read(tree: Tree, key: RawKey, path: Path, *, find_higher: bool) -> bool:
    """Go to the first item >= key, or the last <= key (``btrfs_search_slot_for_read()``).

    Returns whether there is such an item.
    """
    current().count("btrfs_search_slot_for_read")
    if search_slot(tree, key, path):
        return True
    if find_higher:
        return path.slots[0] < nritems(path.leaf) or next_leaf(tree, path)
    if path.slots[0] > 0:
        path.slots[0] -= 1
        return True
    return prev_leaf(tree, path)
