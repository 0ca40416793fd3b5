# SPDX-License-Identifier: GPL-2.0-only
"""Leaves and nodes as lists that can be changed, and where they come from.

Beside ``native/writer/btree/ground.c`` and ``native/writer/btree/cow.c``; trees are in
``native/writer/writer.c``, what a block says in ``native/writer/writer.h`` and
``native/image/internal.h``.

A leaf is a list of items (key, payload), a node a list of pointers (key, address, generation). What
is changed in a list lies in the image after ``store()``. :class:`Ground` is where blocks come from:
copies on write, allocation and references are those of the C kernels and have no twin.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.volume.blocks import HEADER, ITEM, KEY_PTR, Expect, image_block

if TYPE_CHECKING:
    from btrfs_model.mount.tree_writer import TreeWriter

RawKey = tuple[int, int, int]
_NRITEMS_AT = 96
_LEVEL_AT = 100


class Leaf:
    """A leaf: ``items[slot]`` is (key, payload)."""

    level = 0

    def __init__(self, view: memoryview) -> None:
        self.view = view
        *_, bytenr, _, _, self.generation, _, count, _ = HEADER.unpack_from(view)
        self.bytenr: int = bytenr
        self.items: list[tuple[RawKey, bytes]] = []
        for slot in range(count):
            *key, offset, size = ITEM.unpack_from(view, HEADER.size + slot * ITEM.size)
            start = HEADER.size + offset
            self.items.append(((key[0], key[1], key[2]), bytes(view[start : start + size])))

    def __len__(self) -> int:
        return len(self.items)

    def key(self, slot: int) -> RawKey:
        """Return the key in a slot."""
        return self.items[slot][0]

    def size(self, slot: int) -> int:
        """Return the bytes that an item takes, its header included."""
        return ITEM.size + len(self.items[slot][1])

    def used(self, start: int = 0, end: int | None = None) -> int:
        """Bytes that the items [start, end) take (``leaf_space_used()``)."""
        return sum(ITEM.size + len(data) for _, data in self.items[start:end])

    def free(self) -> int:
        """Bytes that are free (``btrfs_leaf_free_space()``)."""
        return len(self.view) - HEADER.size - self.used()

    def store(self) -> None:
        """Pack the items into the block: headers from the start, payloads from the end."""
        end = len(self.view) - HEADER.size
        for slot, (key, data) in enumerate(self.items):
            end -= len(data)
            ITEM.pack_into(self.view, HEADER.size + slot * ITEM.size, *key, end, len(data))
            self.view[HEADER.size + end : HEADER.size + end + len(data)] = data
        _store_count(self.view, len(self.items))


class Node:
    """A node: ``ptrs[slot]`` is (first key of the child, address, generation)."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        *_, bytenr, _, _, self.generation, _, count, level = HEADER.unpack_from(view)
        self.bytenr: int = bytenr
        self.level: int = level
        self.ptrs: list[tuple[RawKey, int, int]] = []
        for slot in range(count):
            *key, child, generation = KEY_PTR.unpack_from(view, HEADER.size + slot * KEY_PTR.size)
            self.ptrs.append(((key[0], key[1], key[2]), child, generation))

    def __len__(self) -> int:
        return len(self.ptrs)

    def key(self, slot: int) -> RawKey:
        """Return the key in a slot."""
        return self.ptrs[slot][0]

    def store(self) -> None:
        """Write the pointers into the block."""
        for slot, (key, child, generation) in enumerate(self.ptrs):
            KEY_PTR.pack_into(self.view, HEADER.size + slot * KEY_PTR.size, *key, child, generation)
        _store_count(self.view, len(self.ptrs))


Block = Leaf | Node
AnyBlock = TypeVar("AnyBlock", Leaf, Node)


def _store_count(view: memoryview, count: int) -> None:
    view[_NRITEMS_AT : _NRITEMS_AT + 4] = count.to_bytes(4, "little")


class Path:
    """The way from a root to a leaf that may be written to: a block and a slot for each level."""

    def __init__(self) -> None:
        self.nodes: list[Block | None] = [None] * (BTRFS_MAX_LEVEL + 1)
        self.slots = [0] * (BTRFS_MAX_LEVEL + 1)

    @property
    def leaf(self) -> Leaf:
        """The leaf that the path ends in."""
        leaf = self.nodes[0]
        assert isinstance(leaf, Leaf)
        return leaf

    def node(self, level: int) -> Node:
        """Return the node of a level that the path has."""
        node = self.nodes[level]
        assert isinstance(node, Node)
        return node

    def parent(self, level: int) -> Node | None:
        """Return the node above a level, or None above the root."""
        parent = self.nodes[level + 1]
        return parent if isinstance(parent, Node) else None


class Ground:
    """A tree of a writer, block by block.

    `leaf_size` (int): bytes for items and payloads in a leaf (``BTRFS_LEAF_DATA_SIZE``).
    `node_ptrs` (int): pointers that fit into a node (``BTRFS_NODEPTRS_PER_BLOCK``).
    """

    def __init__(self, writer: TreeWriter, tree_id: int) -> None:
        self.writer = writer
        self.image = writer.image
        self.id = tree_id % 2**64
        self.owner = writer.tree_state(tree_id).owner
        self.leaf_size = self.image.nodesize - HEADER.size
        self.node_ptrs = self.leaf_size // KEY_PTR.size

    @property
    def force_cow(self) -> bool:
        """Whether each change copies, since a snapshot was taken in this transaction."""
        return self.writer.tree_state(self.id).force_cow

    # ---------------------------------------------------------------------------- reading --

    def read(self, bytenr: int, generation: int, level: int) -> Block:
        """Return a verified block."""
        try:
            view = image_block(self.image, bytenr, Expect(self.owner, generation, level))
        except CorruptImageError:
            self.writer.aborted = True
            raise
        return Node(view) if view[_LEVEL_AT] else Leaf(view)

    def read_child(self, parent: Node, slot: int) -> Block:
        """Return a child as it is, which must start with the key that its parent has for it."""
        key, bytenr, generation = parent.ptrs[slot]
        child = self.read(bytenr, generation, parent.level - 1)
        # a leaf that was made for an insertion that is still to come
        if not len(child) and self.image.is_unwritten(self.image.map(bytenr)[0]):
            return child
        if not len(child) or child.key(0) != key:
            raise self.corrupt(Code.BAD_FIRST_KEY, bytenr, slot)
        return child

    # ------------------------------------------------------------- blocks to be written to --

    def own_root(self) -> Block:
        """Return the root, copied if it is older than the transaction."""
        self.writer.own_root(self.id)
        state = self.writer.tree_state(self.id)
        return self.read(state.bytenr, state.generation, state.level)

    def own_child(self, parent: Node, slot: int) -> Block:
        """Return a child, copied if it is older than the transaction."""
        bytenr = self.writer.own_child(self.id, parent.bytenr, slot)
        child = self.read(bytenr, 0, parent.level - 1)
        parent.ptrs[slot] = (parent.key(slot), child.bytenr, child.generation)
        return child

    def cow_child(self, parent: Node, slot: int, kind: type[AnyBlock]) -> AnyBlock:
        """Return the same where its kind is known."""
        child = self.own_child(parent, slot)
        assert isinstance(child, kind)
        return child

    def make_block(self, level: int, first: RawKey, hint: int) -> Block:
        """Allocate an empty block near `hint` (``btrfs_alloc_tree_block()``)."""
        return self.read(self.writer.make_block(self.id, level, first, hint), 0, level)

    def drop_block(self, block: Block) -> None:
        """Give a block back (``btrfs_free_tree_block()``)."""
        self.writer.drop_block(self.id, block.bytenr)

    def is_root(self, block: Block) -> bool:
        """Whether a block is the root."""
        return block.bytenr == self.writer.tree_state(self.id).bytenr

    def set_root(self, block: Block) -> None:
        """Make a block the root."""
        self.writer.change_tree(
            self.id,
            bytenr=block.bytenr,
            generation=block.generation,
            level=block.level,
            dirty=True,
        )

    # ----------------------------------------------------------------------------- errors --

    def errno(self, number: int) -> OSError:
        """Return what the kernel would return."""
        return OSError(number, os.strerror(number), os.fspath(self.image.path))

    def corrupt(self, code: int, bytenr: int, slot: int = 0) -> CorruptImageError:
        """Abort the transaction; return the error for a block that is not as it must be."""
        self.writer.aborted = True
        return CorruptImageError(self.image.path, Fault(code, self.owner, bytenr, slot))
